"""Sections about eta, training and evaluation: strength, losses, figures, trust, heatmaps."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from sklearn.metrics import roc_curve

from medclip_dcl.core.tables import read_table, spread_rows
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.likelihood import eta
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import text_key
from medclip_dcl.training.config import read_training_config
from medclip_dcl.training.logging import read_metrics

from .charts import Labels, Series, draw_histogram, draw_lines, heat_uri
from .sources import EXAMPLES, Sources, View, boxes_by_image, show_image

_SHOWN = 8  # sentences with the largest eta, and with the smallest


def describe_eta(sources: Sources) -> View | None:
    """Show how strongly sentences are corrected, and which."""
    artifacts = sources.get(eta.ARTIFACT, sentences.ARTIFACT)
    if artifacts is None:
        return None
    cache, texts = artifacts
    settings = cache.fingerprint["settings"]["eta"]
    distinct = sentences.distinct_sentences(texts)
    text_of = dict(zip(distinct["text_key"].to_pylist(), distinct["text"].to_pylist(), strict=True))
    table = read_table(cache.path, eta.ETA)
    values, count = (table[name].to_numpy().astype(np.float64) for name in ("eta", "count"))
    # Of a batch, in which a sentence is as often as reports say it: the share of false negatives.
    mean = float((values * count).sum() / max(1, count.sum()))
    expected = sources.negatives * mean
    strength = Labels(
        "Histogram of eta over the sentences of the training reports",
        "eta: assumed chance that another image shares its class",
        "sentences, repeats included",
    )
    spoken = table.filter(pc.field("count") > 0)

    def rows(order: str) -> list[View]:
        if sources.settings.private:
            return []
        # Of equal ones the most frequent.
        ranked = spoken.sort_by([("eta", order), ("count", "descending")]).slice(0, _SHOWN)
        return [row | {"text": text_of[row["text_key"]]} for row in ranked.to_pylist()]

    return {
        "settings": settings,
        **{name: cache.summary.get(name, settings.get(name)) for name in ("a", "k")},
        "chart": draw_histogram(values, count, strength),
        "spoken": len(spoken),
        "expected": expected,
        "figures": {
            "distinct sentences": len(table),
            "mean eta of a training sentence": mean,
            "negatives of an anchor, N": sources.negatives,
            "expected false negatives among them, N · eta": expected,
            "occurrences at the cap": cache.summary.get("capped_share_weighted"),
            "distinct sentences at the cap": cache.summary.get("capped_share"),
        },
        "has_likelihood": not table["pll_nats"].null_count,
        "most": rows("descending"),
        "least": rows("ascending"),
    }


_READINGS = {
    "mean_auc": "chance that an image with the finding scores above one without it",
    "mean_balanced_accuracy": "mean of sensitivity and specificity, the better prompt deciding",
    "mean_balanced_accuracy_offset": "the same, each prompt against its level on other images",
    "own_recall": "mean of R@10, R@50 and R@100 in both directions, as the paper's Table 1 has it",
    "recall": "the same, where any box with those words is right",
    "cnr_signed": "how far scores inside a box lie above those outside, in standard deviations",
    "cnr": "the same without its sign, as papers report it; compare it with chance",
    "miou": "overlap of the thresholded heatmap with the box; low by construction",
    "pointing": "share of sentences whose best point is in a box",
    "recall_at_1": "the right answer comes first",
    "recall_at_5": "the right answer is among the first five",
    "recall_at_10": "the right answer is among the first ten",
}


def describe_results(sources: Sources) -> View | None:
    """Return the tree of `results.json` and what is drawn from it; None without results."""
    artifacts = sources.get(results.ARTIFACT)
    if artifacts is None:
        return None
    tree = results.read_figures(artifacts[0])
    return {
        "tree": tree,
        "questions": tree["questions"],
        "headlines": _headlines(tree),
        "absent": _absent(tree["questions"]),
        "decision_questions": results.DECISION_QUESTIONS,
        "decision_figures": results.DECISION_FIGURES,
        "warnings": {item["finding"]: item for item in tree["warnings"]},
        "roc": _roc(sources),
        "reliability": _reliability(sources),
        "least_images": _LEAST_BIN,
    }


def show_heatmaps(sources: Sources) -> list[View]:
    """Show heatmaps with their true boxes, evenly from best to worst contrast."""
    artifacts = sources.get(results.ARTIFACT, manifest.ARTIFACT, prepared.ARTIFACT)
    if artifacts is None or sources.settings.private:
        return []
    outcome, source, prepared_artifact = artifacts
    rows = read_table(outcome.path, results.GROUNDINGS).to_pylist()
    rows = sorted((row for row in rows if row["cnr_signed"] is not None), key=_contrast)
    images, boxes = PreparedImages(prepared_artifact), boxes_by_image(source)
    shown = []
    for index in spread_rows(len(rows), EXAMPLES):
        row = rows[index]
        own = [
            box for box in boxes[row["image_id"]] if text_key(box["phrase"]) == row["phrase_key"]
        ]
        grid = np.array(row["grid"], dtype=np.float32).reshape(row["rows"], -1)
        shown.append(
            show_image(images, row["image_id"], own)
            | {
                "heat": heat_uri(grid),
                "low": float(grid.min()),
                "high": float(grid.max()),
                "phrase": own[0]["phrase"],
                "cnr_signed": row["cnr_signed"],
                "miou": row["miou"],
                "rank": index + 1,
                "of": len(rows),
            }
        )
    return shown


def _contrast(row: View) -> float:
    return -float(row["cnr_signed"])


def _headlines(tree: Mapping[str, Any]) -> list[View]:
    return [
        {
            "name": headline.name,
            "title": headline.title,
            "reading": _READINGS.get(headline.figure, "a metric of a plugin"),
            "figure": figure,
            "chance": headline.chance_of(tree),
        }
        for headline in results.headlines_of(tree)
        if (figure := headline.figure_of(tree)) is not None and figure["value"] is not None
    ]


def _absent(questions: Mapping[str, Any]) -> str:
    """Name the questions that could not be put, those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, outcome in questions.items():
        if outcome["absent"]:
            by_reason.setdefault(outcome["absent"], []).append(name.replace("_", " "))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def _roc(sources: Sources) -> str | None:
    lines = []
    for name, margins, truth in _scores(sources, "margin"):
        if 0 < truth.sum() < len(truth):
            false_rate, true_rate, _ = roc_curve(truth, margins, drop_intermediate=False)
            lines.append(Series(name, [*false_rate], [*true_rate]))
    labels = Labels("ROC curve of each finding", "false positive rate", "true positive rate")
    return draw_lines(lines[:_LINES], labels, diagonal=True) if lines else None


def _scores(sources: Sources, column: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    # Finding, value and truth of the images where both are known.
    table = read_table(sources.artifacts[results.ARTIFACT.name].path, results.SCORES)
    by_finding: dict[str, list[tuple[float, int]]] = {}
    for row in table.to_pylist():
        if row["truth"] is not None and row[column] is not None:
            by_finding.setdefault(row["finding"], []).append((row[column], row["truth"]))
    return [(name, *np.array(pairs, dtype=np.float64).T) for name, pairs in by_finding.items()]


_LINES = 5
_LEAST_BIN = 5  # images of a bin that is drawn: fewer say nothing of a share


def _reliability(sources: Sources) -> str | None:
    lines = []
    for name, probability, truth in _scores(sources, "probability")[:_LINES]:
        images, total, present = (
            np.histogram(probability, bins=10, range=(0, 1), weights=weights)[0]
            for weights in (None, probability, truth)
        )
        drawn = images >= _LEAST_BIN
        means, shares = (each[drawn] / images[drawn] for each in (total, present))
        lines.append(Series(name, means.tolist(), shares.tolist()))
    labels = Labels(
        "Reliability: share of images with the finding by the probability that was given",
        "probability given",
        "share of images with the finding",
    )
    return draw_lines(lines, labels, diagonal=True) if lines else None


_LOSSES = {
    "loss": "corrected loss",
    "uncorrected_loss": "same batches, uncorrected (InfoNCE)",
    "validation_loss": "validation",
}
_GAUGES = {
    "frac_floor": "anchors on the floor",
    "mean_eta": "mean eta",
    "negatives_removed": "negatives removed",
    "clipped": "steps clipped, so far",
}
_OF_ETA = {"frac_floor", "mean_eta"}
_CHECKPOINTS = "checkpoints"


def describe_training(sources: Sources) -> View | None:
    """Show how training went; no charts where the log is gone, None without a trained model."""
    artifacts = sources.get(model_package.ARTIFACT)
    if artifacts is None:
        return None
    model = read_model_package(artifacts[0].path)
    trained = read_training_config(model.path)
    if trained is None:
        return None
    lines, objective = read_metrics(sources.work / _CHECKPOINTS), trained.objective
    debiased = objective.kind == "debiased"
    gauges, constants = _series(
        lines, {key: _GAUGES[key] for key in _GAUGES if debiased or key not in _OF_ETA}
    )
    losses, _ = _series(lines, _LOSSES)
    clipped = [line["clipped"] for line in lines if line.get("clipped") is not None]
    return {
        "digest": model.digest,
        "card": model.card,
        "objective": objective.model_dump(),
        "debiased": debiased,
        "seconds": artifacts[0].origin["seconds"],
        "clipped": clipped[-1] if clipped else None,
        "constants": constants,
        "losses": _chart(losses, Labels("Training losses by step", "step", "loss, nats")),
        "gauges": _chart(
            gauges, Labels("Floor, eta, removed negatives and clipped steps", "step", "share")
        ),
    }


def _series(lines: Sequence[View], names: dict[str, str]) -> tuple[list[Series], dict[str, float]]:
    # What changes, to be drawn, and what stays as it is.
    drawn, constants = [], {}
    for name, title in names.items():
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if len({value for _, value in points}) > 1:
            steps, values = zip(*points, strict=True)
            drawn.append(Series(title, steps, values))
        elif points:
            constants[title] = points[0][1]
    return drawn, constants


def _chart(drawn: list[Series], labels: Labels) -> str | None:
    return draw_lines(drawn, labels) if drawn else None
