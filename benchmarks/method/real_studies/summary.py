"""The kept runs on real studies -> tables with intervals; no run is needed, and no torch.

    python -m benchmarks.method.real_studies.summary

prints every row. Two seeds of a fold share its training and test patients, so seeds are averaged
within a fold and a difference has as many values as folds.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

RESULTS = Path(__file__).parents[2] / "results"
EARLIER, TODAY = "real_studies_runs.jsonl", "real_studies_mates.jsonl"
"""Kept runs, one line a run: of commit b3f23b91, where a tuned row has the `value` that the fold's
validation patients chose; and of what `runs` trains, with some of commit 5d38ec2e, whose batches
and first weights are the same."""
_ROWS = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8"))
TITLES: dict[str, str] = _ROWS["history"] | {
    name: row["title"] for name, row in _ROWS["rows"].items()
}
BASELINE = "infonce"
PLANNED_SEEDS = 2
"""Seeds that the plan judges by. InfoNCE has a third, run later by today's code as a check."""
_TEST_OVER_TRAIN = 0.2 / 0.72  # a tenth of the other folds' patients validates
_LEAST_FOLDS = 3

Figures = Mapping[str, Any]
ByFold = dict[int, float]

FIGURES: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "auc_four": ("AUC, four", lambda f: f["several_prompts"]["mean_auc"]),
    "auc_one": ("AUC, one pair", lambda f: f["mean_auc"]),
    "auc_six": ("AUC of six, four", lambda f: f["several_prompts"]["mean_auc_of_six"]),
    "auc_six_one": ("AUC of six, one pair", lambda f: f["mean_auc_of_six"]),
    "auprc": ("AUPRC, four", lambda f: f["several_prompts"]["mean_auprc"]),
    "auprc_one": ("AUPRC, one pair", lambda f: f["mean_auprc"]),
    "rank": ("image to report, median rank", lambda f: f["retrieval"]["image_to_report_median"]),
    "recall": ("R@10", lambda f: f["retrieval"]["image_to_report_r10"]),
    "accuracy": ("accuracy at 0, four", lambda f: f["several_prompts"]["mean_accuracy"]),
    "emphysema": ("Emphysema, one pair", lambda f: f["findings"]["Emphysema"]["auc"]),
} | {
    finding.lower(): (
        f"{finding}, four",
        lambda f, name=finding: f["several_prompts"]["findings"][name]["auc"],
    )
    for finding in ("Atelectasis", "Cardiomegaly", "Effusion")
}
"""Name -> heading and reader. The first is primary."""
PRIMARY = next(iter(FIGURES))
COLUMNS = ("auc_four", "auc_one", "auc_six", "auprc", "rank", "recall")
"""Figures of the page's tables."""
SHOWN = (
    *("relations", "cross", "best_constant", "paper", BASELINE),
    *("relations_shuffled", "cross_shuffled", "ceiling"),
)
"""Rows of the page's tables."""
SHOWN_TODAY = ("reader", "relations", "mates", "mates_cross", "cross", BASELINE, "mates_shuffled")
"""Rows of the page that today's code ran."""
DECISIONS: list[list[str]] = _ROWS["decisions"]
"""Row of the plan, its rule, the rows and the figure that it compares, and the outcome."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two rows over the folds that both have, with its 95 % interval."""

    value: float
    low: float
    high: float
    p: float
    folds: int
    ahead: int
    """Folds in which the first row is higher."""

    def __str__(self) -> str:
        if self.folds < _LEAST_FOLDS:
            return _signed(self.value)
        return f"{_signed(self.value)} [{_signed(self.low)}, {_signed(self.high)}]"


def compare(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare paired folds by the corrected t test of cross-validation.

    Folds share most of their training patients, so their variance understates that of the mean: a
    share n_test / n_train of it is added.

    Source: Nadeau and Bengio 2003, Eq. 9.
    """
    gaps = np.array(one, dtype=float) - np.array(other, dtype=float)
    count, mean, ahead = len(gaps), float(gaps.mean()), int((gaps > 0).sum())
    if count < _LEAST_FOLDS:
        return Difference(mean, np.nan, np.nan, np.nan, count, ahead)
    error = float(np.sqrt((1 / count + _TEST_OVER_TRAIN) * gaps.var(ddof=1)))
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Difference(mean, mean - reach, mean + reach, p, count, ahead)


class Runs:
    """Kept runs: the figures of each row by start, fold and seed; a later line replaces another."""

    def __init__(self, lines: Iterable[Mapping[str, Any]]) -> None:
        self._figures: dict[tuple[str, str], dict[tuple[int, int], Figures]] = {}
        for line in lines:
            run = line["run"]
            of_row = self._figures.setdefault((run["start"], run["row"]), {})
            of_row[run["fold"], run["seed"]] = line["figures"]

    def rows(self, start: str) -> list[str]:
        """Names of a start's rows, the highest primary figure first."""
        names = [row for begin, row in self._figures if begin == start]

        def order(row: str) -> float:
            means = self.by_fold(start, row) or self.by_fold(start, row, "auc_one")
            return -float(np.mean([*means.values()]))

        return sorted(names, key=order)

    def by_fold(self, start: str, row: str, figure: str = PRIMARY) -> ByFold:
        """Mean of a figure over the seeds of each fold that has it."""
        seeds: dict[int, list[float]] = {}
        for (fold, _), figures in self._figures.get((start, row), {}).items():
            try:
                value = float(FIGURES[figure][1](figures))
            except KeyError:  # a question that this run was not asked
                continue
            seeds.setdefault(fold, []).append(value)
        return {fold: float(np.mean(seeds[fold])) for fold in sorted(seeds)}

    def mean(self, start: str, row: str, figure: str = PRIMARY) -> float | None:
        """Mean of a figure over the folds; None where no run has it."""
        values = [*self.by_fold(start, row, figure).values()]
        return float(np.mean(values)) if values else None

    def minus(
        self, one: str, other: str, figure: str = PRIMARY, start: str = "random"
    ) -> Difference | None:
        """Compare two rows of a start over the folds that both have; None where there is none."""
        return _difference(self.by_fold(start, one, figure), self.by_fold(start, other, figure))

    def gained(self, row: str, start: str, figure: str = PRIMARY) -> Difference | None:
        """Compare a row's runs from a start with its own from random weights."""
        return _difference(self.by_fold(start, row, figure), self.by_fold("random", row, figure))


def _difference(one: ByFold, other: ByFold) -> Difference | None:
    both = sorted(one.keys() & other.keys())
    return compare([one[k] for k in both], [other[k] for k in both]) if both else None


def read_runs(file: str = EARLIER, seeds: int = PLANNED_SEEDS) -> Runs:
    """Read the kept runs of the first so many seeds."""
    lines = map(json.loads, (RESULTS / file).read_text(encoding="utf-8").splitlines())
    return Runs(line for line in lines if line["run"]["seed"] < seeds)


def table(runs: Runs, start: str, rows: Sequence[str], figures: Sequence[str]) -> str:
    """Lay out rows in Markdown: each figure's mean, and the primary one's gain over InfoNCE.

    `folds` are those with the primary figure, and in brackets those with any.
    """
    heads = ["", "folds", *(FIGURES[name][0] for name in figures), "minus InfoNCE", "ahead in"]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for row in rows:
        asked, run = (len(runs.by_fold(start, row, name)) for name in (PRIMARY, "auc_one"))
        cells = [TITLES[row], str(asked) if asked == run else f"{asked} ({run})"]
        cells += [show(runs.mean(start, row, name), name) for name in figures]
        gain = None if row == BASELINE else runs.minus(row, BASELINE, start=start)
        lines.append(_line([*cells, *_cells(gain)]))
    return "\n".join(lines)


def decisions(runs: Runs) -> str:
    """Lay out what the rules of the plan say of the runs, in Markdown."""
    heads = ["", "rule", "row", "minus", "AUC, four, or as named", "ahead in", "outcome"]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for name, rule, one, other, figure, outcome in DECISIONS:
        gap = runs.minus(one, other, figure)
        named = "" if figure == PRIMARY else f"{FIGURES[figure][0]}: "
        value, ahead = _cells(gap)
        cells = [name, rule, TITLES[one], TITLES[other], named + value, ahead]
        lines.append(_line([*cells, outcome if gap else "not run"]))
    return "\n".join(lines)


def styles(runs: Runs) -> str:
    """Lay out what training on rewritten reports costs on the first folds, in Markdown."""
    names = {"": "as written"} | {f"_{name}": name for name in ("shorthand", "form", "dictated")}
    lines = [_line(["", *names.values()]), "|---" * (1 + len(names)) + "|"]
    for row in ("relations", "mates", BASELINE):
        cells = []
        for style in names:
            by_fold = runs.by_fold("random", f"{row}{style}")
            values = [value for fold, value in by_fold.items() if fold < _LEAST_FOLDS]
            cells.append(
                f"{show(float(np.mean(values)), PRIMARY)} ({len(values)})" if values else "-"
            )
        lines.append(_line([TITLES[row], *cells]))
    return "\n".join(lines)


def show(value: float | None, figure: str) -> str:
    """Write a figure as tables have it."""
    if value is None:
        return "-"
    return f"{value:.0f}" if figure.endswith("rank") else f"{value:.3f}".replace("0.", ".")


def _cells(gap: Difference | None) -> list[str]:
    return ["-", "-"] if gap is None else [str(gap), f"{gap.ahead} of {gap.folds}"]


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("+0.", "+.").replace("-0.", "-.")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(_argv: Sequence[str] | None = None) -> int:
    """Print every row of every start, and what the rules of the plan say."""
    runs, today = read_runs(), read_runs(TODAY)
    for start in ("random", "warm"):
        print(f"\n{start} start\n\n{table(runs, start, runs.rows(start), COLUMNS)}")
    print(f"\n{table(today, 'random', today.rows('random'), COLUMNS)}")
    print(f"\n{decisions(today)}\n\n{styles(today)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
