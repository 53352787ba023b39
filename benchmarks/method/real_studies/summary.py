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
RUNS = ("real_studies_runs.jsonl",)
TODAY = ("real_studies_repeated.jsonl", "real_studies_mates.jsonl")
"""Files of kept runs, one line a run: of earlier code; and of what `runs` trains, with runs of the
commit before, whose batches and first weights are the same, of folds and seeds that it has not."""
_SAME = {"infonce_both": "infonce", "relations_both": "relations"}  # of that commit's rows
_ROWS = yaml.safe_load(Path(__file__).with_name("rows.yaml").read_text(encoding="utf-8"))
TITLES: dict[str, str] = {
    **_ROWS["history"],
    **{name: row["title"] for name, row in _ROWS["rows"].items()},
}
BASELINE, CONSTANT = "infonce_both", "best_constant"
BASELINES = (BASELINE, "infonce")
CONSTANTS = tuple(f"constant_{value}" for value in (0.02, 0.05, 0.1, 0.2))
JUDGE = "validation_report_auc"
"""Figure of validation that chooses values and steps; it reads reports, and no expert's label."""
_TEST_OVER_TRAIN = 0.2 / 0.72  # a tenth of the other folds' patients validates
_LEAST_FOLDS = 3

Figures = Mapping[str, Any]
ByFold = dict[int, float]

FIGURES: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "auc_four": ("AUC, four sentences a side", lambda f: f["several_prompts"]["mean_auc"]),
    "auc_one": ("AUC, one pair", lambda f: f["mean_auc"]),
    "auc_six": ("AUC of six, four", lambda f: f["several_prompts"]["mean_auc_of_six"]),
    "auc_six_one": ("AUC of six, one pair", lambda f: f["mean_auc_of_six"]),
    "auprc": ("AUPRC, four", lambda f: f["several_prompts"]["mean_auprc"]),
    "auprc_one": ("AUPRC, one pair", lambda f: f["mean_auprc"]),
    "rank": ("image to report, median rank", lambda f: f["retrieval"]["image_to_report_median"]),
    "recall": ("R@10", lambda f: f["retrieval"]["image_to_report_r10"]),
    "report_rank": ("report to image, rank", lambda f: f["retrieval"]["report_to_image_median"]),
    "offset": ("accuracy, offset", lambda f: f["mean_accuracy_offset"]),
    "probe": ("probe, all labels", lambda f: f["probe"]["1"]),
    "emphysema": ("Emphysema, one pair", lambda f: f["findings"]["Emphysema"]["auc"]),
    "effusion": ("Effusion, four", lambda f: f["several_prompts"]["findings"]["Effusion"]["auc"]),
    "classifier": ("classifier on the tower", lambda f: f["head"]["mean_auc"]),
}
"""Name -> heading and reader. The first is primary."""
PRIMARY = next(iter(FIGURES))
COLUMNS = ("auc_four", "auc_one", "auc_six", "auprc", "rank", "recall")
"""Figures of the page's tables."""
SHOWN = ("relations_both", "cross", "best_constant", "paper", "infonce_both", "infonce_both_early")
SHOWN += ("relations_both_shuffled", "cross_shuffled", "ceiling")
"""Rows of the page's tables."""
SHOWN_TODAY = (
    "reader",
    "relations",
    "mates",
    "mates_head",
    "mates_cross",
    "infonce",
    "mates_shuffled",
)
"""Rows of the page that today's code ran."""
PAIRS_TODAY = tuple(
    ("random", one, other)
    for one, other in (
        ("mates", "infonce"),
        ("mates", "mates_shuffled"),
        ("mates_shuffled", "infonce"),
        ("reader", "infonce"),
        ("reader", "mates"),
        ("reader", "relations"),
        ("relations", "infonce"),
        ("mates", "relations"),
        ("mates_cross", "infonce"),
        ("mates_cross", "mates"),
        ("mates_head", "infonce"),
        ("mates_head", "mates"),
        ("sigmoid_relations", "relations"),
        ("relations_no_effusion", "relations"),
    )
)
PAIRS = (
    *(("random", "relations_both", other) for other in (*SHOWN[2:7], "cross", "ceiling")),
    *(("random", "cross", other) for other in (*SHOWN[2:5], "cross_shuffled")),
    *(("random", "paper", other) for other in ("infonce_both", "infonce_texts", "eta_shuffled")),
    *(("warm", row, "infonce_both") for row in SHOWN[:4]),
    *(("warm", "relations_both", other) for other in ("best_constant", "ceiling")),
)
"""Start, row, and the row that it is compared with, of the page's table of differences."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two rows over the folds that both have.

    `seen`: smallest difference that so many folds would have shown, by 80 % power.
    """

    value: float
    low: float
    high: float
    p: float
    seen: float
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
        return Difference(mean, np.nan, np.nan, np.nan, np.nan, count, ahead)
    error = float(np.sqrt((1 / count + _TEST_OVER_TRAIN) * gaps.var(ddof=1)))
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    seen = reach + float(stats.t.ppf(0.8, count - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Difference(mean, mean - reach, mean + reach, p, seen, count, ahead)


class Runs:
    """Kept runs: the figures of each row by start, fold and seed.

    A tuned row is that of the value which the fold's validation patients chose, and so is the best
    constant; `infonce_both_early` has the weights of the best validation step.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]]) -> None:
        tried: dict[tuple[str, str, int], dict[str, dict[int, Figures]]] = {}
        self._figures: dict[tuple[str, str], dict[tuple[int, int], Figures]] = {}
        for line in lines:
            run = line["run"]
            start, row, fold, seed = (run[name] for name in ("start", "row", "fold", "seed"))
            values = tried.setdefault((start, row, fold), {})
            values.setdefault(run["value"], {})[seed] = line["figures"]
            if "early" in line:
                self._add(start, f"{row}_early", fold, seed, line["early"])
        for (start, row, fold), values in tried.items():
            for seed, figures in values[max(values, key=lambda v: _judged(values[v]))].items():
                self._add(start, row, fold, seed, figures)
        for start, fold in {(start, fold) for start, _, fold in tried}:
            firsts = {row: tried.get(("random", row, fold), {}).get("") for row in CONSTANTS}
            known = {row: runs for row, runs in firsts.items() if runs}
            if len(known) == len(CONSTANTS):
                best = max(known, key=lambda row: _judged(known[row]))
                for seed, figures in tried.get((start, best, fold), {}).get("", {}).items():
                    self._add(start, CONSTANT, fold, seed, figures)

    def _add(self, start: str, row: str, fold: int, seed: int, figures: Figures) -> None:
        self._figures.setdefault((start, row), {})[fold, seed] = figures

    @property
    def baseline(self) -> str:
        """Name of the row of InfoNCE with both anchors."""
        return next(name for name in BASELINES if ("random", name) in self._figures)

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


def _judged(runs: Mapping[int, Figures]) -> float:
    # The first seed chooses; a row that nothing is chosen of may have no validation.
    return float((runs[min(runs)].get("validation") or {}).get(JUDGE) or 0.0)


def read_runs(files: Sequence[str] = RUNS) -> Runs:
    """Read the kept runs."""
    texts = ((RESULTS / name).read_text(encoding="utf-8") for name in files)
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return Runs(lines if files == RUNS else filter(None, map(_of_today, lines)))


def _of_today(line: Mapping[str, Any]) -> Mapping[str, Any] | None:
    row = line["run"]["row"]
    if row not in _ROWS["rows"] and row not in _SAME:
        return None
    return {"run": {**line["run"], "row": _SAME.get(row, row)}, "figures": line["figures"]}


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
        gain = None if row in BASELINES else runs.minus(row, runs.baseline, start=start)
        cells += ["-", "-"] if gain is None else [str(gain), f"{gain.ahead} of {gain.folds}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def comparisons(runs: Runs, pairs: Sequence[tuple[str, str, str]] = PAIRS) -> str:
    """Lay out differences of rows in Markdown: asked by four sentences a side, and by one pair."""
    heads = ["row", "minus", "four sentences a side", "ahead in", "one pair", "ahead in"]
    lines = [_line(heads), "|---" * len(heads) + "|"]
    for start, one, other in pairs:
        if not (runs.by_fold(start, one) and runs.by_fold(start, other)):
            continue
        cells = [f"{TITLES[one]}{' (pretrained)' * (start == 'warm')}", TITLES[other]]
        for figure in (PRIMARY, "auc_one"):
            gap = runs.minus(one, other, figure, start)
            cells += ["-", "-"] if gap is None else [str(gap), f"{gap.ahead} of {gap.folds}"]
        lines.append(_line(cells))
    return "\n".join(lines)


def show(value: float | None, figure: str) -> str:
    """Write a figure as tables have it."""
    if value is None:
        return "-"
    return f"{value:.0f}" if figure.endswith("rank") else f"{value:.3f}".replace("0.", ".")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("+0.", "+.").replace("-0.", "-.")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(_argv: Sequence[str] | None = None) -> int:
    """Print every row of every start, and the comparisons of the page."""
    runs, today = read_runs(), read_runs(TODAY)
    for start in ("random", "warm"):
        print(f"\n{start} start\n\n{table(runs, start, runs.rows(start), COLUMNS)}")
    print(f"\n{comparisons(runs)}\n\n{table(today, 'random', today.rows('random'), COLUMNS)}")
    print(f"\n{comparisons(today, PAIRS_TODAY)}")
    for figure in ("rank", "auprc", "auc_six", "effusion", "classifier"):
        gaps = [(pair, today.minus(*pair[1:], figure)) for pair in PAIRS_TODAY]
        print(f"\n{FIGURES[figure][0]}")
        print(*(f"{one} - {other}: {gap}" for (_, one, other), gap in gaps if gap), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
