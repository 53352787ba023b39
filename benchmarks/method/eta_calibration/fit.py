"""a and k of eta = min(a * p**k, cap), fitted to class probabilities that a corpus shows itself.

Symbols
    rho    share of the other studies that a sentence fits: the class probability, measured
    p      exp(pll_nats)
    floor  smallest share that counts as measured; below it a handful of studies decides
    cap    largest eta that training uses

Two ways to fit log rho = log a + k log p + noise, both with the cap respected:

    capped    least squares of log min(a * p**k, cap) against log min(rho, cap), the eta
              that training uses. A sentence below the floor pulls only an eta above the
              floor. Never worse on the evidence than the best constant; flatter than the
              line that made the data, because noise at the cap only ever pulls down.
    censored  Tobin's regression: a share at or above the cap says only "at least the cap",
              one below the floor only "below the floor". It recovers the line where the
              noise is normal. In reports it is not: common negations and rare findings are
              two clusters, and the line, once capped, is further from the capped shares.

Plain least squares is neither. Common negations, true of most images, would turn the line
in a range where the cap hides it; and leaving out the sentences that are too rare to be
measured selects those that are common by luck, which flattens the slope.

What p can know: it is the chance of one wording, while rho belongs to the meaning. Long and
rare wordings of a common finding have a small p and a large rho. `correlation` measures how
much the two share, and `best_constant` what an eta that ignores p would do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import optimize, special

from medclip_dcl.errors import ScoreError
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll

Floats = Float[np.ndarray, " sentences"]

LARGEST_A = 0.999
"""Upper end of a: a sentence that is sure to be said fits every image, and no more."""

_FEWEST = 10
_BOUNDS = ((-30.0, float(np.log(LARGEST_A))), (0.0, 30.0), (-7.0, 3.0))
"""Of log a, of k times the spread of the likelihoods, and of log sigma."""


@dataclass(frozen=True)
class Evidence:
    """Measured class probabilities of sentences."""

    pll_nats: Floats  # at most 0
    share: Floats  # in [0, 1]
    weight: Floats  # how often the sentence counts, at least 0
    floor: float  # smallest share that counts as measured, above 0

    @property
    def is_measured(self) -> Bool[np.ndarray, " sentences"]:
        """Sentences whose share is not below the floor."""
        return self.share >= self.floor

    @property
    def is_counted(self) -> Bool[np.ndarray, " sentences"]:
        """Measured sentences that somebody says."""
        return self.is_measured & (self.weight > 0)


@dataclass(frozen=True)
class Line:
    """A fitted line: 0 < a <= `LARGEST_A`, k >= 0."""

    a: float
    k: float
    sigma: float = 0.0
    """Standard deviation of log rho about the line, capped or not, nats."""


def fit_line(evidence: Evidence, cap: float, method: str) -> Line:
    """Fit a and k; `cap` is the largest eta that is used, `method` is as the module explains.

    ScoreError where fewer than ten sentences are measured below the cap, where the floor is not
    below it, or where the arrays are malformed.

    Source: `capped`: ours. `censored`: Tobin 1958; one optimum, since the likelihood is
        concave in 1/sigma and coefficients/sigma (Olsen 1978), in which both bounds are linear.
    """
    _check(evidence, cap)
    used = evidence.weight > 0
    share, weight = evidence.share[used], evidence.weight[used]
    scale = max(float(evidence.pll_nats[used].std()), 1e-9)
    rows = _Rows(
        x=evidence.pll_nats[used] / scale,
        y=np.log(np.clip(share, evidence.floor, cap)),
        below=share < evidence.floor,
        above=share >= cap,
        weight=weight / weight.sum(),
        log_cap=float(np.log(cap)),
    )
    level = min(float(np.average(rows.y, weights=weight)), float(_BOUNDS[0][1]))
    start = np.array([level, 0.0, 0.0])
    theta = _minimum(partial(_censored_loss, rows), start, _BOUNDS)
    if method == "capped":
        starts = (theta[:2], start[:2], np.array([level + 1, 0.5]))
        found = [_minimum(partial(_capped_loss, rows), at, _BOUNDS[:2]) for at in starts]
        theta = min(found, key=lambda at: _capped_loss(rows, at)[0])
        theta = np.append(theta, np.log(max(2 * _capped_loss(rows, theta)[0], 1e-12)) / 2)
    log_a, slope, log_sigma = theta
    return Line(float(np.exp(log_a)), float(slope / scale), float(np.exp(log_sigma)))


@dataclass(frozen=True)
class _Rows:
    """Evidence in the units of the fit; y is the log share between floor and cap."""

    x: Floats
    y: Floats
    below: Bool[np.ndarray, " sentences"]
    above: Bool[np.ndarray, " sentences"]
    weight: Floats
    log_cap: float


Theta = Float[np.ndarray, " parameters"]


def _censored_loss(rows: _Rows, theta: Theta) -> tuple[float, Theta]:
    """Mean negative log likelihood at (log a, slope, log sigma), and its gradient."""
    log_a, slope, log_sigma = theta
    distance = (rows.y - log_a - slope * rows.x) / np.exp(log_sigma)
    sign = np.where(rows.below, 1.0, -1.0)
    between = ~(rows.below | rows.above)
    log_tail = special.log_ndtr(sign * distance)
    value = np.where(between, log_sigma + distance**2 / 2, -log_tail)
    # a censored sentence pulls by its mean distance beyond its bound
    mills = np.exp(-(distance**2) / 2 - log_tail) / np.sqrt(2 * np.pi)
    pull = rows.weight * np.where(between, distance, -sign * mills)
    spread = rows.weight * np.where(between, 1.0 - distance**2, sign * mills * distance)
    gradient = [-pull.sum() / np.exp(log_sigma), -(pull * rows.x).sum() / np.exp(log_sigma)]
    return float((rows.weight * value).sum()), np.array([*gradient, spread.sum()])


def _capped_loss(rows: _Rows, theta: Theta) -> tuple[float, Theta]:
    """Half the mean square of log eta - log share at (log a, slope), and its gradient."""
    log_line = theta[0] + theta[1] * rows.x
    off = np.minimum(log_line, rows.log_cap) - rows.y
    off = np.where(rows.below, np.maximum(off, 0.0), off)
    pull = rows.weight * off * (log_line < rows.log_cap)
    return float((rows.weight * off**2).sum() / 2), np.array([pull.sum(), (pull * rows.x).sum()])


def _minimum(
    loss: Callable[[Theta], tuple[float, Theta]],
    start: Theta,
    bounds: Sequence[tuple[float, float]],
) -> Theta:
    options = {"ftol": 1e-14, "gtol": 1e-9, "maxiter": 500}
    found: np.ndarray = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    return found


def resample_lines(
    measure: Callable[[Float[np.ndarray, " studies"]], Evidence],
    patient_of: Int[np.ndarray, " studies"],
    cap: float,
    method: str,
    resamples: int,
    generator: np.random.Generator,
) -> list[Line]:
    """Fit bootstrap samples of patients, each with all of its studies.

    `measure` gives the evidence when study i counts as often as the i-th weight says; `patient_of`
    numbers patients from 0. Gives a line for every sample in which enough sentences are measured.

    Source: ours; sentences of one report, and reports of one patient, are not independent.
    """
    patients = int(patient_of.max(initial=-1)) + 1
    lines = []
    for _ in range(resamples):
        drawn = np.bincount(generator.integers(0, patients, patients), minlength=patients)
        try:
            lines.append(fit_line(measure(drawn[patient_of].astype(np.float64)), cap, method))
        except ScoreError:  # too few measured sentences in this sample
            continue
    return lines


def correlation(evidence: Evidence) -> float:
    """Correlate likelihood and log share of the measured sentences; nan where one does not vary."""
    known = evidence.is_counted
    if not known.any():
        return float("nan")
    columns = np.stack([evidence.pll_nats[known], np.log(evidence.share[known])])
    (x, xy), (_, y) = np.cov(columns, aweights=evidence.weight[known], ddof=0)
    return float(xy / np.sqrt(x * y)) if x * y > 0 else float("nan")


def censored_shares(evidence: Evidence, cap: float) -> dict[str, float]:
    """Give the shares of the weight that the fit sees with their value, and on either side."""
    total = max(float(evidence.weight.sum()), 1e-300)
    below = float(evidence.weight[~evidence.is_measured].sum()) / total
    above = float(evidence.weight[evidence.share >= cap].sum()) / total
    return {"measured": 1 - below - above, "below_floor": below, "above_cap": above}


def best_constant(evidence: Evidence, cap: float) -> float:
    """Give the constant eta with the least log error: the geometric mean of the capped shares.

    ScoreError where no sentence is measured.
    """
    known = evidence.is_counted
    if not known.any():
        raise ScoreError("no sentence is measured; lower --min-studies or add studies")
    capped = np.minimum(evidence.share[known], cap)
    return float(np.exp(np.average(np.log(capped), weights=evidence.weight[known])))


def log_error(eta: Floats, evidence: Evidence, cap: float) -> float:
    """Give the root of the weighted mean square of log min(eta, cap) - log min(rho, cap), nats.

    Sentences below the floor are left out; nan where nothing is measured. 0.69 is a factor of 2.
    """
    known = evidence.is_counted
    if not known.any():
        return float("nan")
    off = np.log(np.minimum(eta[known], cap)) - np.log(np.minimum(evidence.share[known], cap))
    return float(np.sqrt(np.average(off**2, weights=evidence.weight[known])))


def eta_of_line(pll_nats: Floats, line: Line, cap: float) -> Floats:
    """Give min(a * p**k, cap)."""
    eta: np.ndarray = cap_eta(eta_from_pll(torch.from_numpy(pll_nats), line.a, line.k), cap).numpy()
    return eta


def _check(evidence: Evidence, cap: float) -> None:
    if not 0 < evidence.floor < cap < 1:
        raise ScoreError(
            f"the smallest share that counts as measured, {evidence.floor:.4g}, must be above 0 "
            f"and below the cap, {cap:.4g}; lower --min-studies or add studies"
        )
    columns = (evidence.pll_nats, evidence.share, evidence.weight)
    wrong = ~np.isfinite(np.stack(columns)).all(axis=0)
    wrong |= (evidence.pll_nats > 0) | (evidence.share < 0) | (evidence.share > 1)
    wrong |= evidence.weight < 0
    if wrong.any():
        raise ScoreError(f"{int(wrong.sum())} sentences have no valid likelihood, share or weight")
    inside = evidence.is_counted & (evidence.share < cap)
    if inside.sum() < _FEWEST:
        raise ScoreError(
            f"{int(inside.sum())} sentences are measured below the cap and {_FEWEST} are needed; "
            "lower --min-studies, set another --evidence or add studies"
        )
