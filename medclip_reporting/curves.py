"""Several runs on one page: their curves over each other, their figures side by side."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from medclip_dcl.evaluation import results
from medclip_reporting.charts import Labels, Series, draw_lines
from medclip_reporting.page import render

MOST_RUNS = 5
"""Lines of a chart that can be told apart."""

_CURVES = {
    "loss": "training loss, nats",
    "uncorrected_loss": "the same batches, uncorrected (InfoNCE), nats",
    "validation_uncorrected_loss": "validation loss, uncorrected, nats",
    "validation_auc": "validation AUC",
    "validation_report_auc": "validation AUC against the reports",
    "validation_recall_at_10": "validation R@10",
}
"""Figure of the log -> title of its chart; those that no run has are left out."""


class RunRecord(NamedTuple):
    """A run by its name: lines of its log, and the tree of its `results.json`, if there is one."""

    name: str
    log: Sequence[Mapping[str, Any]]
    results: Mapping[str, Any] | None


def curve(log: Sequence[Mapping[str, Any]], figure: str) -> tuple[list[float], list[float]]:
    """Give the steps at which a figure was measured, and its values."""
    points = [(line["step"], line[figure]) for line in log if line.get(figure) is not None]
    return [step for step, _ in points], [value for _, value in points]


def render_runs(runs: Sequence[RunRecord]) -> str:
    """Make the page of at most five runs: HTML with charts inline."""
    charts = [
        {"title": title, "svg": draw_lines(lines, Labels(title, "step", ""))}
        for title, lines in curves_of(runs).items()
    ]
    return render({"runs": runs, "charts": charts, "figures": _figures(runs)}, "runs.html")


def curves_of(runs: Sequence[RunRecord]) -> dict[str, list[Series]]:
    """List the lines of each chart by its title; charts without a line are left out."""
    charts = {}
    for figure, title in _CURVES.items():
        drawn = [(run.name, *curve(run.log, figure)) for run in runs]
        lines = [Series(name, steps, values) for name, steps, values in drawn if len(steps) > 1]
        if lines:
            charts[title] = lines
    return charts


def _figures(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    trees = [run.results for run in runs]
    titles = {
        headline.name: headline for tree in trees if tree for headline in results.headlines_of(tree)
    }
    rows = []
    for headline in titles.values():
        found = [tree and headline.figure_of(tree) for tree in trees]
        if any(figure and figure["value"] is not None for figure in found):
            rows.append({"title": headline.title, "values": found})
    return rows
