"""Bound the bias of the debiased loss, and show what a wrong eta costs.

The bound is Proposition 2.1 of Wang et al. 2023 with smaller constants; it is empty at the scale of
a trained model, and then says so. The second table is exact: what the correction makes of an
anchor's loss, and of the gradient of its negatives, with the positive alone as v.
"""

import math
import sys
from typing import Annotated

import typer

from medclip_dcl.errors import ConfigError, ObjectiveError
from medclip_dcl.losses.bound import bias_bound, corrected_loss, largest_gamma

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


main = tool_main("bound", command)

if __name__ == "__main__":
    sys.exit(main())
