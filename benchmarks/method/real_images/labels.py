"""Children's images, with pneumonia or without: prompts, probes, and what needs no model.

Every AUC of a fitted classifier is the mean of five, each of a fifth of the patients: three
fifths fit it, another one chooses its penalty.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int8, Int64, UInt8

from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.table_files import read_rows
from medclip_dcl.errors import QueryError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.classification import UNKNOWN, evaluate_findings, mean_finding_figures
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.probe import Labelled, linear_probe
from medclip_dcl.inference.prompts import Finding

FOLDS = 5
THUMBNAIL_PX = 32

Features = Float[np.ndarray, "images features"]
Labels = Int64[np.ndarray, " images"]


@dataclass(frozen=True)
class LabelledImages:
    """Images whose label is known."""

    image_ids: tuple[str, ...]
    """The files' names."""
    subject_ids: tuple[str, ...]
    """Patient of each image."""
    labels: Labels
    """1 pneumonia, 0 normal."""
    pixels: UInt8[np.ndarray, "images size size"]
    """Prepared images."""
    thumbnails: Features
    """32 x 32 grey levels of each, 0 to 255."""
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each file."""


def read_labelled_images(folder: Path, settings: ImagesConfig) -> LabelledImages:
    """Decode the images of a folder with a manifest through the gate.

    `manifest.csv` has `file`, `label` (`normal` or another) and `patient_id`. ImageError where an
    image is refused; StudyError where the manifest is missing or lacks a column.
    """
    rows = read_rows(folder / "manifest.csv", ["file", "label", "patient_id"])
    with Decoder(settings, 1) as decoder:
        squares = [
            decoder.square(folder / name, settings.size_px, equalize=settings.equalize)
            for name in rows["file"]
        ]
        small = [
            decoder.square(folder / name, THUMBNAIL_PX, equalize=False).pixels.ravel()
            for name in rows["file"]
        ]
    return LabelledImages(
        image_ids=tuple(rows["file"]),
        subject_ids=tuple(rows["patient_id"]),
        labels=np.array([name != "normal" for name in rows["label"]], dtype=np.int64),
        pixels=np.stack([image.pixels for image in squares]),
        thumbnails=np.stack(small).astype(np.float64),
        sizes_px=tuple((image.height_px, image.width_px) for image in squares),
    )


def finding_of(findings: Iterable[Finding], label: str) -> Finding:
    """Choose the finding that is judged by a label.

    QueryError where the model was published without one.
    """
    for finding in findings:
        if finding.label == label:
            return finding
    raise QueryError(f"the model was published without prompts of label {label!r}; train one with")


def zero_shot_auc(
    model: EvaluatedModel,
    images: EncodedImages,
    finding: Finding,
    labels: Labels,
    bootstrap: BootstrapOptions,
) -> Figure:
    """Ask for a finding by its prompts: AUC of present (1) against absent (0)."""
    truth: Int8[np.ndarray, "1 images"] = labels[None].astype(np.int8)
    outcome, _ = evaluate_findings(model, images, [finding], truth, bootstrap)
    return outcome.groups[finding.name]["auc"]


def split_patients(
    labels: Labels, subjects: Iterable[str], generator: np.random.Generator
) -> Int64[np.ndarray, " images"]:
    """Deal patients into folds 0 to 4, those of each label in turn.

    All images of a patient are in one fold; a patient counts for the class of the first.
    """
    _, first, owner = np.unique(np.array(list(subjects)), return_index=True, return_inverse=True)
    order = generator.permutation(len(first))
    order = order[np.argsort(labels[first[order]], kind="stable")]
    fold = np.empty(len(first), dtype=np.int64)
    fold[order] = np.arange(len(first)) % FOLDS
    return fold[owner]


def probed_auc(
    features: Features,
    labels: Labels,
    folds: Int64[np.ndarray, " images"],
    subjects: Iterable[str],
    bootstrap: BootstrapOptions,
) -> Figure:
    """Read a label from features by logistic regression, on patients that did not fit it.

    Gives the mean AUC over the folds of `split_patients`; the classifiers stay as they are in the
    bootstrap. MetricError where a fold lacks one of the classes.
    """
    margins = np.zeros((FOLDS, len(labels)))
    truth = np.full((FOLDS, len(labels)), UNKNOWN, dtype=np.int8)
    patients = list(subjects)
    known = Labelled(features.astype(np.float64), labels, patients)
    for fold in range(FOLDS):
        judged = folds == fold
        margins[fold, judged], _ = linear_probe(
            known.take(np.flatnonzero(~judged)), known.features[judged]
        )
        truth[fold, judged] = labels[judged]
    figures = mean_finding_figures(margins, truth, patients, bootstrap)
    return figures["mean_auc"]


def shuffled_aucs(
    features: Features, labels: Labels, folds: Int64[np.ndarray, " images"], times: int, seed: int
) -> Float[np.ndarray, " times"]:
    """Do what `probed_auc` does with labels that mean nothing; the AUC of each of `times` deals.

    Labels are dealt again to the images of each fold, so that the classes stay even.
    """
    generator = np.random.default_rng(seed)
    names = [str(image) for image in range(len(labels))]
    found = []
    for _ in range(times):
        dealt = labels.copy()
        for fold in range(FOLDS):
            rows = np.flatnonzero(folds == fold)
            dealt[rows] = generator.permutation(labels[rows])
        found.append(probed_auc(features, dealt, folds, names, BootstrapOptions(0, 0)).value)
    return np.array(found, dtype=np.float64)
