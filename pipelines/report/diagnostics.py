"""Diagnostics of eta: whom it corrects, and how near it is to the truth."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Diagnostics:
    """Figures about the etas of a corpus; sentences are named by their index in the arrays."""

    most_corrected: NDArray[np.int64]
    """Training sentences with the largest eta, largest first; ties by count."""
    least_corrected: NDArray[np.int64]
    """Training sentences with the smallest eta, smallest first; ties by count."""
    spearman_pll_count: float
    """Rank correlation of likelihood and log count over training sentences; nan where undefined."""
    spearman_eta_count: float
    """The same of eta and count."""
    mean_eta: float
    """Mean eta of a training sentence, each as often as it is said: the share of a batch that is
    expected to be false negatives."""
    expected_false_negatives: float
    """N * eta of a training sentence on average, for N negatives."""
    truth: "TruthAgreement | None"
    """Agreement with true class probabilities, where they are known."""


@dataclass(frozen=True)
class TruthAgreement:
    """Agreement of eta with the true class probability rho, over sentences that have one."""

    sentences: int
    pearson_log: float
    """Pearson correlation of log eta and log rho, both above 0."""
    pearson_log_weighted: float
    """The same, each sentence as often as it is said."""
    median_ratio: float
    """Median of eta / rho."""
    log_error: float
    """Root mean square of log eta - log min(rho, cap), each sentence as often as it is said, nats;
    nan without a cap."""


def diagnose(
    eta: Floats,
    pll_nats: Floats | None,
    count: NDArray[np.int64],
    negatives: int,
    *,
    examples: int,
    rho: Floats | None = None,
    cap: float | None = None,
) -> Diagnostics:
    """Describe the etas of a corpus's distinct sentences.

    `pll_nats` is None where eta has another source; `count`: how often the training split says each
    sentence; `negatives`: N; `examples`: how many most and least corrected sentences are named;
    `rho`: the true class probability, nan (or None for all) where it is not known, which is capped
    at `cap` before its distance to eta is taken.
    """
    said = np.flatnonzero(count > 0)
    weights = count[said] / max(1, count[said].sum())
    mean_eta = float((eta[said] * weights).sum())
    largest_first = said[np.lexsort((-count[said], -eta[said]))]
    smallest_first = said[np.lexsort((-count[said], eta[said]))]
    correlation = float("nan")
    if pll_nats is not None:
        correlation = spearman(pll_nats[said], count[said])
    return Diagnostics(
        most_corrected=largest_first[:examples],
        least_corrected=smallest_first[:examples],
        spearman_pll_count=correlation,
        spearman_eta_count=spearman(eta[said], count[said]),
        mean_eta=mean_eta,
        expected_false_negatives=negatives * mean_eta,
        truth=None if rho is None else compare_with_truth(eta, rho, count, cap),
    )


def compare_with_truth(
    eta: Floats, rho: Floats, count: NDArray[np.int64], cap: float | None = None
) -> TruthAgreement:
    """Compare estimated with true class probabilities, over sentences whose rho is not nan.

    `count` says how often training says each; rho is capped at `cap` in `log_error`.
    """
    known = np.isfinite(rho)
    positive = known & (rho > 0) & (eta > 0)
    log_eta, log_rho = np.log(eta[positive]), np.log(rho[positive])
    ratio, weights = eta[positive] / rho[positive], count[positive].astype(np.float64)
    log_error = float("nan")
    if cap is not None and weights.sum() > 0:
        off = log_eta - np.minimum(log_rho, np.log(cap))
        log_error = float(np.sqrt((weights * off**2).sum() / weights.sum()))
    return TruthAgreement(
        sentences=int(known.sum()),
        pearson_log=_pearson(log_eta, log_rho, np.ones(len(log_eta))),
        pearson_log_weighted=_pearson(log_eta, log_rho, weights),
        median_ratio=float(np.median(ratio)) if len(ratio) else float("nan"),
        log_error=log_error,
    )


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Correlate two orders, ties at their mean rank; nan where fewer than two values differ.

    Source: Spearman 1904.
    """
    a, b = stats.rankdata(x), stats.rankdata(y)
    return _pearson(a, b, np.ones(len(a)))


def _pearson(x: Floats, y: Floats, weights: Floats) -> float:
    total = weights.sum()
    if total <= 0:
        return float("nan")
    x, y = x - (x * weights).sum() / total, y - (y * weights).sum() / total
    scale = np.sqrt((weights * x * x).sum() * (weights * y * y).sum())
    return float((weights * x * y).sum() / scale) if scale > 0 else float("nan")


SentenceFloats = Float[np.ndarray, " sentences"]


@dataclass(frozen=True)
class EtaBin:
    """Sentences of neighbouring eta."""

    sentences: int
    """Distinct ones."""
    said: int
    """How often they are said in training."""
    low: float
    high: float
    """Their smallest and largest eta."""
    expected: float
    """N times their mean eta, each as often as it is said."""
    known: int
    """Occurrences whose class probability is known."""
    real: float | None
    """N times the mean class probability of these; None: none is known."""


def audit_parts(
    eta: SentenceFloats,
    rho: SentenceFloats,
    count: Int[np.ndarray, " sentences"],
    negatives: int,
    parts: int = 10,
) -> list[EtaBin]:
    """Cut the sentences into parts that are said about equally often, by eta.

    `rho` is the class probability, nan where nobody knows it. Sentences that training never
    says are left out, those of one eta stay together. The parts come by ascending eta.

    Source: ours; N eta is the number of false negatives that the correction assumes
        (Wang et al. 2023, Eq. 8).
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


def _part(eta: np.ndarray, rho: np.ndarray, count: np.ndarray, negatives: int) -> EtaBin:
    is_known = np.isfinite(rho)
    known = int(count[is_known].sum())
    real = float(negatives * np.average(rho[is_known], weights=count[is_known])) if known else None
    return EtaBin(
        sentences=len(eta),
        said=int(count.sum()),
        low=float(eta.min()),
        high=float(eta.max()),
        expected=float(negatives * np.average(eta, weights=count)),
        known=known,
        real=real,
    )
