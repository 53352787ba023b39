"""Linear probes on films: what frozen features say of findings, by share of the labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.config.views import ProbeConfig
from medclip_dcl.metrics import summary
from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.metrics.linear_probe import Labelled, linear_probe
from medclip_dcl.tasks.image_probe import draw_labelled
from medclip_dcl.tasks.outcome import Films, Outcome, Sampling
from medclip_dcl.tasks.prompts import Finding

Truth = Int8[np.ndarray, "findings films"]
Rows = list[dict[str, Any]]


def film_features(films: Films) -> Float[np.ndarray, "films dim"]:
    """Give one vector of each film: the mean of its unit region vectors.

    Args:
        films: encoded films.

    Returns:
        Vectors, of length 1 at most.
    """
    features: np.ndarray = films.regions.flatten(1, 2).mean(dim=1).cpu().numpy()
    return features


def examine_probe(
    splits: Sequence[tuple[Films, Truth]],
    findings: Sequence[Finding],
    settings: ProbeConfig,
    sampling: Sampling,
) -> tuple[Outcome, Rows]:
    """Fit a linear classifier per finding with growing shares of the labels.

    Args:
        splits: films and truth (1 present, 0 absent, `summary.UNKNOWN` not known) of
            training, validation and the evaluated split.
        findings: the findings, one row of each truth.
        settings: fractions, draws and penalties; the validation films choose the penalty.
        sampling: of the intervals, and of the draws.

    Returns:
        The outcome, with a group of `mean_auc` and `mean_balanced_accuracy` per fraction,
        and the rows of `results.PROBES`. Findings that lack a class in a split are left out.

    Source: Wang et al. 2023 probe CIFAR10 alone; ours: the same on films.
    """
    (train, _), _, (judged, _) = splits
    features = [film_features(films) for films, _ in splits]
    asked = [
        place
        for place in range(len(findings))
        if all({0, 1} <= set(truth[place].tolist()) for _, truth in splits)
    ]
    if not asked:
        return Outcome("no finding has films of both classes in every split"), []
    groups: dict[str, dict[str, Figure]] = {}
    rows: Rows = []
    for step, fraction in enumerate(settings.fractions):
        margins, truths = [], []
        for draw in range(settings.draws if fraction < 1 else 1):
            sequence = np.random.SeedSequence([sampling.seed, step, draw])
            generator = np.random.Generator(np.random.Philox(sequence))
            for place in asked:
                labelled = [
                    _labelled(found, truth[place])
                    for found, (_, truth) in zip(features, splits, strict=True)
                ]
                few = draw_labelled(labelled[0].labels, fraction, generator)
                fitted = linear_probe(
                    Labelled(labelled[0].features[few], labelled[0].labels[few]),
                    labelled[1],
                    Labelled(features[2], np.zeros(len(features[2]), dtype=np.int64)),
                    settings.penalties,
                    2,
                    balanced=settings.balanced,
                )
                margins.append(fitted.margins)
                truths.append(splits[2][1][place])
                rows += _rows(fraction, draw, findings[place].name, judged, margins[-1], truths[-1])
        groups[f"{fraction:g}"] = summary.mean_finding_figures(
            np.array(margins),
            np.array(truths),
            judged.subject_ids,
            sampling.samples,
            sampling.generator(),
        )
    pool = {
        "labelled": len(train.image_ids),
        "films": len(judged.image_ids),
        "findings": len(asked),
    }
    chance = {
        f"{group}.{name}": 0.5
        for group in groups
        for name in ("mean_auc", "mean_balanced_accuracy")
    }
    return Outcome("", pool, chance, {}, groups), rows


def _labelled(features: np.ndarray, truth: np.ndarray) -> Labelled:
    known = truth != summary.UNKNOWN
    return Labelled(features[known], truth[known].astype(np.int64))


def _rows(
    fraction: float,
    draw: int,
    finding: str,
    films: Films,
    margins: Sequence[float],
    truth: np.ndarray,
) -> Rows:
    return [
        {
            "image_id": films.image_ids[film],
            "subject_id": films.subject_ids[film],
            "finding": finding,
            "fraction": fraction,
            "draw": draw,
            "margin": margins[film],
            "truth": int(truth[film]),
        }
        for film in np.flatnonzero(truth != summary.UNKNOWN).tolist()
    ]
