"""Every question, put to a model on the test split: findings, probes, boxes, reports."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactStale, ConfigError
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.plugins import METRICS
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.records import read_truth, truth_digests
from medclip_dcl.evaluation import EvaluationConfig, decisions, results, retrieval
from medclip_dcl.evaluation.classification import (
    UNKNOWN,
    Matrix,
    PairWarning,
    Truth,
    check_pairs,
    evaluate_findings,
    exact_truth,
    labelled_truth,
)
from medclip_dcl.evaluation.evaluated_model import Embed, EncodedImages, EvaluatedModel, encode
from medclip_dcl.evaluation.grounding import HEATMAP_PX, boxed_sentences, evaluate_grounding
from medclip_dcl.evaluation.metrics import BootstrapOptions
from medclip_dcl.evaluation.probe import evaluate_probe
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference import model_package
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding, read_prompts
from medclip_dcl.text.sentences import SENTENCES, text_key

# Seed of the images that are drawn and of the resamples. It is not the config's, so that runs of
# several seeds are asked the same and can be compared patient by patient.
_SEED = 0

_NO_IMAGES, _NO_BOXES = "the split has no image", "the source has no boxes on these images"
_NO_REGIONS = "the model has no vectors of parts of an image"
_IMAGE_QUESTIONS = ("zero_shot", "decisions", "probe", "probe_decisions", "probabilities")
_BOX_QUESTIONS = ("grounding", "boxes")


def read_image_rows(source: Artifact, images: PreparedImages, split: str) -> Rows:
    """List the manifest's rows of the prepared images of a split."""
    table = read_table(source.path, manifest.IMAGES)
    table = table.filter(pc.equal(table.column("split"), split))
    return [row for row in table.to_pylist() if row["image_id"] in images.row_of]


def refuse_contaminated(
    model: Path, source: Artifact, rows: Rows, images: PreparedImages, *, allowed: bool
) -> dict[str, int | None]:
    """Count evaluated patients, and pictures of evaluated images, that the model was trained on.

    Raises:
        ArtifactStale: there are some, or the model does not say (None), and that is not `allowed`.
    """
    package = model_package.read_model_package(model)
    trained = package.subject_hashes
    if trained is None:
        if not allowed and "source" not in package.card:  # an adopted one says it nowhere
            raise ArtifactStale(
                "the model is a copy that does not say whom it was trained on; set "
                "evaluate.allow_contaminated where none of these patients can be among them"
            )
        return {"contaminated": None, "repeated_images": None}
    table = read_table(source.path, manifest.IMAGES, ["image_id", "subject_id"])
    trained_on = {
        subject
        for subject in table.column("subject_id").unique().to_pylist()
        if model_package.subject_hash(subject) in trained
    }
    learned = table.filter(pc.is_in(table.column("subject_id"), pa.array(trained_on, pa.string())))
    among = [images.row_of[i] for i in learned["image_id"].to_pylist() if i in images.row_of]
    subjects = {row["subject_id"] for row in rows}
    count = len(subjects & trained_on)
    repeated = len(images.find_repeats([images.row_of[row["image_id"]] for row in rows], among))
    if (count or repeated) and not allowed:
        raise ArtifactStale(
            f"the model was trained on {count} of {len(subjects)} evaluated patients, and on the "
            f"picture of {repeated} of {len(rows)} evaluated images; retrain it on this manifest, "
            "take out the images that check_data calls repeated, or set "
            "evaluate.allow_contaminated to measure the model's memory"
        )
    return {"contaminated": count, "repeated_images": repeated}


def truth_of(
    config: EvaluationConfig, source: Artifact, rows: Rows, findings: Sequence[Finding]
) -> tuple[Truth, str]:
    """Look up which findings images show, and where that is from: `exact`, `labels` or `none`."""
    generated = read_truth(resolve_path(config.source.root, config.work))
    if generated is not None:
        return exact_truth(findings, [row["image_id"] for row in rows], generated), "exact"
    labels = manifest.read_labels(source).to_pylist()
    truth = labelled_truth(findings, [row["study_id"] for row in rows], labels)
    return truth, "labels" if (truth != UNKNOWN).any() else "none"


def input_digests(config: EvaluationConfig) -> dict[str, str]:
    """Hash the files that an evaluation reads besides artifacts, by their names as inputs."""
    prompts = _prompts_file(config)
    named = {} if prompts is None else {"evaluate.prompts": sha256_file(prompts)}
    return named | truth_digests(resolve_path(config.source.root, config.work))


def _prompts_file(config: EvaluationConfig) -> Path | None:
    # None: a model of another run is asked what it was published with.
    settings = config.evaluate
    if settings.model and not settings.prompts:
        return None
    path = resolve_path(settings.prompts, config.work)
    if not path.is_file():
        raise ConfigError(f"evaluate.prompts names {path}, which is not a file")
    return path


class Evaluation:
    """A model, what it is evaluated on, and what came of it."""

    tables: dict[TableFormat, Rows]
    """The rows behind the figures."""
    warnings: list[PairWarning]
    """Findings whose answers should not be read."""

    def __init__(
        self,
        config: EvaluationConfig,
        model: EvaluatedModel,
        source: Artifact,
        images: PreparedImages,
        sentences: Artifact,
        findings: Sequence[Finding] = (),
    ) -> None:
        """Name what is asked about; ConfigError where a file that the config names is missing.

        `findings` are asked in place of those of `evaluate.prompts`, which is then empty.
        """
        self._config, self._model = config, model
        self._source, self._images, self._sentences = source, images, sentences
        prompts = _prompts_file(config)
        self._findings = tuple(findings) if prompts is None else read_prompts(prompts)
        self._bootstrap = BootstrapOptions(config.evaluate.bootstrap, _SEED)
        self._outcomes: dict[str, EvalResult] = {}
        self.tables = {form: [] for form in results.TABLES}
        self.warnings = []

    def put_questions(self, rows: Rows) -> dict[str, Any]:
        """Put every question to the model, about the images of the manifest's rows.

        Gives the tree of `results.json`, but for contamination.
        """
        self._outcomes |= dict.fromkeys(_IMAGE_QUESTIONS, EvalResult(_NO_IMAGES))
        encoded = self._encode(rows)
        truth, origin = self._truth(rows)
        if rows:
            margins = self._ask_findings(encoded, truth)
            held_out = self._threshold_rows(rows)
            self._ask_decisions(held_out, encoded, margins, truth)
            self._ask_probabilities(encoded, margins, truth)
            self._ask_probe(rows, held_out, truth)
        self._ask_boxes(encoded, rows)
        self._ask_reports(encoded, rows)
        own = {name: f"{name.replace('_', ' ')}, mean of findings" for name in METRICS}
        fit = self._config.images.fit
        return {
            "model": self._model.digest,
            "split": "test",
            "geometry": "whole" if fit is None else fit.how,
            "images": len(rows),
            "patients": len(set(encoded.subject_ids)),
            "truth": origin,
            **({"metrics": own} if own else {}),
            "warnings": [asdict(warning) for warning in self.warnings],
            "questions": {name: asdict(outcome) for name, outcome in self._outcomes.items()},
        }

    def _encode(self, rows: Rows, embed: Embed | None = None) -> EncodedImages:
        fit = self._config.images.fit
        return encode(embed or self._model.embed_images, rows, self._images, fit)

    def _truth(self, rows: Rows) -> tuple[Truth, str]:
        return truth_of(self._config, self._source, rows, self._findings)

    def _ask_findings(self, encoded: EncodedImages, truth: Truth) -> Matrix:
        findings, outcomes, bootstrap = self._findings, self._outcomes, self._bootstrap
        outcomes["zero_shot"], scores = evaluate_findings(
            self._model, encoded, findings, truth, bootstrap
        )
        self.warnings = check_pairs(outcomes["zero_shot"].groups)
        margins = np.array([row["margin"] for row in scores], dtype=np.float64)
        margins = margins.reshape(len(findings), -1)
        self.tables[results.SCORES] = scores
        return margins

    def _threshold_rows(self, evaluated: Rows) -> Rows:
        # A threshold that is chosen on evaluated patients would flatter the model.
        subjects = {row["subject_id"] for row in evaluated}
        rows = read_image_rows(self._source, self._images, "validate")
        rows = [row for row in rows if row["subject_id"] not in subjects]
        truth, _ = self._truth(rows)
        return rows if (truth != UNKNOWN).any() else []  # none is encoded without a label

    def _ask_decisions(
        self, held_out: Rows, encoded: EncodedImages, margins: Matrix, shown: Truth
    ) -> None:
        findings, images = self._findings, self._encode(held_out)
        truth, _ = self._truth(held_out)
        levels = np.zeros(truth.shape)
        if held_out:
            levels = self._model.margins(images.regions, findings).double().cpu().numpy()
        thresholds = [
            decisions.choose_threshold(level, state, images.subject_ids)
            for level, state in zip(levels, truth, strict=True)
        ]
        count = len(encoded.image_ids)
        for number, row in enumerate(self.tables[results.SCORES]):
            row["threshold"] = thresholds[number // count].value
        self._outcomes["decisions"] = decisions.evaluate_decisions(
            [finding.name for finding in findings],
            margins,
            shown,
            encoded.subject_ids,
            thresholds,
            self._bootstrap,
        )

    def _ask_probabilities(self, encoded: EncodedImages, margins: Matrix, truth: Truth) -> None:
        encoders = self._model.encoders
        own = encoders if isinstance(encoders, Predictor) else None
        self._outcomes["probabilities"], probabilities = decisions.evaluate_probabilities(
            None if own is None else own.calibration,
            (self._findings, () if own is None else own.findings),
            self._model.gamma_squared * margins,
            truth,
            encoded,
            self._bootstrap,
        )
        values = [value for line in probabilities for value in line]
        for row, value in zip(self.tables[results.SCORES], values, strict=True):
            row["probability"] = value

    def _ask_probe(self, evaluated: Rows, held_out: Rows, truth: Truth) -> None:
        most = self._config.evaluate.probe_images
        if not most or (truth == UNKNOWN).all():  # before thousands of images are encoded
            reason = "no image has a label; set source.labels"
            absent = EvalResult(reason if most else "evaluate.probe_images is 0")
            self._outcomes |= dict.fromkeys(("probe", "probe_decisions"), absent)
            return
        rows = read_image_rows(self._source, self._images, "train")
        if len(rows) > most:
            chosen = self._bootstrap.generator().choice(len(rows), most, replace=False)
            rows = [rows[index] for index in sorted(chosen.tolist())]
        embed, outcomes = self._model.embed_features, self._outcomes
        splits = [(self._encode(part, embed), self._truth(part)[0]) for part in (rows, held_out)]
        splits.insert(1, (self._encode(evaluated, embed), truth))
        outcomes["probe"], outcomes["probe_decisions"], self.tables[results.PROBES] = (
            evaluate_probe(splits, self._findings, self._bootstrap)
        )

    def _ask_boxes(self, encoded: EncodedImages, rows: Rows) -> None:
        outcomes, tables, bootstrap = self._outcomes, self.tables, self._bootstrap
        outcomes |= dict.fromkeys(_BOX_QUESTIONS, EvalResult(_NO_BOXES))
        if manifest.BOXES.file not in self._source.files:
            return
        own = self._model.encoders
        if isinstance(own, Predictor) and not own.has_regions:
            outcomes |= dict.fromkeys(_BOX_QUESTIONS, EvalResult(_NO_REGIONS))
            return
        boxes = read_table(self._source.path, manifest.BOXES).to_pylist()
        if self._model.has_regions_apart:
            encoded = self._encode(rows, self._model.embed_regions)
        units = boxed_sentences(boxes, encoded, [text_key(row["phrase"]) for row in boxes])
        if not units:
            return
        outcomes["grounding"], tables[results.GROUNDINGS] = evaluate_grounding(
            self._model, encoded, units, HEATMAP_PX, bootstrap
        )
        outcomes["boxes"], tables[results.RANKS] = retrieval.evaluate_boxes(
            self._model, encoded, units, bootstrap
        )

    def _ask_reports(self, encoded: EncodedImages, rows: Rows) -> None:
        pool = self._config.evaluate.retrieval_pool
        reason = "fewer than two images have a report" if pool else "evaluate.retrieval_pool is 0"
        self._outcomes["reports"] = EvalResult(reason)
        texts = read_table(self._sentences.path, SENTENCES, ["study_id", "text"])
        study_ids = [row["study_id"] for row in rows]
        texts = texts.filter(pc.is_in(texts.column("study_id"), pa.array(study_ids, pa.string())))
        chosen, reports = retrieval.reports_of_images(
            study_ids, texts.to_pylist(), pool, self._bootstrap.generator()
        )
        if len(chosen) >= 2:
            self._outcomes["reports"], ranks = retrieval.evaluate_reports(
                self._model, encoded.select(chosen), reports, self._bootstrap
            )
            self.tables[results.RANKS] += ranks
