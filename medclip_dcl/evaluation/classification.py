"""Questions about whole images: which findings they show, which report is theirs.

Every question gives an `EvalResult` for `results.json` and the rows that it was made from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int8

from medclip_dcl.evaluation import summary
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import BootstrapOptions, EncodedImages, EvalResult
from medclip_dcl.evaluation.retrieval import Asked, rank_directions, report_scores
from medclip_dcl.inference.zero_shot import Finding, softmax_scores


def evaluate_findings(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings images"],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Ask for findings by prompt pairs.

    Args:
        model: who is asked.
        images: the images.
        findings: the prompt pairs.
        truth: 1 present, 0 absent, `summary.UNKNOWN` not known.
        bootstrap: of the intervals.

    Returns:
        The outcome and the rows of `results.SCORES`.

    Source: Wang et al. 2023, Section 3.3 and Table 2.
    """
    margin = model.margins(images.regions, findings)
    score = softmax_scores(margin, torch.tensor(model.gamma_squared).sqrt()).cpu().numpy()
    margins = margin.cpu().numpy().astype(np.float64)
    draw = (bootstrap.samples, bootstrap.generator())
    groups = {
        finding.name: summary.finding_figures(margins[row], truth[row], images.subject_ids, *draw)
        for row, finding in enumerate(findings)
    }
    mean = summary.mean_finding_figures(margins, truth, images.subject_ids, *draw)
    rows = [
        {
            "image_id": images.image_ids[image],
            "subject_id": images.subject_ids[image],
            "finding": finding.name,
            "margin": float(margins[row, image]),
            "score": float(score[row, image]),
            "probability": None,
            "truth": None if truth[row, image] == summary.UNKNOWN else int(truth[row, image]),
        }
        for row, finding in enumerate(findings)
        for image in range(len(images.image_ids))
    ]
    absent = "no image has a label" if (truth == summary.UNKNOWN).all() else ""
    pool = {"images": len(images.image_ids), "findings": len(findings)}
    chance = {"mean_auc": 0.5, "mean_balanced_accuracy": 0.5}
    return EvalResult(absent, pool, chance, mean, groups), rows


def evaluate_classes(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings images"],
    per_class: int,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Ask which one of several findings an image shows, of images that show one alone.

    Args:
        model: who is asked.
        images: the images.
        findings: the classes, by their positive prompts.
        truth: 1 present, 0 absent, `summary.UNKNOWN` not known.
        per_class: most images of a class, drawn with the seed; 0: the question is left out.
        bootstrap: of the intervals and the draw.

    Returns:
        The outcome and the rows of `results.CLASSES`. An image whose best two classes score
        alike is wrong.

    Source: Huang et al. 2021 (GLoRIA), CheXpert5x200: images that show one of five findings
        and no other, 200 of each. Ours: a finding that nobody stated counts as not shown.
    """
    if not per_class:
        return EvalResult("evaluate.per_class is 0"), []
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
    figures, recalls = summary.class_figures(
        answers, shown, classes, subjects, bootstrap.samples, bootstrap.generator()
    )
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


def evaluate_reports(
    model: EvaluatedModel,
    images: EncodedImages,
    reports: Sequence[Sequence[str]],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Find the report of each image among all, and an image of each report among all.

    Args:
        model: who is asked.
        images: the images.
        reports: sentences of each image's report, at least one each.
        bootstrap: of the intervals.

    Returns:
        The outcome and the rows of `results.RANKS`. Reports that consist of the same
        sentences read alike.

    Source: ours; a report scores the mean of its sentences' image-sentence scores.
    """
    texts = sorted({text for report in reports for text in report})
    row_of = {text: row for row, text in enumerate(texts)}
    occurrences = [
        (row_of[text], number) for number, report in enumerate(reports) for text in report
    ]
    text, report = torch.tensor(occurrences, device=images.regions.device).unbind(dim=1)
    sentence_scores = model.score(images.regions, model.embed_sentences(texts))
    scores = report_scores(sentence_scores, text, report, len(reports)).cpu().numpy()
    number = _number_reports(reports)
    distinct, first = np.unique(number, return_index=True)
    alike = number[:, None] == number[None, :]
    own = np.eye(len(reports), dtype=bool)
    asked = {
        "image_to_report": Asked(
            scores[first].T, number[:, None] == distinct[None, :], scores.T, own
        ),
        "report_to_image": Asked(scores, alike, scores, own),
    }
    return rank_directions("reports", asked, images.image_ids, images.subject_ids, bootstrap)


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
    """Place of each row's highest score; -1 where two share it."""
    best = scores.max(axis=1, keepdims=True)
    alone = (scores == best).sum(axis=1) == 1
    indices: np.ndarray = np.where(alone, scores.argmax(axis=1), -1)
    return indices


def _number_reports(reports: Sequence[Sequence[str]]) -> Int[np.ndarray, " reports"]:
    """Number reports so that those of the same sentences share a number."""
    names: dict[tuple[str, ...], int] = {}
    return np.array([names.setdefault(tuple(sorted(set(r))), len(names)) for r in reports])
