"""Every question, put to a model on one split: findings, probes, boxes, reports."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ArtifactStale, ConfigError
from medclip_dcl.core.plugins import METRICS
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.records import read_truth, truth_files
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.calibration import evaluate_probabilities
from medclip_dcl.evaluation.classification import (
    UNKNOWN,
    Matrix,
    Truth,
    balance,
    evaluate_classes,
    evaluate_findings,
    exact_truth,
    labelled_truth,
)
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel, encode
from medclip_dcl.evaluation.grounding import HEATMAP_PX, boxed_sentences, evaluate_grounding
from medclip_dcl.evaluation.operating_point import (
    ThresholdRule,
    choose_thresholds,
    evaluate_decisions,
)
from medclip_dcl.evaluation.probe import FRACTIONS, evaluate_probe
from medclip_dcl.evaluation.prompt_pairs import PairWarning, check_pairs
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.evaluation.retrieval import (
    evaluate_boxes,
    evaluate_gallery,
    evaluate_reports,
    reports_of_images,
)
from medclip_dcl.evaluation.settings import EvaluationConfig
from medclip_dcl.inference import model_package
from medclip_dcl.inference.predictor import Predictor
from medclip_dcl.inference.prompts import Finding, read_prompts
from medclip_dcl.text.sentences import SENTENCES, normalise_text, text_key

# Seed of the images that are drawn and of the resamples. It is not the config's, so that runs of
# several seeds are asked the same and can be compared patient by patient.
_SEED = 0

_NO_IMAGES, _NO_BOXES = "the split has no image", "the source has no boxes on these images"
_NO_REGIONS = "the model has no vectors of parts of an image"
_IMAGE_QUESTIONS = (
    *("zero_shot", "decisions", "classes", "probe", "probe_decisions"),
    "probabilities",
)
_BOX_QUESTIONS = ("grounding", "boxes", "gallery")


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
    known = {
        subject
        for subject in table.column("subject_id").unique().to_pylist()
        if model_package.subject_hash(subject) in trained
    }
    learned = table.filter(pc.is_in(table.column("subject_id"), pa.array(known, pa.string())))
    among = [images.row_of[i] for i in learned["image_id"].to_pylist() if i in images.row_of]
    subjects = {row["subject_id"] for row in rows}
    count = len(subjects & known)
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
    known = read_truth(resolve_path(config.source.root, config.work))
    if known is not None:
        image_ids = [row["image_id"] for row in rows]
        return exact_truth(findings, image_ids, known.types_of, known.types), "exact"
    labels = manifest.read_labels(source).to_pylist()
    truth = labelled_truth(findings, [row["study_id"] for row in rows], labels)
    return truth, "labels" if (truth != UNKNOWN).any() else "none"


def input_files(config: EvaluationConfig) -> dict[str, Path]:
    """List the files that an evaluation reads besides artifacts, by their names as inputs."""
    named = {f"evaluate.{name}": file for name, file in _question_files(config).items()}
    root = resolve_path(config.source.root, config.work)
    return named | {file.name: file for file in truth_files(root)}


def _question_files(config: EvaluationConfig) -> Mapping[str, Path]:
    # By the setting below `evaluate`; the prompts are always there.
    settings = config.evaluate
    named = {
        "prompts": settings.prompts,
        "gallery": settings.gallery,
    }
    files = {
        name: resolve_path(path, config.work)
        for name, path in named.items()
        if path or (name == "prompts" and not settings.model)
    }
    for name, path in files.items():
        if not path.is_file():
            raise ConfigError(f"evaluate.{name} names {path}, which is not a file")
    return files


def _refuse_missing_features(config: EvaluationConfig, model: EvaluatedModel) -> None:
    # Before hours of encoding.
    asked = config.evaluate
    if asked.probe_images and not model.has_features:
        raise ConfigError(
            f"what {asked.adapter.model} builds has no embed_features, which a probe needs; "
            "add it, or set evaluate.probe_images=0"
        )


class Evaluation:
    """A model, what it is evaluated on, and what came of it."""

    tables: dict[TableFormat, Rows]
    """The rows behind the figures."""
    short: dict[str, int]
    """Images of each finding that has fewer than `evaluate.images_per_finding` asks for."""
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
        self._given = tuple(findings)
        self._config, self._model = config, model
        self._fit = config.images.fit
        _refuse_missing_features(config, model)
        self._source, self._images, self._sentences = source, images, sentences
        self._files = _question_files(config)
        self._bootstrap = BootstrapOptions(config.evaluate.bootstrap, _SEED)
        self._rule = ThresholdRule(config.evaluate.threshold)
        self._outcomes: dict[str, EvalResult] = {}
        self._gallery = self._read_gallery()  # before hours of encoding
        self.tables = {form: [] for form in results.TABLES}
        self.short = {}
        self.warnings = []

    def put_questions(self, rows: Rows) -> dict[str, Any]:
        """Put every question to the model, about the images of the manifest's rows.

        Gives the tree of `results.json`, but for contamination.
        """
        self._outcomes |= dict.fromkeys(_IMAGE_QUESTIONS, EvalResult(_NO_IMAGES))
        encoded = self._encode(rows)
        findings = self._given or read_prompts(self._files["prompts"])
        truth, origin = truth_of(self._config, self._source, rows, findings)
        if rows:
            margins = self._ask_findings(encoded, findings, truth)
            held_out = self._threshold_rows(rows, findings)
            self._ask_decisions(held_out, encoded, findings, margins, truth)
            self._ask_probabilities(encoded, findings, margins, truth)
            self._ask_probe(rows, held_out, findings, truth)
        self._ask_boxes(encoded, rows)
        self._ask_reports(encoded, rows)
        own = {name: f"{name.replace('_', ' ')}, mean of findings" for name in METRICS}
        return {
            "model": self._model.digest,
            "split": self._config.evaluate.split,
            "geometry": "whole" if self._fit is None else self._fit.how,
            "images": len(rows),
            "patients": len(set(encoded.subject_ids)),
            "truth": origin,
            **({"metrics": own} if own else {}),
            "warnings": [asdict(warning) for warning in self.warnings],
            "questions": {name: asdict(outcome) for name, outcome in self._outcomes.items()},
        }

    def _encode(self, rows: Rows) -> EncodedImages:
        embed = self._model.embed_images
        return encode(embed, rows, self._images, self._fit)

    def _encode_features(self, rows: Rows) -> EncodedImages:
        embed = self._model.embedding_of("encoder")
        return encode(embed, rows, self._images, self._fit)

    def _ask_findings(
        self, encoded: EncodedImages, findings: Sequence[Finding], truth: Truth
    ) -> Matrix:
        settings, outcomes, bootstrap = self._config.evaluate, self._outcomes, self._bootstrap
        drawn = balance(truth, settings.images_per_finding, bootstrap.generator())
        counts, asked = (drawn != UNKNOWN).sum(axis=1).tolist(), settings.images_per_finding // 2
        self.short = {
            item.name: n for item, n in zip(findings, counts, strict=True) if n < 2 * asked
        }
        outcomes["zero_shot"], scores = evaluate_findings(
            self._model, encoded, findings, drawn, bootstrap
        )
        self.warnings = check_pairs(outcomes["zero_shot"].groups)
        margins = np.array([row["margin"] for row in scores], dtype=np.float64)
        margins = margins.reshape(len(findings), -1)
        self.tables[results.SCORES] = scores
        outcomes["classes"], self.tables[results.CLASSES] = evaluate_classes(
            self._model, encoded, findings, truth, bootstrap
        )
        return margins

    def _threshold_rows(self, asked: Rows, findings: Sequence[Finding]) -> Rows:
        # A threshold that is chosen on evaluated patients would flatter the model.
        if self._config.evaluate.split == "validate":
            return []
        subjects = {row["subject_id"] for row in asked}
        rows = read_image_rows(self._source, self._images, "validate")
        rows = [row for row in rows if row["subject_id"] not in subjects]
        truth, _ = truth_of(self._config, self._source, rows, findings)
        return rows if (truth != UNKNOWN).any() else []  # none is encoded without a label

    def _ask_decisions(
        self,
        held_out: Rows,
        encoded: EncodedImages,
        findings: Sequence[Finding],
        margins: Matrix,
        shown: Truth,
    ) -> None:
        images = self._encode(held_out)
        truth, _ = truth_of(self._config, self._source, held_out, findings)
        levels = np.zeros(truth.shape)
        if held_out:
            levels = self._model.margins(images.regions, findings).double().cpu().numpy()
        thresholds = choose_thresholds(levels, truth, images.subject_ids, self._rule)
        most, scores = self._config.evaluate.images_per_finding, self.tables[results.SCORES]
        count = len(encoded.image_ids)
        for number, row in enumerate(scores):
            row["threshold"] = thresholds[number // count].value
        self._outcomes["decisions"] = evaluate_decisions(
            [finding.name for finding in findings],
            margins,
            balance(shown, most, self._bootstrap.generator()),
            encoded.subject_ids,
            thresholds,
            self._bootstrap,
        )

    def _ask_probabilities(
        self, encoded: EncodedImages, findings: Sequence[Finding], margins: Matrix, truth: Truth
    ) -> None:
        encoders = self._model.encoders
        own = encoders if isinstance(encoders, Predictor) else None
        # On all images: a balanced share would change how common a finding is.
        self._outcomes["probabilities"], said = evaluate_probabilities(
            None if own is None else own.calibration,
            (findings, () if own is None else own.findings),
            self._model.gamma_squared * margins,
            truth,
            encoded,
            self._bootstrap,
        )
        values = [value for line in said for value in line]
        for row, value in zip(self.tables[results.SCORES], values, strict=True):
            row["probability"] = value

    def _ask_probe(
        self,
        asked: Rows,
        held_out: Rows,
        findings: Sequence[Finding],
        truth: Truth,
    ) -> None:
        settings = self._config.evaluate
        most = settings.probe_images
        if not most or (truth == UNKNOWN).all():  # before thousands of images are encoded
            reason = "no image has a label; set source.labels"
            absent = EvalResult(reason if most else "evaluate.probe_images is 0")
            self._outcomes |= dict.fromkeys(("probe", "probe_decisions"), absent)
            return
        rows = read_image_rows(self._source, self._images, "train")
        if len(rows) > most:
            chosen = self._bootstrap.generator().choice(len(rows), most, replace=False)
            rows = [rows[index] for index in sorted(chosen.tolist())]
        encoded, learned = self._encode_features(asked), self._encode_features(rows)
        known, _ = truth_of(self._config, self._source, rows, findings)
        validation = self._encode_features(held_out)
        chosen_by, _ = truth_of(self._config, self._source, held_out, findings)
        outcomes = self._outcomes
        outcomes["probe"], outcomes["probe_decisions"], self.tables[results.PROBES] = (
            evaluate_probe(
                [(learned, known), (encoded, truth), (validation, chosen_by)],
                findings,
                FRACTIONS,
                self._bootstrap,
                self._rule,
            )
        )

    def _ask_boxes(self, encoded: EncodedImages, asked: Rows) -> None:
        outcomes, tables, bootstrap = self._outcomes, self.tables, self._bootstrap
        outcomes |= dict.fromkeys(_BOX_QUESTIONS, EvalResult(_NO_BOXES))
        gallery = self._gallery
        tables[results.GALLERY] = [{"finding": name, "sentence": text} for name, text in gallery]
        if manifest.BOXES.file not in self._source.files:
            return
        own = self._model.encoders
        if isinstance(own, Predictor) and not own.has_regions:
            outcomes |= dict.fromkeys(_BOX_QUESTIONS, EvalResult(_NO_REGIONS))
            return
        boxes = read_table(self._source.path, manifest.BOXES).to_pylist()
        if self._model.has_regions_apart:
            encoded = encode(self._model.embed_regions, asked, self._images, self._fit)
        units = boxed_sentences(boxes, encoded, [text_key(row["phrase"]) for row in boxes])
        if not units:
            return
        outcomes["grounding"], tables[results.GROUNDINGS] = evaluate_grounding(
            self._model, encoded, units, HEATMAP_PX, bootstrap
        )
        outcomes["boxes"], found, tables[results.RANKS], vectors = evaluate_boxes(
            self._model, encoded, units, bootstrap
        )
        tables[results.BOX_ANSWERS] = found
        outcomes["gallery"] = EvalResult("there is no gallery; set evaluate.gallery")
        if gallery:
            index_of = {text_key(text): row for row, (_, text) in enumerate(gallery)}
            truth = [index_of.get(row["phrase_key"]) for row in found]
            texts = [text for _, text in gallery]
            outcomes["gallery"] = evaluate_gallery(
                self._model, vectors, found, texts, truth, bootstrap
            )

    def _read_gallery(self) -> list[tuple[str, str]]:
        # Finding and sentence of each line; a line of a file is its own finding.
        file = self._files.get("gallery")
        if file is None:
            known = read_truth(resolve_path(self._config.source.root, self._config.work))
            return [] if known is None else list(known.gallery.items())
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"evaluate.gallery, {file}, cannot be read as UTF-8; save it so"
            ) from error
        lines = [normalise_text(line) for line in text.splitlines()]
        return [(line, line) for line in dict.fromkeys(lines) if line]

    def _ask_reports(self, encoded: EncodedImages, rows: Rows) -> None:
        pool = self._config.evaluate.retrieval_pool
        reason = "fewer than two images have a report" if pool else "evaluate.retrieval_pool is 0"
        self._outcomes["reports"] = EvalResult(reason)
        said = read_table(self._sentences.path, SENTENCES, ["study_id", "text"])
        study_ids = [row["study_id"] for row in rows]
        said = said.filter(pc.is_in(said.column("study_id"), pa.array(study_ids, pa.string())))
        chosen, reports = reports_of_images(
            study_ids, said.to_pylist(), pool, self._bootstrap.generator()
        )
        if len(chosen) >= 2:
            self._outcomes["reports"], ranks = evaluate_reports(
                self._model, encoded.select(chosen), reports, self._bootstrap
            )
            self.tables[results.RANKS] += ranks
