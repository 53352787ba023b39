"""Questions about whole films: which findings they show, which report is theirs.

Every question gives an `Outcome` for `results.json` and the rows that it was made from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int8

from medclip_dcl.evaluation import summary
from medclip_dcl.evaluation.evaluated_model import Examinee
from medclip_dcl.evaluation.inputs import Films, Outcome, Sampling
from medclip_dcl.evaluation.retrieval import Asked, rank_directions, report_scores
from medclip_dcl.inference.zero_shot import Finding, softmax_scores


def examine_findings(
    model: Examinee,
    films: Films,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings films"],
    sampling: Sampling,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Ask for findings by prompt pairs.

    Args:
        model: who is asked.
        films: the films.
        findings: the prompt pairs.
        truth: 1 present, 0 absent, `summary.UNKNOWN` not known.
        sampling: of the intervals.

    Returns:
        The outcome and the rows of `results.SCORES`.

    Source: Wang et al. 2023, Section 3.3 and Table 2.
    """
    margin = model.margins(films.regions, findings)
    score = softmax_scores(margin, torch.tensor(model.gamma_squared).sqrt()).cpu().numpy()
    margins = margin.cpu().numpy().astype(np.float64)
    draw = (sampling.samples, sampling.generator())
    groups = {
        finding.name: summary.finding_figures(margins[row], truth[row], films.subject_ids, *draw)
        for row, finding in enumerate(findings)
    }
    mean = summary.mean_finding_figures(margins, truth, films.subject_ids, *draw)
    rows = [
        {
            "image_id": films.image_ids[film],
            "subject_id": films.subject_ids[film],
            "finding": finding.name,
            "margin": float(margins[row, film]),
            "score": float(score[row, film]),
            "probability": None,
            "truth": None if truth[row, film] == summary.UNKNOWN else int(truth[row, film]),
        }
        for row, finding in enumerate(findings)
        for film in range(len(films.image_ids))
    ]
    absent = "no film has a label" if (truth == summary.UNKNOWN).all() else ""
    pool = {"films": len(films.image_ids), "findings": len(findings)}
    chance = {"mean_auc": 0.5, "mean_balanced_accuracy": 0.5}
    return Outcome(absent, pool, chance, mean, groups), rows


def examine_classes(
    model: Examinee,
    films: Films,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings films"],
    per_class: int,
    sampling: Sampling,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Ask which one of several findings a film shows, of films that show one alone.

    Args:
        model: who is asked.
        films: the films.
        findings: the classes, by their positive prompts.
        truth: 1 present, 0 absent, `summary.UNKNOWN` not known.
        per_class: most films of a class, drawn with the seed; 0: the question is left out.
        sampling: of the intervals and the draw.

    Returns:
        The outcome and the rows of `results.CLASSES`. A film whose best two classes score
        alike is wrong.

    Source: Huang et al. 2021 (GLoRIA), CheXpert5x200: films that show one of five findings
        and no other, 200 of each. Ours: a finding that nobody stated counts as not shown.
    """
    if not per_class:
        return Outcome("evaluate.per_class is 0"), []
    chosen, shown = _exclusive(truth, per_class, sampling.generator())
    classes = [place for place in range(len(findings)) if (shown == place).any()]
    if len(classes) < 2:
        return Outcome("fewer than two findings have films that show nothing else"), []
    texts = [text for finding in findings for text in finding.positive]
    sizes = [len(finding.positive) for finding in findings]
    scores = model.score(films.select(chosen).regions, model.embed_sentences(texts))
    means = torch.stack([part.mean(dim=0) for part in torch.split_with_sizes(scores, sizes)])
    found = _sole_best(means[classes].cpu().numpy().T)
    answers = np.array([classes[place] if place >= 0 else -1 for place in found])
    subjects = [films.subject_ids[film] for film in chosen]
    figures, recalls = summary.class_figures(
        answers, shown, classes, subjects, sampling.samples, sampling.generator()
    )
    rows = [
        {
            "image_id": films.image_ids[film],
            "subject_id": films.subject_ids[film],
            "finding": findings[place].name,
            "answer": findings[answer].name if answer >= 0 else None,
        }
        for film, place, answer in zip(chosen, shown.tolist(), answers.tolist(), strict=True)
    ]
    groups = {findings[place].name: {"recall": recalls[place]} for place in classes}
    chance = {"accuracy": 1 / len(classes), "mean_recall": 1 / len(classes)}
    pool = {"films": len(chosen), "classes": len(classes)}
    return Outcome("", pool, chance, figures, groups), rows


def examine_reports(
    model: Examinee,
    films: Films,
    reports: Sequence[Sequence[str]],
    sampling: Sampling,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Find the report of each film among all, and a film of each report among all.

    Args:
        model: who is asked.
        films: the films.
        reports: sentences of each film's report, at least one each.
        sampling: of the intervals.

    Returns:
        The outcome and the rows of `results.RANKS`. Reports that consist of the same
        sentences read alike.

    Source: ours; a report scores the mean of its sentences' image-sentence scores.
    """
    texts = sorted({text for report in reports for text in report})
    row_of = {text: row for row, text in enumerate(texts)}
    sayings = [(row_of[text], number) for number, report in enumerate(reports) for text in report]
    text, report = torch.tensor(sayings, device=films.regions.device).unbind(dim=1)
    sentence_scores = model.score(films.regions, model.embed_sentences(texts))
    scores = report_scores(sentence_scores, text, report, len(reports)).cpu().numpy()
    number = _number_reports(reports)
    distinct, first = np.unique(number, return_index=True)
    alike = number[:, None] == number[None, :]
    own = np.eye(len(reports), dtype=bool)
    asked = {
        "film_to_report": Asked(
            scores[first].T, number[:, None] == distinct[None, :], scores.T, own
        ),
        "report_to_film": Asked(scores, alike, scores, own),
    }
    return rank_directions("reports", asked, films.image_ids, films.subject_ids, sampling)


def _exclusive(
    truth: np.ndarray, per_class: int, generator: np.random.Generator
) -> tuple[list[int], np.ndarray]:
    """Draw films that show one finding alone; their numbers, ascending, and what they show."""
    alone = (truth == 1).sum(axis=0) == 1
    chosen: list[int] = []
    for state in truth:
        films = np.flatnonzero(alone & (state == 1))
        if len(films) > per_class:
            films = generator.choice(films, per_class, replace=False)
        chosen += films.tolist()
    chosen.sort()
    return chosen, (truth[:, chosen] == 1).argmax(axis=0)


def _sole_best(scores: np.ndarray) -> Int[np.ndarray, " films"]:
    """Place of each row's highest score; -1 where two share it."""
    best = scores.max(axis=1, keepdims=True)
    alone = (scores == best).sum(axis=1) == 1
    places: np.ndarray = np.where(alone, scores.argmax(axis=1), -1)
    return places


def _number_reports(reports: Sequence[Sequence[str]]) -> Int[np.ndarray, " reports"]:
    """Number reports so that those of the same sentences share a number."""
    names: dict[tuple[str, ...], int] = {}
    return np.array([names.setdefault(tuple(sorted(set(r))), len(names)) for r in reports])
