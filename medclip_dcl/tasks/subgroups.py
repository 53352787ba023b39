"""The same findings, asked of groups of patients apart."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int8

from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.metrics.resampled import resampled_auc, resampled_balanced_accuracy
from medclip_dcl.metrics.sampled import draw_weights, sampled_figure
from medclip_dcl.metrics.summary import UNKNOWN
from medclip_dcl.tasks.outcome import Outcome, Sampling

Matrix = Float[np.ndarray, "findings films"]
Truth = Int8[np.ndarray, "findings films"]

_MEASURES = {"mean_auc": resampled_auc, "mean_balanced_accuracy": resampled_balanced_accuracy}
_ONE_CLASS = "no finding has films of both classes"
_NO_GAP = "no finding has films of both classes in every group"


def examine_subgroups(
    margins: Matrix,
    truth: Truth,
    subjects: Sequence[str],
    traits: Mapping[str, Sequence[str]],
    least_patients: int,
    sampling: Sampling,
) -> Outcome:
    """Measure the findings in every group of films.

    Args:
        margins: score of the positive prompt minus that of the negative.
        truth: 1 present, 0 absent, `UNKNOWN` left out.
        subjects: patient of every film.
        traits: such as view, sex, age: the value of every film, empty where not known.
        least_patients: patients below which a group's figures are withheld.
        sampling: of the intervals.

    Returns:
        The outcome. Groups are named `trait: value`, with `mean_auc` and
        `mean_balanced_accuracy`; `gap.trait` is the largest mean AUC of its groups minus the
        smallest, over findings that every group has with and without, which chance alone
        makes greater than 0. `pool` counts films.
    """
    groups: dict[str, dict[str, Figure]] = {}
    pool: dict[str, int] = {}
    gaps: dict[str, Figure] = {}
    areas = _Areas(margins, truth, subjects, sampling)
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
    absent = "" if groups else "neither view nor any other trait of the films is known"
    return Outcome(absent, pool, figures=gaps, groups=groups)


class _Areas:
    """Figures of every finding in every bootstrap sample, for any choice of films."""

    def __init__(
        self, margins: Matrix, truth: Truth, subjects: Sequence[str], sampling: Sampling
    ) -> None:
        self._margins, self._truth, self._subjects = margins, truth, np.asarray(subjects, dtype=str)
        self._weights = draw_weights(subjects, sampling.samples, sampling.generator())

    def patients(self, chosen: np.ndarray) -> int:
        """Count the patients of some films."""
        return len(np.unique(self._subjects[chosen]))

    def measure(self, of: Callable[..., np.ndarray], chosen: np.ndarray) -> np.ndarray:
        """Measure each finding on some films: (findings, samples and one)."""
        rows = []
        for margin, state in zip(self._margins, self._truth, strict=True):
            known = chosen & (state != UNKNOWN)
            rows.append(of(margin[known], state[known] == 1, self._weights[:, known]))
        return np.stack(rows)

    def figure(self, values: np.ndarray, chosen: np.ndarray, undefined: str) -> Figure:
        """Sum up one figure of some films."""
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
