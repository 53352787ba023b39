"""Figures whose bootstrap samples were all computed at once, by `resampled`."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.metrics.resampled import patient_weights, unit_weights

_TAILS = (0.025, 0.975)
_LEAST_DEFINED = 0.5  # share of samples in which a figure must exist to have an interval


def draw_weights(
    subjects: Sequence[str], samples: int, generator: np.random.Generator
) -> Int[np.ndarray, "samples_and_one units"]:
    """Resample patients.

    Args:
        subjects: the patient of every unit; at least one.
        samples: bootstrap samples; 0: the data alone.
        generator: source of the draws.

    Returns:
        Weight of every unit in every sample; the first row is 1 throughout.
    """
    patients = sorted(set(subjects))
    return unit_weights(patient_weights(len(patients), samples, generator), patients, subjects)


def sampled_figure(
    values: Float[np.ndarray, " samples_and_one"], subjects: Sequence[str], undefined: str
) -> Figure:
    """Sum up one figure over its samples.

    Args:
        values: of the data themselves, then of every sample; not a number: undefined.
        subjects: the patient of every unit that it rests on.
        undefined: reason that is given where the data do not define it.

    Returns:
        The value with its 95 % percentile interval; none where half of the samples or more
        do not define it, or where it rests on one patient.

    Source: as `bootstrap.estimate`.
    """
    value, drawn = float(values[0]), values[1:]
    defined = drawn[~np.isnan(drawn)]
    patients = len(set(subjects))
    if np.isnan(value):
        return Figure(None, len(subjects), patients, reason=undefined)
    if patients < 2 or len(defined) <= _LEAST_DEFINED * len(drawn):
        return Figure(value, len(subjects), patients)
    low, high = (float(end) for end in np.quantile(defined, _TAILS))
    return Figure(value, len(subjects), patients, low, high)
