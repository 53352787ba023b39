"""Questions about whole films: which findings they show, which report is theirs.

Every question gives an `Outcome` for `results.json`; questions about findings also give
the rows that it was made from.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Int8

from medclip_dcl.metrics import summary
from medclip_dcl.metrics.recall import best_ranks
from medclip_dcl.tasks.outcome import LENGTHS, Films, Outcome, Sampling
from medclip_dcl.tasks.predictor import Predictor
from medclip_dcl.tasks.prompts import Finding
from medclip_dcl.tasks.retrieval import report_scores
from medclip_dcl.tasks.zero_shot import softmax_scores


def examine_findings(
    predictor: Predictor,
    films: Films,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings films"],
    sampling: Sampling,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Ask for findings by prompt pairs.

    Args:
        predictor: the model.
        films: the films.
        findings: the prompt pairs.
        truth: 1 present, 0 absent, `summary.UNKNOWN` not known.
        sampling: of the intervals.

    Returns:
        The outcome and the rows of `results.SCORES`.

    Source: Wang et al. 2023, Section 3.3 and Table 2.
    """
    margin = predictor.margins(films.regions, findings)
    score = softmax_scores(margin, predictor.model.gamma.detach()).cpu().numpy()
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
            "truth": None if truth[row, film] == summary.UNKNOWN else int(truth[row, film]),
        }
        for row, finding in enumerate(findings)
        for film in range(len(films.image_ids))
    ]
    absent = "no film has a label" if (truth == summary.UNKNOWN).all() else ""
    pool = {"films": len(films.image_ids), "findings": len(findings)}
    chance = {"mean_auc": 0.5, "mean_balanced_accuracy": 0.5}
    return Outcome(absent, pool, chance, mean, groups), rows


def examine_reports(
    predictor: Predictor,
    films: Films,
    reports: Sequence[Sequence[str]],
    sampling: Sampling,
) -> Outcome:
    """Find the report of each film among all, and a film of each report among all.

    Args:
        predictor: the model.
        films: the films.
        reports: sentences of each film's report, at least one each.
        sampling: of the intervals.

    Returns:
        The outcome. Reports that consist of the same sentences are one item, and any film
        of theirs answers them.

    Source: ours; a report scores the mean of its sentences' image-sentence scores.
    """
    texts = sorted({text for report in reports for text in report})
    row_of = {text: row for row, text in enumerate(texts)}
    sayings = [(row_of[text], number) for number, report in enumerate(reports) for text in report]
    text, report = torch.tensor(sayings, device=films.regions.device).unbind(dim=1)
    with torch.inference_mode():
        sentence_scores = predictor.model.score(films.regions, predictor.embed_sentences(texts))
        scores = report_scores(sentence_scores, text, report, len(reports)).cpu().numpy()
    number = _number_reports(reports)
    distinct, first = np.unique(number, return_index=True)
    own = number[:, None] == distinct[None, :]
    same = number[:, None] == number[None, :]
    asked = {"film_to_report": (scores[first].T, own), "report_to_film": (scores, same)}
    draw = (LENGTHS, films.subject_ids, sampling.samples)
    groups = {
        name: summary.rank_figures(best_ranks(*pair), *draw, sampling.generator())
        for name, pair in asked.items()
    }
    pool = {"report_to_film": len(reports), "film_to_report": len(distinct)}
    chance = summary.chance_levels({name: correct for name, (_, correct) in asked.items()}, LENGTHS)
    return Outcome("", pool, chance, {}, groups)


def _number_reports(reports: Sequence[Sequence[str]]) -> Int[np.ndarray, " reports"]:
    """Number reports so that those of the same sentences share a number."""
    names: dict[tuple[str, ...], int] = {}
    return np.array([names.setdefault(tuple(sorted(set(r))), len(names)) for r in reports])
