"""Results: the figures of an evaluation, and the scores that they were made from.

`results.json` holds

    model           digest of the evaluated model
    split           the split that was evaluated
    images, patients how many
    geometry        which part of an image the model sees: `whole`, `biovil`
    contaminated    evaluated patients that the model was trained on; null: not known
    repeated_images  evaluated images whose very picture the model was trained on; null too
    truth           where the labels come from: `exact`, `labels` or `none`
    warnings        findings whose prompt pair does not decide, or that are read upside down:
                    `classification.PairWarning`
    metrics         those of plugins, by name, with their titles
    questions       per question: `absent` (why it could not be put, else empty), `pool`
                    (images, boxes, sentences), `chance`, `figures`, and `groups` of figures;
                    `decisions` and `probe_decisions` are at a threshold of the validation images

A figure is `{value, low, high, n, subjects, reason}` with a 95 % interval over patients.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from medclip_dcl.core.artifact import Artifact, ArtifactType, read_object
from medclip_dcl.core.files import write_text
from medclip_dcl.core.tables import Column, TableFormat
from medclip_dcl.evaluation.metrics import Figure
from medclip_dcl.schemas import text_table

ARTIFACT = ArtifactType("results", 12, "evaluate")

Rows = list[dict[str, Any]]  # rows of one of the tables below

FIGURES = "results.json"

_OF_IMAGE = (
    Column("image_id", pa.string(), "id of the image"),
    Column("subject_id", pa.string(), "id of the patient"),
)
SCORES = TableFormat(  # zero-shot classification: one row per image and finding
    "scores.parquet",
    (
        *_OF_IMAGE,
        Column("finding", pa.string(), "name of the finding"),
        Column("positive", pa.float32(), "score of the positive prompt, of several their mean"),
        Column("negative", pa.float32(), "the same of the negative, or what stands for it"),
        Column("margin", pa.float32(), "score of the positive prompt minus that of the negative"),
        Column("offset", pa.float64(), "margin from which the finding is present; null: not known"),
        Column("threshold", pa.float64(), "the same, chosen on validation images; null: none"),
        Column("score", pa.float32(), "softmax over the scaled prompt scores, [0, 1]"),
        Column("probability", pa.float64(), "calibrated probability; null: not calibrated"),
        Column("truth", pa.int8(), "1 present, 0 absent, null: not known"),
    ),
)

GROUNDINGS = TableFormat(  # grounding: one row per image and sentence, its boxes united
    "groundings.parquet",
    (
        *_OF_IMAGE,
        Column("category", pa.string(), "finding"),
        Column("phrase_key", pa.string(), "`text_key` of the sentence"),
        Column("boxes", pa.int32(), "boxes of this sentence on this image"),
        Column("cnr_signed", pa.float64(), "signed contrast-to-noise ratio; null: undefined"),
        Column("miou", pa.float64(), "mean IoU over the paper's 41 thresholds"),
        Column("pointed", pa.bool_(), "whether the best point is in a box"),
        Column("area", pa.float64(), "share of the image that the boxes cover"),
        Column("rows", pa.int32(), "rows of the grid"),
        Column("grid", pa.list_(pa.float32()), "region-sentence cosines, row by row"),
    ),
)

RANKS = TableFormat(  # retrieval: one row per query and direction
    "ranks.parquet",
    (
        Column("question", pa.string(), "`boxes` or `reports`"),
        Column("direction", pa.string(), "what is asked for what"),
        Column("image_id", pa.string(), "image of the query"),
        Column("subject_id", pa.string(), "patient of the query"),
        Column("rank", pa.int32(), "of the best item that reads like the query's own"),
        Column("own_rank", pa.int32(), "of the query's own, its duplicates before it"),
    ),
)

PROBES = TableFormat(  # linear probes: one row per finding and image of known truth
    "probes.parquet",
    (
        *_OF_IMAGE,
        Column("finding", pa.string(), "name of the finding"),
        Column("margin", pa.float64(), "log odds of the finding"),
        Column("threshold", pa.float64(), "log odds from which it is decided to be present; null"),
        Column("truth", pa.int8(), "1 present, 0 absent"),
    ),
)

TABLES = (SCORES, PROBES, GROUNDINGS, RANKS)


@dataclass(frozen=True)
class EvalResult:
    """Result of one question: figures with intervals, or why there are none."""

    absent: str = ""
    """Why it could not be put, else empty."""
    pool: Mapping[str, int] = field(default_factory=dict)
    """How many things it was put to, or chosen from."""
    chance: Mapping[str, float | None] = field(default_factory=dict)
    """Figure -> its value by chance; `group.figure` where groups differ."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    """Figures by finding, category or direction."""


def write_figures(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write `results.json`: the tree that the module's docstring describes."""
    text = json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False)
    write_text(folder / FIGURES, text + "\n")


def read_figures(artifact: Artifact) -> dict[str, Any]:
    """Read `results.json`; ArtifactCorrupt where it is not a JSON object."""
    return read_object(artifact, FIGURES, ARTIFACT)


@dataclass(frozen=True)
class Headline:
    """One of the figures that stand at the top of every account of the results."""

    title: str
    question: str
    figure: str
    group: str = ""

    @property
    def name(self) -> str:
        """Question, group and figure, joined by full stops."""
        return ".".join(part for part in (self.question, self.group, self.figure) if part)

    def figure_of(self, tree: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Find the figure in the tree of `results.json`; None where it was not asked for."""
        outcome = tree["questions"][self.question]
        figures = outcome["groups"].get(self.group, {}) if self.group else outcome["figures"]
        figure: Mapping[str, Any] | None = figures.get(self.figure)
        return None if outcome["absent"] else figure

    def chance_of(self, tree: Mapping[str, Any]) -> float | None:
        """Find the figure's value by chance in the tree of `results.json`."""
        name = f"{self.group}.{self.figure}" if self.group else self.figure
        chance: float | None = tree["questions"][self.question]["chance"].get(name)
        return chance


HEADLINES = (  # what the job prints and the report shows first
    Headline("zero-shot AUC, mean of findings", "zero_shot", "mean_auc"),
    Headline("zero-shot balanced accuracy, mean", "zero_shot", "mean_balanced_accuracy"),
    Headline("zero-shot balanced accuracy, offset", "zero_shot", "mean_balanced_accuracy_offset"),
    Headline("grounding signed CNR", "grounding", "cnr_signed"),
    Headline("grounding CNR", "grounding", "cnr"),
    Headline("grounding mIoU, 41 thresholds", "grounding", "miou"),
    Headline("grounding, pointing game", "grounding", "pointing"),
    Headline("boxes and sentences, Recall of Table 1", "boxes", "own_recall"),
    Headline("boxes and sentences, any of those words", "boxes", "recall"),
    Headline("sentence from box, all sentences, R@10", "boxes", "recall_at_10", "box_to_sentence"),
    Headline("box from sentence, all boxes, R@10", "boxes", "recall_at_10", "sentence_to_box"),
    Headline("report from image, R@10", "reports", "recall_at_10", "image_to_report"),
    Headline("image from report, R@10", "reports", "recall_at_10", "report_to_image"),
)


def headlines_of(tree: Mapping[str, Any]) -> list[Headline]:
    """List the headlines of a tree: those that every run has, then the metrics of its plugins."""
    own = tree.get("metrics", {}).items()  # an earlier version's has none
    return [*HEADLINES, *(Headline(title, "zero_shot", f"mean_{name}") for name, title in own)]


DECISION_QUESTIONS = {  # question -> title of its table by finding
    "decisions": "prompts, decided at a threshold chosen on the validation images",
    "probe_decisions": "linear probe, decided at a threshold chosen on the validation images",
}

DECISION_FIGURES = {  # figure -> title of its column
    "prevalence": "prevalence",
    "auprc": "AUPRC",
    "threshold": "threshold",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "f1": "F1",
    "mcc": "MCC",
}


def headline_values(tree: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the headlines of the tree as plain numbers; what was not asked is left out."""
    figures = {item.name: item.figure_of(tree) for item in headlines_of(tree)}
    return {name: figure["value"] for name, figure in figures.items() if figure is not None}


def results_table(tree: Mapping[str, Any]) -> str:
    """Lay out the headlines of the tree, a line each: interval, what it rests on, chance.

    Questions that could not be put have a line with the reason.
    """
    lines = [
        f"model {tree['model'][:12]}, split {tree['split']}: {tree['images']} images of "
        f"{tree['patients']} patients; truth: {tree['truth']}"
    ]
    if tree["contaminated"] is None:
        lines.append("it is not known which patients this model was trained on")
    elif tree["contaminated"] or tree["repeated_images"]:
        lines.append(
            f"CONTAMINATED: the model was trained on {tree['contaminated']} of these patients, and "
            f"on the picture of {tree['repeated_images']} of these images"
        )
    # `medclip show` reads results of earlier formats too: they lack warnings, probes or decisions.
    lines += [f"WARNING {warning['message']}" for warning in tree.get("warnings", ())]
    rows: Rows = []
    absent: dict[str, str] = {}
    for headline in headlines_of(tree):
        outcome, figure = tree["questions"][headline.question], headline.figure_of(tree)
        if figure is None:
            absent[headline.question] = outcome["absent"] or f"no {headline.figure}"
        else:
            pool = outcome["pool"].get(headline.group)
            rows.append(_row(headline.title, figure, headline.chance_of(tree)) | {"pool": pool})
    if probe := tree["questions"].get("probe", {"figures": {}})["figures"]:
        rows.append(_row("probe of the encoder, AUC, mean", probe["mean_auc"], 0.5))
    lines += ["", *text_table(rows)] if rows else []
    lines += [f"{question}: absent, {reason}" for question, reason in absent.items()]
    for question, title in DECISION_QUESTIONS.items():
        outcome = tree["questions"].get(question, {"absent": "not asked"})
        if not outcome["absent"]:
            lines += ["", f"{title}; intervals are in {FIGURES}", *_decision_lines(outcome)]
    return "\n".join(lines)


def _row(title: str, figure: Mapping[str, Any], chance: float | None) -> dict[str, Any]:
    shown = {name: figure[name] for name in ("value", "low", "high", "n")} | {"chance": chance}
    return {"figure": title} | shown | ({"undefined": figure["reason"]} if figure["reason"] else {})


def _decision_lines(outcome: Mapping[str, Any]) -> list[str]:
    means = {name.removeprefix("mean_"): mean for name, mean in outcome["figures"].items()}
    rows = [
        {"finding": name, "images": figures.get("auprc", {}).get("n")}
        | {title: figures.get(key, {}).get("value") for key, title in DECISION_FIGURES.items()}
        for name, figures in [*outcome["groups"].items(), ("mean", means)]
    ]
    reasons = {name: item["threshold"]["reason"] for name, item in outcome["groups"].items()}
    return text_table(rows) + [f"{name}: {reason}" for name, reason in reasons.items() if reason]
