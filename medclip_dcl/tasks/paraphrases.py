"""How much the findings depend on the words that ask for them."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int8

from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.metrics.classification import balanced_accuracy, roc_auc
from medclip_dcl.metrics.resampled import resampled_auc, resampled_balanced_accuracy
from medclip_dcl.metrics.sampled import draw_weights, sampled_figure
from medclip_dcl.metrics.summary import UNKNOWN
from medclip_dcl.tasks.examinee import Examinee
from medclip_dcl.tasks.outcome import Films, Outcome, Sampling
from medclip_dcl.tasks.prompts import Finding

_MEASURES = {"auc": roc_auc, "balanced_accuracy": balanced_accuracy}
_RESAMPLED = {"auc": resampled_auc, "balanced_accuracy": resampled_balanced_accuracy}


def prompt_pairs(finding: Finding) -> list[tuple[str, str]]:
    """Pair every positive prompt of a finding with every negative one.

    Args:
        finding: with one prompt a side or more.

    Returns:
        Positive and negative prompt of each pair, positive prompts first to last.
    """
    return list(product(finding.positive, finding.negative))


def examine_paraphrases(
    model: Examinee,
    films: Films,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings films"],
    sampling: Sampling,
) -> tuple[Outcome, list[dict[str, Any]]]:
    """Ask for findings in every pairing of paraphrases.

    Args:
        model: who is asked.
        films: the films.
        findings: with several prompts a side.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        sampling: of the intervals.

    Returns:
        The outcome and the rows of `results.PROMPTS`. Groups are the findings: of `auc` and
        `balanced_accuracy` the `_lowest`, `_highest` and `_spread` over the pairs, and the
        `_ensemble`, all pairs averaged; `pool` counts the pairs.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for finding, state in zip(findings, truth, strict=True):
        margins = _margins(model, films, finding)
        known = state != UNKNOWN
        owners = [name for name, keep in zip(films.subject_ids, known, strict=True) if keep]
        positive = state[known] == 1
        pool[finding.name] = len(margins) - 1
        groups[finding.name] = _spread(margins[:, known], positive, owners, sampling)
        for pair, margin in zip(prompt_pairs(finding), margins[:-1, known], strict=True):
            measured = {name: of(margin, positive) for name, of in _MEASURES.items()}
            words = {"positive": pair[0], "negative": pair[1]}
            rows.append({"finding": finding.name, **words, **measured})
    absent = "" if groups else "there is no finding"
    return Outcome(absent, pool, groups=groups), rows


def _margins(
    model: Examinee, films: Films, finding: Finding
) -> Float[np.ndarray, "pairs_and_ensemble films"]:
    """Margins of every pair, each sentence scored once; last, those of all pairs averaged."""
    texts = [*finding.positive, *finding.negative]
    scores = model.score(films.regions, model.embed_sentences(texts)).double().cpu().numpy()
    present, absent = np.split(scores, [len(finding.positive)])
    pairs = (present[:, None] - absent[None]).reshape(-1, scores.shape[1])
    return np.vstack([pairs, pairs.mean(axis=0)])


def _spread(
    margins: Float[np.ndarray, "pairs_and_ensemble films"],
    positive: Bool[np.ndarray, " films"],
    owners: list[str],
    sampling: Sampling,
) -> dict[str, Figure]:
    found: dict[str, np.ndarray] = {}
    count = sampling.samples + 1
    weights = np.zeros((count, 0), dtype=np.int64)
    if owners:
        weights = draw_weights(owners, sampling.samples, sampling.generator())
    for name, of in _RESAMPLED.items():
        values = np.stack([of(margin, positive, weights) for margin in margins])
        lowest, highest = values[:-1].min(axis=0), values[:-1].max(axis=0)
        found[f"{name}_lowest"], found[f"{name}_highest"] = lowest, highest
        found[f"{name}_spread"] = highest - lowest
        found[f"{name}_ensemble"] = values[-1]
    undefined = "no film of one of the two classes"
    return {name: sampled_figure(values, owners, undefined) for name, values in found.items()}
