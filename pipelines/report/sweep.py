"""A sweep measured and compared, as a table for a terminal and as a picture.

Both are made from the tree of `sweep.json`: `figures` (title -> result), `axes` with their values,
and `points` with their settings `at`, `seeds`, `figures`, what was `tuned`, and the differences
`against` the `baseline`.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.evaluation.measure import SampleResults

from .comparison import (
    LEAST_RUNS,
    Side,
    compare_sides,
    describe_difference,
    estimate_side,
    measure_sides,
)

_MOST_LINES = 5  # of a chart


class PointResults(NamedTuple):
    """The results of a point's runs, and what else its part of the tree has."""

    facts: Mapping[str, Any]
    runs: Sequence[SampleResults]
    is_model: bool
    """Whether it is a given model, of which no other seed would make another."""


def measure_points(
    points: Sequence[PointResults],
    figures: Mapping[str, str],
    compared: Sequence[str],
    baseline: str,
    samples: int,
) -> dict[str, Any]:
    """Measure points on the same draws of patients, and compare them with one; a part of the tree.

    Figures that no run has are left out.

    Raises:
        ConfigError: there is none of the figures.
    """
    sides = measure_sides([point.runs for point in points], samples, np.random.default_rng(0))
    there = {figure for side in sides for figure in side}
    listed = {title: figure for title, figure in figures.items() if figure in there}
    if not listed:
        raise ConfigError(
            f"the runs have none of the figures {sorted(figures.values())}; use of {sorted(there)}"
        )
    wanted = [figure for figure in compared or figures.values() if figure in there]
    base = next((k for k, item in enumerate(points) if item.facts["name"] == baseline), 0)
    measured = []
    for number, (point, side) in enumerate(zip(points, sides, strict=True)):
        generator = np.random.default_rng(0)
        estimates = {
            title: {"n": len(point.runs), **asdict(estimate_side(side[name], generator))}
            for title, name in listed.items()
            if name in side
        }
        is_model = point.is_model and len(points[base].runs) > 1
        against = {} if number == base else _against(side, sides[base], wanted, is_model=is_model)
        measured.append({**point.facts, "figures": estimates, "against": against})
    axes = {
        axis: [*dict.fromkeys(point.facts["at"][axis] for point in points)]
        for axis in points[0].facts["at"]
    }
    facts = {"patients": len(points[0].runs[0].patients), "samples": samples}
    facts["baseline"] = points[base].facts["name"]
    return {**facts, "figures": listed, "axes": axes, "points": measured}


def _against(
    side: Side, baseline: Side, figures: Sequence[str], *, is_model: bool
) -> dict[str, Any]:
    both = [name for name in figures if name in side.keys() & baseline.keys()]
    generator = np.random.default_rng(0)
    differences = compare_sides(side, baseline, generator, both, is_model=is_model) if both else {}
    return {
        name: {**asdict(item), "verdict": describe_difference(name, item)}
        for name, item in differences.items()
    }


def sweep_text(tree: Mapping[str, Any]) -> str:
    """Lay out a line a point for a terminal, then its difference from the baseline."""
    points, wide = tree["points"], 2 + max(len(point["title"]) for point in tree["points"])
    lines = [
        f"{tree['patients']} patients, {tree['samples']} draws; mean over seeds +- half its 95 % "
        f"interval over patients and seeds: of one seed over patients alone, of fewer than "
        f"{LEAST_RUNS} none. In brackets what a paper reports.",
        f"{'':4}{'point':{wide}}" + "".join(f"{title:>20}" for title in tree["figures"]),
    ]
    for number, point in enumerate(points):
        cells = "".join(
            f"{_cell(point['figures'].get(title), point['published'].get(title)):>20}"
            for title in tree["figures"]
        )
        facts = f"seeds {len(point['seeds'])}, {point['seconds']:.0f} s"
        lines.append(f"{number:<4}{point['title']:{wide}}{cells}   {facts}")
    for point in points:
        if tuned := point["tuned"]:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in tuned["scores"].items())
            lines.append(
                f"{point['title']}: {tuned['value']} is best by {tree['judge']} ({scores})"
            )
    if len(points) > 1:
        lines += ["", f"against {tree['baseline']}, p corrected for the figures of a point:"]
    titles = {name: title for title, name in tree["figures"].items()}
    for point in points:
        verdicts = [
            f"{titles.get(name, name)} {item['estimate']['value']:+.3g} {item['verdict']}"
            for name, item in point["against"].items()
            if item["estimate"]["value"] is not None
        ]
        if verdicts:
            lines.append(f"{point['title']:{wide}}{'; '.join(verdicts)}")
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any] | None, published: float | None) -> str:
    if figure is None or figure["value"] is None:
        return "-"
    digits = 1 if abs(figure["value"]) >= 10 else 3
    half = "" if figure["high"] is None else f"+-{figure['high'] - figure['value']:.{digits}f}"
    few = f" n={figure['n']}" if figure["n"] < LEAST_RUNS else ""
    paper = "" if published is None else f" ({published:.{2 if published < 10 else 0}f})"
    return f"{figure['value']:.{digits}f}{half}{few}{paper}"


def draw_sweep(tree: Mapping[str, Any]) -> bytes:
    """Draw each figure against each axis with 95 % intervals; PNG."""
    axes, titles = tree["axes"], tree["figures"]
    size = (4.5 * len(titles), 3.4 * len(axes))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    charts = figure.subplots(len(axes), len(titles), squeeze=False)
    for (axis, ticks), row in zip(axes.items(), charts, strict=True):
        lines: dict[str, list[Mapping[str, Any]]] = {}
        for point in tree["points"]:
            others = {key: value for key, value in point["at"].items() if key != axis}
            words = (f"{key.rpartition('.')[2]} {_text(value)}" for key, value in others.items())
            lines.setdefault(", ".join(words), []).append(point)
        for title, chart in zip(titles, row, strict=True):
            for number, (name, points) in enumerate([*lines.items()][:_MOST_LINES]):
                drawn = [(point["at"][axis], point["figures"].get(title)) for point in points]
                drawn = [(at, item) for at, item in drawn if item and item["value"] is not None]
                x = [ticks.index(at) + 0.08 * number for at, _ in drawn]
                y = [item["value"] for _, item in drawn]
                reach = [(item["high"] or item["value"]) - item["value"] for _, item in drawn]
                chart.errorbar(x, y, reach, marker="o", label=name.replace("$", r"\$"))
            chart.set(title=title, xlabel=axis)
            chart.set_xticks(range(len(ticks)), [_text(tick).replace("$", r"\$") for tick in ticks])
            chart.tick_params(axis="x", rotation=90 if len(ticks) > 6 else 0)
            if len(lines) > 1:
                chart.legend(frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
