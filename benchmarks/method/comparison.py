"""Runs -> tables of paired differences.

Every row is set against InfoNCE of the same seeds, and against the best constant eta: of
the constants with M = 1, in each metric the one with the best mean over the seeds. It is
picked after the fact, so that it is a rival as strong as it can be.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Runs = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Row -> seed -> metric -> value."""


@dataclass(frozen=True)
class Paired:
    """Differences of two rows in one metric, seed by seed."""

    differences: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean difference."""
        return statistics.fmean(self.differences)

    @property
    def median(self) -> float:
        """Median difference."""
        return statistics.median(self.differences)

    @property
    def sd(self) -> float:
        """Standard deviation over seeds; 0 for one."""
        return spread(self.differences)

    @property
    def wins(self) -> int:
        """Seeds in which the row is strictly better."""
        return sum(value > 0 for value in self.differences)


def spread(values: Sequence[float]) -> float:
    """Give the standard deviation of a sample; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def paired(runs: Runs, row: str, baseline: str, metric: str) -> Paired | None:
    """Compare two rows on the seeds that both have, by a metric of which more is better.

    None where no seed has both.
    """
    both = sorted(runs.get(row, {}).keys() & runs.get(baseline, {}).keys())
    if not both:
        return None
    return Paired(tuple(runs[row][seed][metric] - runs[baseline][seed][metric] for seed in both))


def best_constant(runs: Runs, constants: Iterable[str], metric: str) -> str | None:
    """Find the row with the constant eta that has the best mean in a metric.

    None where none has been run. A constant that lacks a seed of InfoNCE's is not finished, and
    does not compete.
    """
    asked = runs.get("infonce", {}).keys()
    finished = [row for row in constants if asked and runs.get(row, {}).keys() >= asked]
    means = {row: _mean(runs[row], metric) for row in finished}
    return max(means, key=lambda row: means[row]) if means else None


def print_table(title: str, table: Mapping[str, Any], metrics: Sequence[str]) -> None:
    """Print a table of `summary`: InfoNCE as it is, every other row as a difference to it."""
    if "infonce" not in table:
        return
    seeds = len(table["infonce"]["seeds"])
    print(f"\n## {title}: {seeds} seeds; paired differences to infonce, and wins\n")
    print("| row | " + " | ".join(metrics) + " | floor | n |")
    print("|---" * (len(metrics) + 3) + "|")
    for row, cells in table.items():
        shown = []
        for metric in metrics:
            mean, sd, *more = cells[metric]
            is_paired = row != "infonce" and more
            values = "{:+.3f}+-{:.3f} {}".format(*more) if is_paired else f"{mean:.3f} ({sd:.3f})"
            shown.append(values)
        print(f"| {row} | {' | '.join(shown)} | {cells['floor']:.2f} | {len(cells['seeds'])} |")


def summary(runs: Runs, metrics: Sequence[str], constants: Sequence[str]) -> dict[str, Any]:
    """Put a table into few numbers.

    Row -> metric -> [mean, sd, mean difference to infonce, its sd, wins, mean difference to the
    best constant, its sd, wins]; `seeds` and `floor` next to them.
    """
    tree: dict[str, Any] = {}
    for row, seeds in runs.items():
        tree[row] = {"seeds": sorted(seeds)}
        tree[row]["floor"] = round(
            statistics.fmean(figures.get("floor", 0.0) for figures in seeds.values()), 3
        )
        for metric in metrics:
            values = [figures[metric] for figures in seeds.values()]
            cells: list[float] = [_mean(seeds, metric), spread(values)]
            best = best_constant(runs, constants, metric)
            for baseline in ("infonce", best):
                found = paired(runs, row, baseline, metric) if baseline else None
                if found is not None:
                    cells += [found.mean, found.sd, found.wins]
            tree[row][metric] = [round(cell, 4) for cell in cells]
    return tree


def _mean(seeds: Mapping[int, Mapping[str, float]], metric: str) -> float:
    return statistics.fmean(figures[metric] for figures in seeds.values())
