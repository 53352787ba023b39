"""A grid of settings as text, as CSV, and as one page with a figure per axis.

Each is made from the tree of `sweep.json`: `axes`, `points` with their settings `at`, `seeds`,
`cost`, `judged` and `figures`, and `detectable`, the smallest difference between two points that
would have been seen, by figure.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from medclip_reporting.charts import Interval, Labels, draw_intervals
from medclip_reporting.comparison import LEAST_RUNS
from medclip_reporting.page import render

_MOST_LINES = 5

FEW_SEEDS = (
    f"of one seed (n=1) over patients alone, of fewer than {LEAST_RUNS} there is no interval"
)
"""What an interval of few seeds is."""


def render_sweep(tree: Mapping[str, Any]) -> str:
    """Make the page of a sweep from the tree of its `sweep.json`: HTML with charts inline."""
    figures = [*tree["points"][0]["figures"]]
    axes = [
        {
            "name": axis,
            "charts": [_chart(tree, axis, figure) for figure in figures],
            "lines": len(_others(tree["points"], axis)),
        }
        for axis in tree["axes"]
    ]
    said = {"drawn": axes, "figures": figures, "most": _MOST_LINES, "few_seeds": FEW_SEEDS}
    return render({**tree, **said}, "sweep.html")


def sweep_csv(tree: Mapping[str, Any]) -> str:
    """Lay out a line a point: its settings, and each figure with the ends of its interval."""
    stream = io.StringIO()
    figures = [*tree["points"][0]["figures"]]
    ends = {"value": "", "low": " low", "high": " high"}
    writer = csv.writer(stream, lineterminator="\n")
    heads = [f"{name}{mark}" for name in figures for mark in ends.values()]
    writer.writerow([*tree["axes"], "seeds", "cpu_s", tree["judge"] or "judge", *heads])
    for point in tree["points"]:
        cells = [(point["figures"][name] or {}).get(end) for name in figures for end in ends]
        facts = [len(point["seeds"]), point["cost"]["cpu_s"], point["judged"]]
        writer.writerow([*point["at"].values(), *facts, *cells])
    return stream.getvalue()


def sweep_text(tree: Mapping[str, Any]) -> str:
    """Lay out a line a point for a terminal, with its number."""
    figures = [*tree["points"][0]["figures"]]
    wide = max(len(point["name"]) for point in tree["points"]) + 2
    titles = "".join(f"{name.rpartition('.')[2][:24]:>26}" for name in figures)
    lines = [
        f"{tree['patients']} patients; mean over seeds and half its 95 % interval; {FEW_SEEDS}",
        f"{'':4}{'point':{wide}}{titles}",
    ]
    for number, point in enumerate(tree["points"]):
        cells = "".join(f"{figure_text(point['figures'][name]):>26}" for name in figures)
        lines.append(f"{number:<4}{point['name']:{wide}}{cells}   seeds {len(point['seeds'])}")
    cells = "".join(f"{_least(tree['detectable'][name]):>26}" for name in figures)
    lines.append(f"{'':4}{'80 % power at':{wide}}{cells}")
    return "\n".join(lines)


def _least(value: float | None) -> str:
    return "not known" if value is None else f"{value:.2g}"


def figure_text(found: Mapping[str, Any] | None) -> str:
    """Write a figure with half its interval, `0.862+-0.013`, and the seeds where they are few."""
    if found is None or found["value"] is None:
        return "-"
    digits = 1 if abs(found["value"]) >= 10 else 3
    half = "" if found["high"] is None else f"+-{found['high'] - found['value']:.{digits}f}"
    few = f" n={found['n']}" if found["n"] < LEAST_RUNS else ""
    return f"{found['value']:.{digits}f}{half}{few}"


def _chart(tree: Mapping[str, Any], axis: str, figure: str) -> Markup:
    # One line for each setting of the other axes.
    ticks = [_text(value) for value in tree["axes"][axis]]
    lines = []
    for other in _others(tree["points"], axis)[:_MOST_LINES]:
        mine = [point for point in tree["points"] if _without(point["at"], axis) == other]
        found = [point["figures"][figure] or {} for point in mine]
        name = ", ".join(f"{key.rpartition('.')[2]} {_text(value)}" for key, value in other.items())
        value, low, high = (
            [_number(item.get(end), item.get("value")) for item in found]
            for end in ("value", "low", "high")
        )
        lines.append(Interval(name, value, low, high))
    alt = f"{figure} against {axis}, with 95 % intervals"
    return draw_intervals(lines, ticks, Labels(alt, axis, figure.rpartition(".")[2]))


def _others(points: Sequence[Mapping[str, Any]], axis: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for point in points:
        other = _without(point["at"], axis)
        if other not in found:
            found.append(other)
    return found


def _without(at: Mapping[str, Any], axis: str) -> dict[str, Any]:
    return {key: value for key, value in at.items() if key != axis}


def _number(value: float | None, otherwise: float | None) -> float:
    # An interval that is not known has no length.
    known = value if value is not None else otherwise
    return float("nan") if known is None else known


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
