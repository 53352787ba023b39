"""The same findings, asked of groups of patients apart.

How much the findings depend on the words that ask for them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int8

from medclip_dcl.evaluation.bootstrap import (
    Figure,
    draw_weights,
    resampled_auc,
    resampled_balanced_accuracy,
    sampled_figure,
)
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import BootstrapOptions, EncodedImages, EvalResult
from medclip_dcl.evaluation.metrics import balanced_accuracy, roc_auc
from medclip_dcl.evaluation.summary import UNKNOWN
from medclip_dcl.inference.zero_shot import Finding

Matrix = Float[np.ndarray, "findings images"]
Truth = Int8[np.ndarray, "findings images"]

_MEASURES = {"mean_auc": resampled_auc, "mean_balanced_accuracy": resampled_balanced_accuracy}
_ONE_CLASS = "no finding has images of both classes"
_NO_GAP = "no finding has images of both classes in every group"


def evaluate_subgroups(
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    traits: Mapping[str, Sequence[str]],
    least_patients: int,
    bootstrap: BootstrapOptions,
) -> EvalResult:
    """Measure the findings in every group of images.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
        traits: such as view, sex, age: the value of every image, empty where not known.
        least_patients: patients below which a group's figures are withheld.
        bootstrap: of the intervals.

    Returns:
        The outcome. Groups are named `trait: value`, with `mean_auc` and
        `mean_balanced_accuracy`; `gap.trait` is the largest mean AUC of its groups minus the
        smallest, over findings that every group has with and without, which chance alone
        makes greater than 0. `pool` counts images.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    gaps: dict[str, Figure] = {}
    areas = _Areas(margins, truth, subjects, bootstrap)
    for trait, values in traits.items():
        value_of = np.asarray(values, dtype=str)
        shown = []
        for value in sorted(set(values) - {""}):
            name, chosen = f"{trait}: {value}", value_of == value
            pool[name] = int(chosen.sum())
            groups[name] = _figures(areas, chosen, least_patients)
            if groups[name]["mean_auc"].value is not None:
                shown.append(chosen)
        if len(shown) > 1:
            gaps[f"gap.{trait}"] = _gap(areas, shown)
    absent = "" if groups else "neither view nor any other trait of the images is known"
    return EvalResult(absent, pool, figures=gaps, groups=groups)


class _Areas:
    """Figures of every finding in every bootstrap sample, for any choice of images."""

    def __init__(
        self, margins: Matrix, truth: Truth, subjects: Sequence[str], bootstrap: BootstrapOptions
    ) -> None:
        self._margins, self._truth, self._subjects = margins, truth, np.asarray(subjects, dtype=str)
        self._weights = draw_weights(subjects, bootstrap.samples, bootstrap.generator())

    def patients(self, chosen: np.ndarray) -> int:
        """Count the patients of some images."""
        return len(np.unique(self._subjects[chosen]))

    def measure(self, of: Callable[..., np.ndarray], chosen: np.ndarray) -> np.ndarray:
        """Measure each finding on some images: (findings, samples and one)."""
        rows = []
        for margin, state in zip(self._margins, self._truth, strict=True):
            known = chosen & (state != UNKNOWN)
            rows.append(of(margin[known], state[known] == 1, self._weights[:, known]))
        return np.stack(rows)

    def figure(self, values: np.ndarray, chosen: np.ndarray, undefined: str) -> Figure:
        """Sum up one figure of some images."""
        return sampled_figure(values, self._subjects[chosen].tolist(), undefined)


def _figures(areas: _Areas, chosen: np.ndarray, least: int) -> dict[str, Figure]:
    patients = areas.patients(chosen)
    if patients < least:
        withheld = Figure(None, int(chosen.sum()), patients, reason=f"fewer than {least} patients")
        return dict.fromkeys(_MEASURES, withheld)
    return {
        name: areas.figure(_mean(areas.measure(of, chosen)), chosen, _ONE_CLASS)
        for name, of in _MEASURES.items()
    }


def _gap(areas: _Areas, groups: Sequence[np.ndarray]) -> Figure:
    found = np.stack([areas.measure(resampled_auc, chosen) for chosen in groups])
    everywhere = np.isnan(found).any(axis=0)  # findings that a group lacks say nothing of gaps
    means = np.stack([_mean(np.where(everywhere, np.nan, part)) for part in found])
    return areas.figure(np.ptp(means, axis=0), np.any(groups, axis=0), _NO_GAP)


def _mean(values: np.ndarray) -> np.ndarray:
    """Average over findings; not a number where a sample defines none."""
    count = (~np.isnan(values)).sum(axis=0)
    total = np.nansum(values, axis=0)
    mean: np.ndarray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


_PROMPT_MEASURES = {"auc": roc_auc, "balanced_accuracy": balanced_accuracy}
_RESAMPLED = {"auc": resampled_auc, "balanced_accuracy": resampled_balanced_accuracy}


def prompt_pairs(finding: Finding) -> list[tuple[str, str]]:
    """Pair every positive prompt of a finding with every negative one.

    Args:
        finding: with one prompt a side or more.

    Returns:
        Positive and negative prompt of each pair, positive prompts first to last.
    """
    return list(product(finding.positive, finding.negative))


def evaluate_paraphrases(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Int8[np.ndarray, "findings images"],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """Ask for findings in every pairing of paraphrases.

    Args:
        model: who is asked.
        images: the images.
        findings: with several prompts a side.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        bootstrap: of the intervals.

    Returns:
        The outcome and the rows of `results.PROMPTS`. Groups are the findings: of `auc` and
        `balanced_accuracy` the `_lowest`, `_highest` and `_spread` over the pairs, and the
        `_ensemble`, all pairs averaged; `pool` counts the pairs.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for finding, state in zip(findings, truth, strict=True):
        margins = _margins(model, images, finding)
        known = state != UNKNOWN
        owners = [name for name, keep in zip(images.subject_ids, known, strict=True) if keep]
        positive = state[known] == 1
        pool[finding.name] = len(margins) - 1
        groups[finding.name] = _spread(margins[:, known], positive, owners, bootstrap)
        for pair, margin in zip(prompt_pairs(finding), margins[:-1, known], strict=True):
            measured = {name: of(margin, positive) for name, of in _PROMPT_MEASURES.items()}
            words = {"positive": pair[0], "negative": pair[1]}
            rows.append({"finding": finding.name, **words, **measured})
    absent = "" if groups else "there is no finding"
    return EvalResult(absent, pool, groups=groups), rows


def _margins(
    model: EvaluatedModel, images: EncodedImages, finding: Finding
) -> Float[np.ndarray, "pairs_and_ensemble images"]:
    """Margins of every pair, each sentence scored once; last, those of all pairs averaged."""
    texts = [*finding.positive, *finding.negative]
    scores = model.score(images.regions, model.embed_sentences(texts)).double().cpu().numpy()
    present, absent = np.split(scores, [len(finding.positive)])
    pairs = (present[:, None] - absent[None]).reshape(-1, scores.shape[1])
    return np.vstack([pairs, pairs.mean(axis=0)])


def _spread(
    margins: Float[np.ndarray, "pairs_and_ensemble images"],
    positive: Bool[np.ndarray, " images"],
    owners: list[str],
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    found: dict[str, np.ndarray] = {}
    count = bootstrap.samples + 1
    weights = np.zeros((count, 0), dtype=np.int64)
    if owners:
        weights = draw_weights(owners, bootstrap.samples, bootstrap.generator())
    for name, of in _RESAMPLED.items():
        values = np.stack([of(margin, positive, weights) for margin in margins])
        lowest, highest = values[:-1].min(axis=0), values[:-1].max(axis=0)
        found[f"{name}_lowest"], found[f"{name}_highest"] = lowest, highest
        found[f"{name}_spread"] = highest - lowest
        found[f"{name}_ensemble"] = values[-1]
    undefined = "no image of one of the two classes"
    return {name: sampled_figure(values, owners, undefined) for name, values in found.items()}
