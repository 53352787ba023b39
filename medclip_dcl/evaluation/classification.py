"""Which findings images show: each by its prompt pair, and one of several.

Every question gives an `EvalResult` for `results.json` and the rows that it was made from.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int8

from medclip_dcl.core.plugins import METRICS
from medclip_dcl.evaluation.bootstrap import (
    BootstrapOptions,
    Figure,
    Samples,
    Weights,
    estimate,
)
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel
from medclip_dcl.evaluation.metrics import (
    classification_metrics,
    mean,
    mean_of,
    mean_over_findings,
    pearson_correlation,
)
from medclip_dcl.evaluation.prompt_pairs import CORRELATION_FIGURE, LEAST_IMAGES
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.inference.zero_shot import softmax_scores

Truth = Int8[np.ndarray, "findings images"]
"""1 present, 0 absent, `UNKNOWN` not known."""

Matrix = Float[np.ndarray, "findings images"]

UNKNOWN = -1
"""Truth of a finding that is not known."""

_PER_CLASS = 200  # most images of a class that show one finding alone: that of CheXpert5x200
ONE_CLASS = "no image of one of the two classes"
_ALIKE = "one of the two prompts scores all images alike"
_NO_FINDING = "no finding has images of both classes"
SHOWN = ("auc", "balanced_accuracy", "balanced_accuracy_offset")
_MEANS = tuple(f"mean_{name}" for name in SHOWN)

Offsets = Sequence[float | None]
"""Level of each finding's margin, above which it is decided to be present; None: not known."""


def exact_truth(
    findings: Sequence[Finding],
    image_ids: Sequence[str],
    types_of: Mapping[str, Collection[str]],
    types: Collection[str],
) -> Truth:
    """Read off which findings images show, where a generator knows it.

    A finding that is not among its `types` stays unknown, and so does an image not in `types_of`.
    """
    truth = np.full((len(findings), len(image_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, image_id in enumerate(image_ids):
            if finding.name in types and image_id in types_of:
                truth[index, image] = finding.name in types_of[image_id]
    return truth


def labelled_truth(
    findings: Sequence[Finding], study_ids: Sequence[str], labels: Sequence[Mapping[str, Any]]
) -> Truth:
    """Read off which findings images show from the labels of their studies.

    Source: Wang et al. 2023 leave open what becomes of uncertain and blank; ours: dropped.
    """
    of_study = {row["study_id"]: row for row in labels}
    truth = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, study_id in enumerate(study_ids):
            label = of_study.get(study_id, {}).get(finding.label)
            if label in {0, 1}:
                truth[index, image] = label
    return truth


def balance(truth: Truth, most: int, generator: np.random.Generator) -> Truth:
    """Draw as many images with each finding as without it, `most` in all; 0: all images stay.

    The truth of images that are not drawn becomes `UNKNOWN`.

    Source: Wang et al. 2023 evaluate on about 1000 images per finding; ours: half and half.
    """
    if not most:
        return truth
    kept = np.full_like(truth, UNKNOWN)
    for state, drawn in zip(truth, kept, strict=True):
        sides = [np.flatnonzero(state == value) for value in (0, 1)]
        count = min(most // 2, *(len(side) for side in sides))
        for side in sides:
            images = generator.choice(side, count, replace=False)
            drawn[images] = state[images]
    return kept


def known_images(
    truth: Int8[np.ndarray, " images"], subjects: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return which images have a known truth; of those the truth, as bool, and the patients."""
    known = truth != UNKNOWN
    owners = [owner for owner, keep in zip(subjects, known, strict=True) if keep]
    return known, truth[known] == 1, owners


def evaluate_findings(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Ask for findings by prompt pairs; rows of `results.SCORES` by finding, then image.

    Source: Wang et al. 2023, Section 3.2 and Table 2.
    """
    sides = model.side_scores(images.regions, findings)
    margin = sides[0::2] - sides[1::2]
    scores = sides.cpu().numpy().astype(np.float64)
    offsets = model.offsets_of(findings)
    score = softmax_scores(margin, torch.tensor(model.gamma_squared).sqrt()).cpu().numpy()
    margins = margin.cpu().numpy().astype(np.float64)
    groups = {
        finding.name: finding_figures(
            margins[row], truth[row], images.subject_ids, bootstrap, offsets[row]
        )
        | pair_figures(scores[2 * row], scores[2 * row + 1], images.subject_ids, bootstrap)
        for row, finding in enumerate(findings)
    }
    mean_figures = mean_finding_figures(margins, truth, images.subject_ids, bootstrap, offsets)
    rows = [
        {
            **images.ids_of(image),
            "finding": finding.name,
            "positive": float(scores[2 * row, image]),
            "negative": float(scores[2 * row + 1, image]),
            "margin": float(margins[row, image]),
            "offset": offsets[row],
            "threshold": None,
            "score": float(score[row, image]),
            "probability": None,
            "truth": None if truth[row, image] == UNKNOWN else int(truth[row, image]),
        }
        for row, finding in enumerate(findings)
        for image in range(len(images.image_ids))
    ]
    absent = "no image has a label" if (truth == UNKNOWN).all() else ""
    pool = {"images": len(images.image_ids), "findings": len(findings)}
    chance = dict.fromkeys(_MEANS, 0.5)
    return EvalResult(absent, pool, chance, mean_figures, groups), rows


def finding_figures(
    margins: Float[np.ndarray, " images"],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
    offset: float | None = None,
) -> dict[str, Figure]:
    """Estimate what `_measure` gives over the images whose truth is known."""
    known, positive, owners = known_images(truth, subjects)
    margin = margins[known]

    def measure(weights: Weights) -> dict[str, Samples]:
        return _measure(margin, positive, weights, offset)

    return estimate(measure, owners, bootstrap, ONE_CLASS)


def pair_figures(
    positive: Float[np.ndarray, " images"],
    negative: Float[np.ndarray, " images"],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """Estimate the correlation of the scores of a finding's two prompts, over all images."""
    if len(subjects) < LEAST_IMAGES:
        reason = f"fewer than {LEAST_IMAGES} images"
        return {CORRELATION_FIGURE: Figure(None, len(subjects), len(set(subjects)), reason=reason)}

    def measure(weights: Weights) -> dict[str, Samples]:
        return {CORRELATION_FIGURE: pearson_correlation(positive, negative, weights)}

    return estimate(measure, subjects, bootstrap, _ALIKE)


def mean_finding_figures(
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
    offsets: Offsets | None = None,
) -> dict[str, Figure]:
    """Estimate what `measure_findings` gives."""
    levels = offsets or [None] * len(truth)

    def measure(weights: Weights) -> dict[str, Samples]:
        return measure_findings(margins, truth, levels, weights)

    return estimate(measure, subjects, bootstrap, _NO_FINDING)


def measure_findings(
    margins: Matrix, truth: Truth, offsets: Offsets, weights: Weights
) -> dict[str, Samples]:
    """Average the figures of several findings, as `metrics.mean_over_findings`."""
    figures = []
    for margin, state, offset in zip(margins, truth, offsets, strict=True):
        is_labelled = state != UNKNOWN
        positive = state[is_labelled] == 1
        figures.append(_measure(margin[is_labelled], positive, weights[:, is_labelled], offset))
    return mean_over_findings(figures)


def _measure(
    margins: Float[np.ndarray, " images"],
    positive: Bool[np.ndarray, " images"],
    weights: Weights,
    offset: float | None,
) -> dict[str, Samples]:
    # What is always measured of a finding, and the metrics of plugins.
    own = {name: measure(margins, positive, weights) for name, measure in METRICS.items()}
    return classification_metrics(margins, positive, weights, offset) | own


def evaluate_classes(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
    per_class: int = _PER_CLASS,
) -> tuple[EvalResult, Rows]:
    """Ask which one of several findings an image shows, of images that show one alone.

    The classes are the findings' positive prompts. An image whose best two classes have the
    same score counts as wrong.

    Source: Huang et al. 2021 (GLoRIA), CheXpert5x200: images that show one of five findings
        and no other, 200 of each. Ours: a finding whose truth is not known counts as absent.
    """
    chosen, shown = _exclusive(truth, per_class, bootstrap.generator())
    classes = [index for index in range(len(findings)) if (shown == index).any()]
    if len(classes) < 2:
        return EvalResult("fewer than two findings have images that show nothing else"), []
    texts = [text for finding in findings for text in finding.positive]
    sizes = [len(finding.positive) for finding in findings]
    asked = images.select(chosen)
    scores = model.score(asked.regions, model.embed_sentences(texts))
    means = torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sizes)])
    found = _sole_best(means[classes].cpu().numpy().T)
    answers = np.array([classes[index] if index >= 0 else -1 for index in found])
    subjects = [images.subject_ids[image] for image in chosen]
    every = estimate(
        lambda weights: measure_classes(answers == shown, shown, classes, weights),
        subjects,
        bootstrap,
        "no image of this class",
    )
    groups = {findings[index].name: {"recall": every.pop(f"{index}.recall")} for index in classes}
    rows = [
        {
            **images.ids_of(image),
            "finding": findings[index].name,
            "answer": findings[answer].name if answer >= 0 else None,
        }
        for image, index, answer in zip(chosen, shown.tolist(), answers.tolist(), strict=True)
    ]
    chance = {"accuracy": 1 / len(classes), "mean_recall": 1 / len(classes)}
    pool = {"images": len(chosen), "classes": len(classes)}
    return EvalResult("", pool, chance, every, groups), rows


def measure_classes(
    is_right: Bool[np.ndarray, " images"],
    shown: np.ndarray,
    classes: Sequence[Any],
    weights: Weights,
) -> dict[str, Samples]:
    """Measure `accuracy`, `CLASS.recall` of each class, and `mean_recall` over classes."""
    right = is_right.astype(float)
    recalls = {
        f"{name}.recall": mean(right[own], weights[:, own])
        for name in classes
        for own in (shown == name,)
    }
    every = {"accuracy": mean(right, weights), "mean_recall": mean_of([*recalls.values()])}
    return every | recalls


def _exclusive(
    truth: np.ndarray, per_class: int, generator: np.random.Generator
) -> tuple[list[int], np.ndarray]:
    # Images that show one finding alone: their numbers, ascending, and what they show.
    alone = (truth == 1).sum(axis=0) == 1
    chosen: list[int] = []
    for state in truth:
        images = np.flatnonzero(alone & (state == 1))
        if len(images) > per_class:
            images = generator.choice(images, per_class, replace=False)
        chosen += images.tolist()
    chosen.sort()
    return chosen, (truth[:, chosen] == 1).argmax(axis=0)


def _sole_best(scores: np.ndarray) -> Int[np.ndarray, " images"]:
    # Number of each row's highest score; -1 where two share it.
    best = scores.max(axis=1, keepdims=True)
    alone = (scores == best).sum(axis=1) == 1
    indices: np.ndarray = np.where(alone, scores.argmax(axis=1), -1)
    return indices
