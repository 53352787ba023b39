"""Which findings images show: each by its prompt pair, and one of several.

Every question gives an `EvalResult` for `results.json` and the rows that it was made from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int8

from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure, Samples, Weights, estimate
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import (
    UNKNOWN,
    EncodedImages,
    EvalResult,
    Matrix,
    Rows,
    Truth,
)
from medclip_dcl.evaluation.metrics import CLASSIFICATION, mean, mean_of, mean_over_findings
from medclip_dcl.inference import Finding, softmax_scores

ONE_CLASS = "no image of one of the two classes"
NO_FINDING = "no finding has images of both classes"

PER_CLASS = 200
"""Most images of a class where images show one finding alone: that of CheXpert5x200."""


def evaluate_findings(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Ask for findings by prompt pairs.

    Args:
        model: who is asked.
        images: the images.
        findings: the prompt pairs.
        truth: 1 present, 0 absent, `UNKNOWN` not known.
        bootstrap: of the intervals.

    Returns:
        The outcome and the rows of `results.SCORES`, by finding, then image.

    Source: Wang et al. 2023, Section 3.3 and Table 2.
    """
    margin = model.margins(images.regions, findings)
    score = softmax_scores(margin, torch.tensor(model.gamma_squared).sqrt()).cpu().numpy()
    margins = margin.cpu().numpy().astype(np.float64)
    groups = {
        finding.name: finding_figures(margins[row], truth[row], images.subject_ids, bootstrap)
        for row, finding in enumerate(findings)
    }
    mean_figures = mean_finding_figures(margins, truth, images.subject_ids, bootstrap)
    rows = [
        {
            "image_id": images.image_ids[image],
            "subject_id": images.subject_ids[image],
            "finding": finding.name,
            "margin": float(margins[row, image]),
            "score": float(score[row, image]),
            "probability": None,
            "truth": None if truth[row, image] == UNKNOWN else int(truth[row, image]),
        }
        for row, finding in enumerate(findings)
        for image in range(len(images.image_ids))
    ]
    absent = "no image has a label" if (truth == UNKNOWN).all() else ""
    pool = {"images": len(images.image_ids), "findings": len(findings)}
    chance = {"mean_auc": 0.5, "mean_balanced_accuracy": 0.5}
    return EvalResult(absent, pool, chance, mean_figures, groups), rows


def finding_figures(
    margins: Float[np.ndarray, " images"],
    truth: Int8[np.ndarray, " images"],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """Measure `auc`, `accuracy` and `balanced_accuracy` of one finding.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
        bootstrap: of the intervals.
    """
    known = truth != UNKNOWN
    margin, positive = margins[known], truth[known] == 1
    owners = [owner for owner, keep in zip(subjects, known, strict=True) if keep]

    def measure(weights: Weights) -> dict[str, Samples]:
        return {name: of(margin, positive, weights) for name, of in CLASSIFICATION.items()}

    return estimate(measure, owners, bootstrap, ONE_CLASS)


def mean_finding_figures(
    margins: Matrix, truth: Truth, subjects: Sequence[str], bootstrap: BootstrapOptions
) -> dict[str, Figure]:
    """Average the figures of several findings, drawing their images together.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
        bootstrap: of the intervals.

    Returns:
        The figures of `metrics.mean_over_findings`.
    """

    def measure(weights: Weights) -> dict[str, Samples]:
        return mean_over_findings(
            (margin[state != UNKNOWN], state[state != UNKNOWN] == 1, weights[:, state != UNKNOWN])
            for margin, state in zip(margins, truth, strict=True)
        )

    return estimate(measure, subjects, bootstrap, NO_FINDING)


def evaluate_classes(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
    per_class: int = PER_CLASS,
) -> tuple[EvalResult, Rows]:
    """Ask which one of several findings an image shows, of images that show one alone.

    Args:
        model: who is asked.
        images: the images.
        findings: the classes, by their positive prompts.
        truth: 1 present, 0 absent, `UNKNOWN` not known.
        bootstrap: of the intervals and the draw.
        per_class: most images of a class, drawn with the seed.

    Returns:
        The outcome and the rows of `results.CLASSES`. An image whose best two classes score
        alike is wrong.

    Source: Huang et al. 2021 (GLoRIA), CheXpert5x200: images that show one of five findings
        and no other, 200 of each. Ours: a finding that nobody stated counts as not shown.
    """
    chosen, shown = _exclusive(truth, per_class, bootstrap.generator())
    classes = [index for index in range(len(findings)) if (shown == index).any()]
    if len(classes) < 2:
        return EvalResult("fewer than two findings have images that show nothing else"), []
    texts = [text for finding in findings for text in finding.positive]
    sizes = [len(finding.positive) for finding in findings]
    scores = model.score(images.select(chosen).regions, model.embed_sentences(texts))
    means = torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sizes)])
    found = _sole_best(means[classes].cpu().numpy().T)
    answers = np.array([classes[index] if index >= 0 else -1 for index in found])
    subjects = [images.subject_ids[image] for image in chosen]
    figures, recalls = class_figures(answers, shown, classes, subjects, bootstrap)
    rows = [
        {
            "image_id": images.image_ids[image],
            "subject_id": images.subject_ids[image],
            "finding": findings[index].name,
            "answer": findings[answer].name if answer >= 0 else None,
        }
        for image, index, answer in zip(chosen, shown.tolist(), answers.tolist(), strict=True)
    ]
    groups = {findings[index].name: {"recall": recalls[index]} for index in classes}
    chance = {"accuracy": 1 / len(classes), "mean_recall": 1 / len(classes)}
    pool = {"images": len(chosen), "classes": len(classes)}
    return EvalResult("", pool, chance, figures, groups), rows


def class_figures(
    answers: Int[np.ndarray, " images"],
    shown: Int[np.ndarray, " images"],
    classes: Sequence[int],
    subjects: Sequence[str],
    bootstrap: BootstrapOptions,
) -> tuple[dict[str, Figure], dict[int, Figure]]:
    """Measure answers to a question with several classes.

    Args:
        answers: class that each image was given; -1: none.
        shown: class of each image.
        classes: the classes that are asked for.
        subjects: patient of every image.
        bootstrap: of the intervals.

    Returns:
        `accuracy` and `mean_recall`, the mean over classes of the share that is
        recognised; and that share by class. A class without an image is left out.
    """
    right = (answers == shown).astype(float)

    def measure(weights: Weights) -> dict[str, Samples]:
        recalls = class_recalls(right, shown, classes, weights)
        found = {"accuracy": mean(right, weights), "mean_recall": mean_of([*recalls.values()])}
        return found | {str(index): values for index, values in recalls.items()}

    every = estimate(measure, subjects, bootstrap, "no image of this class")
    by_class = {index: every.pop(str(index)) for index in classes}
    return every, by_class


def class_recalls(
    right: Float[np.ndarray, " images"],
    shown: np.ndarray,
    classes: Sequence[Any],
    weights: Weights,
) -> dict[Any, Samples]:
    """Give the share of each class's images that are recognised (`right` is 1, else 0)."""
    return {name: mean(right[shown == name], weights[:, shown == name]) for name in classes}


def _exclusive(
    truth: np.ndarray, per_class: int, generator: np.random.Generator
) -> tuple[list[int], np.ndarray]:
    """Draw images that show one finding alone; their numbers, ascending, and what they show."""
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
    """Number of each row's highest score; -1 where two share it."""
    best = scores.max(axis=1, keepdims=True)
    alone = (scores == best).sum(axis=1) == 1
    indices: np.ndarray = np.where(alone, scores.argmax(axis=1), -1)
    return indices
