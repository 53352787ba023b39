"""False negatives that eta expects, held against the real ones: by parts of the sentences."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

Floats = Float[np.ndarray, " sentences"]


@dataclass(frozen=True)
class Part:
    """Sentences of neighbouring eta.

    Attributes:
        sentences: distinct ones.
        said: how often they are said in training.
        low: their smallest eta.
        high: their largest.
        expected: N times their mean eta, each as often as it is said.
        known: occurrences whose class probability is known.
        real: N times the mean class probability of these; None: none is known.
    """

    sentences: int
    said: int
    low: float
    high: float
    expected: float
    known: int
    real: float | None


def audit_parts(
    eta: Floats, rho: Floats, count: Int[np.ndarray, " sentences"], negatives: int, parts: int = 10
) -> list[Part]:
    """Cut the sentences into parts that are said about equally often, by eta.

    Args:
        eta: assumed class probability of each distinct sentence.
        rho: the class probability; not a number where nobody knows it.
        count: how often each is said in training; those never said are left out.
        negatives: N, negatives of one anchor.
        parts: number of parts at most; sentences of one eta stay together.

    Returns:
        The parts, by ascending eta.

    Source: ours; N eta is the number of false negatives that the correction assumes
        (Wang et al. 2023, Section 2.2).
    """
    said = np.flatnonzero(count > 0)
    order = said[np.argsort(eta[said], kind="stable")]
    if not len(order):
        return []
    reached = np.cumsum(count[order]) - count[order] / 2
    part = (reached * parts / count[order].sum()).astype(int)
    values, level = np.unique(eta[order], return_inverse=True)
    first = np.full(len(values), parts)
    np.minimum.at(first, level, part)  # one eta, one part
    part = first[level]
    return [
        _part(eta[rows], rho[rows], count[rows], negatives)
        for rows in (order[part == number] for number in np.unique(part))
    ]


def _part(eta: np.ndarray, rho: np.ndarray, count: np.ndarray, negatives: int) -> Part:
    is_known = np.isfinite(rho)
    known = int(count[is_known].sum())
    real = float(negatives * np.average(rho[is_known], weights=count[is_known])) if known else None
    return Part(
        sentences=len(eta),
        said=int(count.sum()),
        low=float(eta.min()),
        high=float(eta.max()),
        expected=float(negatives * np.average(eta, weights=count)),
        known=known,
        real=real,
    )
