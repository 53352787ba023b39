"""The same findings, asked of groups of patients, and in other words."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from medclip_dcl.evaluation.bootstrap import (
    BootstrapOptions,
    Figure,
    Samples,
    Weights,
    draw_weights,
    estimate,
    summarise,
)
from medclip_dcl.evaluation.classification import NO_FINDING, ONE_CLASS
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import (
    UNKNOWN,
    EncodedImages,
    EvalResult,
    Matrix,
    Rows,
    Truth,
)
from medclip_dcl.evaluation.metrics import balanced_accuracy, mean_of, roc_auc, value_of
from medclip_dcl.inference import Finding

_MEASURES = {"auc": roc_auc, "balanced_accuracy": balanced_accuracy}
LEAST_PATIENTS = 10
"""Patients below which a group's figures are withheld."""

_NO_GAP = "no finding has images of both classes in every group"


class _Cases(NamedTuple):
    """Margins and truth of every finding, and the one draw of patients for all groups."""

    margins: Matrix
    truth: Truth
    subjects: np.ndarray
    weights: Weights

    def measure(self, name: str, chosen: np.ndarray) -> np.ndarray:
        """Measure each finding on some images: (findings, samples)."""
        return np.stack(
            [
                _MEASURES[name](margin[known], state[known] == 1, self.weights[:, known])
                for margin, state in zip(self.margins, self.truth, strict=True)
                for known in (chosen & (state != UNKNOWN),)
            ]
        )

    def summarise(self, values: np.ndarray, chosen: np.ndarray, undefined: str) -> Figure:
        return summarise(values, self.subjects[chosen].tolist(), undefined)


def evaluate_subgroups(
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    traits: Mapping[str, Sequence[str]],
    bootstrap: BootstrapOptions,
    least_patients: int = LEAST_PATIENTS,
) -> EvalResult:
    """Measure the findings in every group of images.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every image.
        traits: such as view, sex, age: the value of every image, empty where not known.
        bootstrap: of the intervals.
        least_patients: patients below which a group's figures are withheld.

    Returns:
        The outcome. Groups are named `trait: value`, with `mean_auc` and
        `mean_balanced_accuracy`; `gap.trait` is the largest mean AUC of its groups minus the
        smallest, over findings that every group has with and without, which chance alone
        makes greater than 0. `pool` counts images.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    gaps: dict[str, Figure] = {}
    owners = np.asarray(subjects, dtype=str)
    cases = _Cases(margins, truth, owners, draw_weights(subjects, bootstrap))
    for trait, values in traits.items():
        value_of_image = np.asarray(values, dtype=str)
        shown = []
        for value in sorted(set(values) - {""}):
            name, chosen = f"{trait}: {value}", value_of_image == value
            pool[name] = int(chosen.sum())
            groups[name] = _figures(cases, chosen, least_patients)
            if groups[name]["mean_auc"].value is not None:
                shown.append(chosen)
        if len(shown) > 1:
            gaps[f"gap.{trait}"] = _gap(cases, shown)
    absent = "" if groups else "neither view nor any other trait of the images is known"
    return EvalResult(absent, pool, figures=gaps, groups=groups)


def _figures(cases: _Cases, chosen: np.ndarray, least: int) -> dict[str, Figure]:
    names = [f"mean_{name}" for name in _MEASURES]
    patients = len(set(cases.subjects[chosen]))
    if patients < least:
        withheld = Figure(None, int(chosen.sum()), patients, reason=f"fewer than {least} patients")
        return dict.fromkeys(names, withheld)
    return {
        f"mean_{name}": cases.summarise(mean_of(cases.measure(name, chosen)), chosen, NO_FINDING)
        for name in _MEASURES
    }


def _gap(cases: _Cases, groups: Sequence[np.ndarray]) -> Figure:
    found = np.stack([cases.measure("auc", chosen) for chosen in groups])
    lacking = np.isnan(found).any(axis=0)  # a finding that one group lacks says nothing of gaps
    means = np.stack([mean_of(np.where(lacking, np.nan, part)) for part in found])
    return cases.summarise(np.ptp(means, axis=0), np.any(groups, axis=0), _NO_GAP)


def prompt_pairs(finding: Finding) -> list[tuple[str, str]]:
    """Pair every positive prompt of a finding with every negative one, first to last."""
    return list(product(finding.positive, finding.negative))


def evaluate_paraphrases(
    model: EvaluatedModel,
    images: EncodedImages,
    findings: Sequence[Finding],
    truth: Truth,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
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
    rows: Rows = []
    for finding, state in zip(findings, truth, strict=True):
        margins = _margins(model, images, finding)
        known = state != UNKNOWN
        owners = [name for name, keep in zip(images.subject_ids, known, strict=True) if keep]
        positive = state[known] == 1
        pool[finding.name] = len(margins) - 1
        groups[finding.name] = _spread(margins[:, known], positive, owners, bootstrap)
        for pair, margin in zip(prompt_pairs(finding), margins[:-1, known], strict=True):
            measured = {name: value_of(of(margin, positive)) for name, of in _MEASURES.items()}
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
    def measure(weights: Weights) -> dict[str, Samples]:
        found: dict[str, Samples] = {}
        for name, of in _MEASURES.items():
            values = np.stack([of(margin, positive, weights) for margin in margins])
            lowest, highest = values[:-1].min(axis=0), values[:-1].max(axis=0)
            found[f"{name}_lowest"], found[f"{name}_highest"] = lowest, highest
            found[f"{name}_spread"] = highest - lowest
            found[f"{name}_ensemble"] = values[-1]
        return found

    return estimate(measure, owners, bootstrap, ONE_CLASS)
