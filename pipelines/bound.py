"""Bound the bias of the debiased loss, and show what a wrong eta costs.

The bound is Proposition 2.1 of Wang et al. 2023 with smaller constants; it is empty at the scale of
a trained model, and then says so. The second table is exact: what the correction makes of an
anchor's loss, and of the gradient of its negatives, with the positive alone as v.

The ideal loss replaces g of Eq. 8 by its expectation over true negatives,
gbar = (E_u e^s - rho E_v e^s) / (1 - rho). With gamma^2 the bound of |s|:

1. log(e^{s_p} + N g) has a slope in g of at most N / ((N + 1) e^{-gamma^2}), since neither e^{s_p}
   nor g is below e^{-gamma^2}. The floor of g brings it no further from gbar, which is above it.
2. The mean of N numbers in [e^{-gamma^2}, e^{gamma^2}] is off by (e^{gamma^2} - e^{-gamma^2}) / 2
   over sqrt(N) in the mean at most: their standard deviation is at most half of their range.
3. g with eta less g with rho is the difference of the two means times
   1 / (1 - eta) - 1 / (1 - rho), and two means differ by the range at most.

Multiplied out, with the factor N / (N + 1) (e^{2 gamma^2} - 1) before all three:
1 / (2 sqrt(N) (1 - rho)),  rho / (2 sqrt(M) (1 - rho)),  |1 / (1 - eta) - 1 / (1 - rho)|.
"""

import math
import sys
from typing import Annotated, NamedTuple

import typer

from medclip_dcl.errors import ConfigError, ObjectiveError

from .cli import tool_main

_SHARES = (1.0, 0.8, 0.6, 0.4, 0.2)  # of the loss of a model that knows nothing


def command(
    n: Annotated[int, typer.Option(help="Negatives of an anchor: the global batch less 1.")] = 63,
    m: Annotated[int, typer.Option(help="Positives v of an anchor.")] = 1,
    eta: Annotated[float, typer.Option(help="Share of the anchor's class among all.")] = 0.1,
    gamma: Annotated[float, typer.Option(help="Root of the scale of similarities.")] = 14**0.5,
    wrong_eta: Annotated[
        float | None, typer.Option(help="What the loss takes for that share.")
    ] = None,
) -> int:
    """Print both tables."""
    try:
        print(bound_table(n, m, eta, gamma, wrong_eta))
    except ObjectiveError as error:
        raise ConfigError(str(error)) from error
    return 0


def bound_table(N: int, M: int, rho: float, gamma: float, eta: float | None) -> str:
    """Lay out the parts of the bound, and what eta does to anchors of several losses."""
    bound = bias_bound(N, M, rho, gamma, eta)
    chance = math.log1p(N)
    parts = [
        (f"of drawing {N} negatives", bound.negatives, "falls as 1 / sqrt(N)"),
        (f"of drawing {M} positives", bound.positives, "falls as 1 / sqrt(M)"),
    ]
    if eta is not None:
        parts.append((f"of eta {eta:g} where {rho:g} is right", bound.wrong_eta, "stays"))
    lines = ["difference of the loss to that of known labels, at most, in nats"]
    lines += [f"  {name:32}{value:>9.3g}  {how}" for name, value, how in parts]
    lines.append(f"  {'in all':32}{bound.total:>9.3g}")
    if bound.total > bound.ceiling:
        lines.append(
            f"This is empty: at gamma {gamma:g} two losses differ by {bound.ceiling:.3g} at most."
        )
    lines.append(
        f"It is below log(N + 1) = {chance:.3g}, the loss of knowing nothing, up to gamma "
        f"{largest_gamma(bias_bound(N, M, rho, 1.0, eta), chance):.3g}."
    )
    etas = [rho] if eta is None else [rho, eta]
    heads = [f"{what} at eta {value:g}" for value in etas for what in ("loss", "weight")]
    lines += [
        "an anchor whose only v is its positive, exactly: its loss, and how much more it pushes",
        _row(("InfoNCE", *heads)),
    ]
    for share in _SHARES:
        loss = share * chance
        lines.append(_row((f"{loss:.3g}", *_cells(loss, N, etas))))
    return "\n".join(lines)


def _cells(loss: float, N: int, etas: list[float]) -> list[str]:
    cells = []
    for eta in etas:
        corrected = corrected_loss(loss, N, eta)
        if corrected is None:
            cells += ["floor", "none"]
        else:
            weight = math.exp(loss) / (math.exp(loss) - eta * (N + 1))
            cells += [f"{corrected:.3g}", f"x {weight:.3g}"]
    return cells


def _row(cells: tuple[str, ...]) -> str:
    return f"  {cells[0]:>7}" + "".join(f"{cell:>20}" for cell in cells[1:])


class BiasBound(NamedTuple):
    """Upper bound of the loss's bias, nats, by its sources."""

    negatives: float
    """Of drawing N negatives: falls as 1 / sqrt(N)."""
    positives: float
    """Of drawing M positives v: falls as 1 / sqrt(M)."""
    wrong_eta: float
    """Of an eta that is not rho: stays, whatever N and M are."""
    ceiling: float
    """What two losses of this gamma, N and eta differ by at most: beyond it a bound is empty."""

    @property
    def total(self) -> float:
        """The sum of the three parts."""
        return self.negatives + self.positives + self.wrong_eta


def bias_bound(N: int, M: int, rho: float, gamma: float, eta: float | None = None) -> BiasBound:
    """Bound how far the expected loss of an anchor is from that of known labels.

    Args:
        N: negatives of the anchor, drawn from all images; at least 1.
        M: positives v of the anchor, drawn from its class; at least 1.
        rho: share of the anchor's class among all images, in [0, 1).
        gamma: root of the scale of s, above 0.
        eta: what the loss takes for rho, in [0, 1); None: rho itself.

    Returns:
        The parts of the bound, which holds for the `floor` of `debiased_contrastive_loss`; for
        anchors of several classes average them over the anchors.

    Raises:
        ObjectiveError: an argument is outside its range.

    Source: Wang et al. 2023, Proposition 2.1, with smaller constants: at gamma = 1 the paper has
        3 e^2 sqrt(pi / 2) where this has (e^2 - 1) / 2, and 3 e^2 where this has e^2 - 1.
    """
    eta = rho if eta is None else eta
    if N < 1 or M < 1 or not (0 <= rho < 1 and 0 <= eta < 1 and gamma > 0):
        raise ObjectiveError(
            f"N {N}, M {M}, rho {rho}, eta {eta}, gamma {gamma}: give counts of at least 1, "
            "probabilities below 1, and a gamma above 0"
        )
    scale = N / (N + 1) * _expm1(2 * gamma**2)
    # log(1 + N (e^{2 gamma^2} - eta) / (1 - eta)), in a form that no gamma overflows
    largest = 2 * gamma**2 + math.log(
        math.exp(-2 * gamma**2) + N * (1 - eta * math.exp(-2 * gamma**2)) / (1 - eta)
    )
    return BiasBound(
        negatives=scale / (2 * math.sqrt(N) * (1 - rho)),
        positives=scale * rho / (2 * math.sqrt(M) * (1 - rho)),
        wrong_eta=scale * abs(1 / (1 - eta) - 1 / (1 - rho)) if eta != rho else 0.0,
        ceiling=largest - math.log1p(N * math.exp(-2 * gamma**2)),
    )


def largest_gamma(at_one: BiasBound, nats: float) -> float:
    """Give the gamma up to which a bound is at most `nats`, by its value at gamma 1.

    All parts grow by the same factor, e^{2 gamma^2} - 1.
    """
    return math.sqrt(math.log1p(nats * math.expm1(2) / at_one.total) / 2)


def corrected_loss(uncorrected: float, N: int, eta: float) -> float | None:
    """Give the corrected loss of an anchor whose only v is its positive, by its InfoNCE loss.

    In nats; None where Eq. 8 is not positive and its floor stands.

    Source: Wang et al. 2023, Eq. 7 and 8 with M = 1 and v = x+, solved for the sum over negatives.
    """
    ratio = (math.expm1(uncorrected) - N * eta) / (1 - eta)
    return math.log1p(ratio) if ratio > 0 else None


def _expm1(value: float) -> float:
    try:
        return math.expm1(value)
    except OverflowError:
        return math.inf


main = tool_main("bound", command)

if __name__ == "__main__":
    sys.exit(main())
