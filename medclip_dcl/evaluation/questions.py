"""Every question, put to a model on one split: findings, probes, boxes, reports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifact import Artifact
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.demographics import read_demographics
from medclip_dcl.data.ground_truth import read_truth, truth_files
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import inputs, results
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.calibration import evaluate_probabilities
from medclip_dcl.evaluation.classification import evaluate_classes, evaluate_findings
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.grounding import evaluate_boxes, evaluate_gallery, evaluate_grounding
from medclip_dcl.evaluation.inputs import EncodedImages, EvalResult, Rows, Truth
from medclip_dcl.evaluation.probe import evaluate_probe
from medclip_dcl.evaluation.retrieval import evaluate_reports
from medclip_dcl.evaluation.subgroups import evaluate_paraphrases, evaluate_subgroups
from medclip_dcl.inference import Finding, Predictor, read_prompts
from medclip_dcl.tables import TableFormat, read_table
from medclip_dcl.text.sentences import SENTENCES, normalise_text, text_key

SEED = 0
"""Seed of the images that are drawn and of the resamples. It is not the config's, so that runs
of several seeds are asked the same and can be compared patient by patient."""

_NO_IMAGES = "the split has no image"
_NO_BOXES = "the source has no boxes on these images"
_IMAGE_QUESTIONS = (
    *("zero_shot", "classes", "probe"),
    *("probabilities", "subgroups", "paraphrases"),
)
_BOX_QUESTIONS = ("grounding", "boxes", "gallery")


@dataclass
class Answers:
    """What has been answered: an outcome per question, and the rows behind them."""

    outcomes: dict[str, EvalResult] = field(default_factory=dict)
    tables: dict[TableFormat, Rows] = field(
        default_factory=lambda: {
            form: []
            for form in (
                *(results.SCORES, results.PROMPTS, results.CLASSES, results.PROBES),
                *(results.GALLERY, results.GROUNDINGS, results.BOX_ANSWERS, results.RANKS),
            )
        }
    )
    truth: str = "none"
    """Where the labels come from: `exact`, `labels` or `none`."""


@dataclass(frozen=True)
class Evaluation:
    """A model and what it is evaluated on.

    Attributes:
        config: the recipe.
        model: who is asked.
        source: the manifest.
        images: the prepared images.
        sentences: the artifact of the sentences.
    """

    config: Config
    model: EvaluatedModel
    source: Artifact
    images: PreparedImages
    sentences: Artifact

    @property
    def bootstrap(self) -> BootstrapOptions:
        """How intervals are drawn."""
        return BootstrapOptions(self.config.evaluate.bootstrap, SEED)

    def put_questions(self, rows: Rows) -> tuple[EncodedImages, Answers]:
        """Put every question to the model.

        Args:
            rows: the manifest's rows of the evaluated images.

        Returns:
            The encoded images and the answers. A question that the data cannot put is named
            with the reason.

        Raises:
            ConfigError: a file that the config names cannot be read.
        """
        encoded = self.encode(rows)
        answers = Answers(dict.fromkeys(_IMAGE_QUESTIONS, EvalResult(_NO_IMAGES)))
        findings = read_prompts(question_files(self.config)["prompts"])
        truth, answers.truth = self.truth_of(rows, findings)
        if rows:
            self._ask_findings(answers, encoded, rows, findings, truth)
            self._ask_probe(answers, encoded, findings, truth)
        self._ask_boxes(answers, encoded)
        self._ask_reports(answers, encoded, rows)
        return encoded, answers

    def encode(self, rows: Rows) -> EncodedImages:
        """Show images to the model, in the config's geometry."""
        return inputs.encode(self.model, rows, self.images, self.config.evaluate.geometry)

    def truth_of(self, rows: Rows, findings: Sequence[Finding]) -> tuple[Truth, str]:
        """Look up which findings images show, and where that comes from."""
        return inputs.truth_of(self.source, source_root(self.config), rows, findings)

    def _ask_findings(
        self,
        answers: Answers,
        encoded: EncodedImages,
        rows: Rows,
        findings: Sequence[Finding],
        truth: Truth,
    ) -> None:
        """Ask for findings, one of several, in groups, as probabilities and in other words."""
        settings, outcomes, tables = self.config.evaluate, answers.outcomes, answers.tables
        drawn = inputs.balance(truth, settings.images_per_finding, self.bootstrap.generator())
        outcomes["zero_shot"], scores = evaluate_findings(
            self.model, encoded, findings, drawn, self.bootstrap
        )
        margins = np.array([row["margin"] for row in scores], dtype=np.float64)
        margins = margins.reshape(len(findings), -1)
        encoders = self.model.encoders
        own = encoders if isinstance(encoders, Predictor) else None
        outcomes["probabilities"], said = evaluate_probabilities(
            None if own is None else own.calibration,
            (findings, () if own is None else own.findings),
            self.model.gamma_squared * margins,
            truth,
            encoded,
            self.bootstrap,
        )
        for row, value in zip(scores, [value for line in said for value in line], strict=True):
            row["probability"] = value
        tables[results.SCORES] = scores
        outcomes["classes"], tables[results.CLASSES] = evaluate_classes(
            self.model, encoded, findings, truth, self.bootstrap
        )
        files = question_files(self.config)
        traits = {"view": [row["view"] for row in rows]}
        if "demographics.table" in files:
            table = files["demographics.table"]
            traits |= read_demographics(table, settings.demographics, rows)
        outcomes["subgroups"] = evaluate_subgroups(
            margins, drawn, encoded.subject_ids, traits, self.bootstrap
        )
        outcomes["paraphrases"] = EvalResult("there are no paraphrases; set evaluate.paraphrases")
        if "paraphrases" in files:
            other = read_prompts(files["paraphrases"])
            outcomes["paraphrases"], tables[results.PROMPTS] = evaluate_paraphrases(
                self.model, encoded, other, self.truth_of(rows, other)[0], self.bootstrap
            )

    def _ask_probe(
        self, answers: Answers, encoded: EncodedImages, findings: Sequence[Finding], truth: Truth
    ) -> None:
        """Fit probes on training images; validation images choose their penalty."""
        most = self.config.evaluate.probe_images
        answers.outcomes["probe"] = EvalResult("evaluate.probe_images is 0")
        if not most:
            return
        splits = []
        for name in ("train", "validate"):
            rows = inputs.read_image_rows(self.source, self.images, name)
            if len(rows) > most:
                chosen = self.bootstrap.generator().choice(len(rows), most, replace=False)
                rows = [rows[index] for index in sorted(chosen.tolist())]
            splits.append((self.encode(rows), self.truth_of(rows, findings)[0]))
        answers.outcomes["probe"], answers.tables[results.PROBES] = evaluate_probe(
            [*splits, (encoded, truth)],
            findings,
            self.config.evaluate.probe_fractions,
            self.bootstrap,
        )

    def _ask_boxes(self, answers: Answers, encoded: EncodedImages) -> None:
        """Compare heatmaps with boxes, and find the sentences of boxes."""
        outcomes, tables = answers.outcomes, answers.tables
        outcomes |= dict.fromkeys(_BOX_QUESTIONS, EvalResult(_NO_BOXES))
        gallery = self._gallery()
        tables[results.GALLERY] = [{"finding": name, "sentence": text} for name, text in gallery]
        if manifest.BOXES.file not in self.source.files:
            return
        boxes = read_table(self.source.path, manifest.BOXES).to_pylist()
        keys = [text_key(row["phrase"]) for row in boxes]
        units = inputs.boxed_sentences(boxes, encoded, keys)
        if not units:
            return
        outcomes["grounding"], tables[results.GROUNDINGS] = evaluate_grounding(
            self.model, encoded, units, self.config.evaluate.heatmap_px, self.bootstrap
        )
        outcomes["boxes"], found, tables[results.RANKS], vectors = evaluate_boxes(
            self.model, encoded, units, self.bootstrap
        )
        tables[results.BOX_ANSWERS] = found
        outcomes["gallery"] = EvalResult("there is no gallery; set evaluate.gallery")
        if gallery:
            index_of = {text_key(text): row for row, (_, text) in enumerate(gallery)}
            truth = [index_of.get(row["phrase_key"]) for row in found]
            texts = [text for _, text in gallery]
            outcomes["gallery"] = evaluate_gallery(
                self.model, vectors, found, texts, truth, self.bootstrap
            )

    def _gallery(self) -> list[tuple[str, str]]:
        """Finding and sentence of each line; the finding is the line itself if nobody names it."""
        file = question_files(self.config).get("gallery")
        if file is None:
            known = read_truth(source_root(self.config))
            return [] if known is None else list(known.gallery.items())
        lines = [normalise_text(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [(line, line) for line in dict.fromkeys(lines) if line]

    def _ask_reports(self, answers: Answers, encoded: EncodedImages, rows: Rows) -> None:
        """Find the report of each image, and an image of each report."""
        pool = self.config.evaluate.retrieval_pool
        said = read_table(self.sentences.path, SENTENCES, ["study_id", "text"])
        study_ids = [row["study_id"] for row in rows]
        said = said.filter(pc.is_in(said.column("study_id"), pa.array(study_ids, pa.string())))
        chosen, reports = inputs.reports_of_images(
            study_ids, said.to_pylist(), pool, self.bootstrap.generator()
        )
        if len(chosen) < 2:
            reason = (
                "fewer than two images have a report" if pool else "evaluate.retrieval_pool is 0"
            )
            answers.outcomes["reports"] = EvalResult(reason)
            return
        answers.outcomes["reports"], ranks = evaluate_reports(
            self.model, encoded.select(chosen), reports, self.bootstrap
        )
        answers.tables[results.RANKS] += ranks


def source_root(config: Config) -> Path:
    """Give the folder of the config's source."""
    return resolve_path(config.source.root, config)


def question_files(config: Config) -> Mapping[str, Path]:
    """List the files that `evaluate` names, by the setting below it.

    Raises:
        ConfigError: one is not a file.
    """
    settings = config.evaluate
    named: dict[str, Any] = {
        "prompts": settings.prompts,
        "gallery": settings.gallery,
        "paraphrases": settings.paraphrases,
        "demographics.table": settings.demographics.table,
    }
    files = {
        name: resolve_path(path, config)
        for name, path in named.items()
        if path or name == "prompts"
    }
    for name, path in files.items():
        if not path.is_file():
            raise ConfigError(f"evaluate.{name} names {path}, which is not a file")
    return files


def input_files(config: Config) -> dict[str, Path]:
    """List the files that an evaluation reads besides artifacts, by their names as inputs."""
    named = {f"evaluate.{name}": file for name, file in question_files(config).items()}
    return named | {file.name: file for file in truth_files(source_root(config))}
