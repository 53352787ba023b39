"""The runs -> a table with intervals, the comparisons that decide, and the bars."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.method.real_studies.questions import QUESTIONS, SIX
from benchmarks.method.real_studies.rows import (
    BASELINE,
    CONSTANT,
    CONSTANTS,
    DECISIVE,
    EARLY,
    IDEA_OF,
    IDEAS,
    ROWS,
)
from benchmarks.method.real_studies.runs import JUDGE, Run
from benchmarks.method.real_studies.studies import FOLDS, VARIANTS

PRIMARY = "mean_auc"
RIVALS = (EARLY, CONSTANT)
"""The better of which every honest row has to beat."""
HONEST = tuple(row.name for row in DECISIVE if row.part == "decisive" and row.name != BASELINE)
CONTROL_OF = {
    "cross": "cross_shuffled",
    "cross_place": "cross_place_shuffled",
    "cross_place_words": "cross_place_shuffled",
}
RECOMMENDED = "cross_place"
"""Row that was recommended before the first run."""
CONFIRMED, CONFIRMED_CONTROL = "relations_both", "relations_both_shuffled"
"""Row that led after the first seed, where it was exploratory. It is asked again with the second,
and those runs alone are judged: against the better rival, one comparison, named before they ran."""
STOP = 0.03
"""Below the baseline by more than that after three folds, an exploratory row stops."""
BARS = {
    "decisive_runs": ">= 10",
    "other_folds": ">= 3",
    "warm_runs": ">= 5",
    "best_minus_rival": "> 0",
    "best_minus_rival_low": "> 0",
    "best_minus_rival_holm_p": "< 0.05",
    "best_minus_control": "> 0",
    "shuffled_minus_infonce": "<= 0",
    "inverted_by_recommended": "0",
    "labels_macro_f1": ">= 0.90",
    "recipe_minutes": "<= 30",
    "recipe_auc_of_six": ">= 0.80",
    "ideas_ahead": ">= 1",
    "starts_ahead": ">= 1",
    "confirmed_runs": ">= 5",
    "confirmed_minus_rival": "> 0",
    "confirmed_minus_rival_low": "> 0",
    "confirmed_minus_control": "> 0",
}
"""Fixed before the first run. `rival`: the better of early InfoNCE and the best constant;
`control`: the best row's own with shuffled relations, which for other rows is that of cross;
`ideas_ahead`: ideas with a higher mean AUC than `relations_both` in each of three folds, fixed
before the first of them ran; `starts_ahead`: the same of other warm starts, against `warm`;
`confirmed`: see `CONFIRMED`, fixed before its second seed ran."""
HELD_AGAINST = {"warm": "random"} | dict.fromkeys(VARIANTS, "warm")
"""Start -> the start that it is compared with."""
_POWER = 0.8
_TEST_OVER_TRAIN = 1 / (FOLDS - 1)

Line = Mapping[str, Any]
Lines = Mapping[Run, Line]
"""Runs that are done, with what they came to."""


@dataclass(frozen=True)
class Difference:
    """Mean difference of two rows over the runs that both have, and how sure it is.

    `seen`: smallest difference that these runs would have shown, by 80 % power.
    """

    value: float
    low: float
    high: float
    p: float
    seen: float
    runs: int
    better: int
    """Runs in which the first row is ahead."""


def compare(one: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare paired runs by the corrected t test of repeated cross-validation.

    Runs share most of their training patients, so their variance understates that of the mean: a
    share n_test / n_train of it is added.

    Source: Nadeau and Bengio 2003, Eq. 9; Bouckaert and Frank 2004, Section 3.
    """
    gaps = np.array(one, dtype=float) - np.array(other, dtype=float)
    count = len(gaps)
    mean, better = float(gaps.mean()), int((gaps > 0).sum())
    if count < 3:
        return Difference(mean, np.nan, np.nan, np.nan, np.nan, count, better)
    error = float(np.sqrt((1 / count + _TEST_OVER_TRAIN) * gaps.var(ddof=1)))
    reach = float(stats.t.ppf(0.975, count - 1)) * error
    seen = reach + float(stats.t.ppf(_POWER, count - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0)
    return Difference(mean, mean - reach, mean + reach, p, seen, count, better)


def plain(found: Difference) -> dict[str, float | None]:
    """Give its numbers as JSON has them: null where so few runs say nothing."""
    return {name: None if value != value else value for name, value in vars(found).items()}


def holm(p: Mapping[Any, float]) -> dict[Any, float]:
    """Correct p values for their number (Holm 1979)."""
    corrected, most = {}, 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        most = max(most, min(1.0, p[name] * (len(p) - rank)))
        corrected[name] = most
    return corrected


def figures_of(lines: Lines, start: str = "random") -> dict[str, dict[tuple[int, int], Line]]:
    """Give row -> (fold, seed) -> figures.

    Tuned rows are those of the value that validation chose; the early row and the best constant
    stand beside those that are trained.
    """
    found: dict[str, dict[tuple[int, int], Line]] = {}
    for run, line in lines.items():
        row = ROWS[run.row]
        if run.start != start or run.value != chosen_value(lines, run):
            continue
        found.setdefault(run.row, {})[run.fold, run.seed] = line["figures"]
        if row.stopped:
            found.setdefault(row.stopped, {})[run.fold, run.seed] = line["early"]
    for fold, seed in found.get(BASELINE, {}):
        best = best_constant(lines, fold)
        own = lines.get(Run(start, best, "", fold, seed)) if best else None
        if own is not None:
            found.setdefault(CONSTANT, {})[fold, seed] = own["figures"]
    return found


def best_constant(lines: Lines, fold: int) -> str | None:
    """Name the constant that a fold's validation patients chose, by its first random start."""
    runs = [Run("random", f"constant_{value}", "", fold, 0) for value in CONSTANTS]
    if not all(run in lines for run in runs):
        return None
    return max(runs, key=lambda run: judged(lines[run])).row


def chosen_value(lines: Lines, run: Run) -> str | None:
    """Give the value of a tuned row that the fold's validation patients chose; None: not known."""
    points = [run._replace(value=value, seed=0) for value in ROWS[run.row].points]
    if len(points) == 1:
        return run.value
    if not all(point in lines for point in points):
        return None
    return max(points, key=lambda point: judged(lines[point])).value


def judged(line: Line) -> float:
    """Give the figure of validation that chooses."""
    return float(line["figures"]["validation"][JUDGE] or 0.0)


def paired(
    figures: Mapping[str, Mapping[tuple[int, int], Line]], one: str, other: str, name: str = PRIMARY
) -> Difference | None:
    """Compare two rows over the runs that both have; None where there is none."""
    both = sorted(figures.get(one, {}).keys() & figures.get(other, {}).keys())
    if not both:
        return None
    return compare(*([figures[row][key][name] for key in both] for row in (one, other)))


def between_starts(lines: Lines, start: str) -> dict[str, Difference]:
    """Compare each row with its own runs from the start in `HELD_AGAINST`, fold by fold."""
    own, other = figures_of(lines, start), figures_of(lines, HELD_AGAINST[start])
    pairs = {
        name: paired({"own": runs, "other": other.get(name, {})}, "own", "other")
        for name, runs in own.items()
    }
    return {name: found for name, found in pairs.items() if found is not None}


def is_stopped(figures: Mapping[str, Mapping[tuple[int, int], Line]], row: str) -> bool:
    """Whether an exploratory row is too far behind after three folds to go on."""
    if ROWS[row].part != "exploratory" or row.startswith("constant"):
        return False
    first = [(fold, 0) for fold in range(3)]
    if not all(key in figures.get(name, {}) for name in (row, BASELINE) for key in first):
        return False
    gap = [figures[row][key][PRIMARY] - figures[BASELINE][key][PRIMARY] for key in first]
    return float(np.mean(gap)) < -STOP


def table(lines: Lines, start: str = "random") -> dict[str, Any]:
    """Make the tree of the results of one start: a line a row, and the comparisons."""
    figures = figures_of(lines, start)
    names = [name for name in (*ROWS, EARLY, CONSTANT) if name in figures]
    rows = {name: _row(figures, name) for name in names}
    for name, found in between_starts(lines, start).items() if start in HELD_AGAINST else ():
        rows[name][f"against_{HELD_AGAINST[start]}"] = plain(found)
    tests = {
        f"{row} - {rival}": found
        for row in HONEST
        for rival in RIVALS
        if (found := paired(figures, row, rival)) is not None and found.runs >= 3
    }
    corrected = holm({name: found.p for name, found in tests.items()})
    return {
        "rows": rows,
        "primary": {
            name: {**plain(found), "holm": corrected[name]} for name, found in tests.items()
        },
    }


def _row(figures: Mapping[str, Mapping[tuple[int, int], Line]], name: str) -> dict[str, Any]:
    own = [*figures[name].values()]

    def mean(read: Callable[[Line], float | None]) -> float | None:
        values = [value for value in map(read, own) if value is not None]
        return round(float(np.mean(values)), 4) if values else None

    against = paired(figures, name, BASELINE) if name != BASELINE else None
    return {
        "title": ROWS[name].title if name in ROWS else _TITLES[name],
        "part": ROWS[name].part if name in ROWS else "decisive",
        "runs": len(own),
        **{key: mean(lambda line, key=key: line[key]) for key in _MEANS},
        "spread": round(float(np.std([line[PRIMARY] for line in own], ddof=1)), 4)
        if len(own) > 1
        else None,
        "least": round(min(line[PRIMARY] for line in own), 4),
        "inverted": sum(line["inverted"] for line in own),
        "asked": len(own) * len(QUESTIONS),
        "inverted_of_six": sum(
            (line["findings"][each]["auc"] or 0.5) < 0.5 for line in own for each in SIX
        ),
        "auc": {
            each.name: mean(lambda line, n=each.name: line["findings"][n]["auc"])
            for each in QUESTIONS
        },
        "correlation": {
            each.name: mean(lambda line, n=each.name: line["findings"][n]["correlation"])
            for each in QUESTIONS
        },
        "retrieval": {
            key: mean(lambda line, key=key: line["retrieval"][key]) for key in own[0]["retrieval"]
        },
        "probe": {key: mean(lambda line, key=key: line["probe"][key]) for key in own[0]["probe"]},
        "false_negatives": {
            key: mean(lambda line, key=key: line["false_negatives"][key])
            for key in own[0]["false_negatives"]
        },
        "against_baseline": None if against is None else plain(against),
    }


_MEANS = (
    *("mean_auc", "mean_auc_alone", "mean_auprc", "mean_accuracy", "mean_accuracy_offset"),
    *("mean_auc_of_six", "mean_auc_alone_of_six"),
)
_TITLES = {
    EARLY: "InfoNCE, both anchors, stopped early",
    CONSTANT: "DCL, best constant, both anchors",
}


def decide(lines: Lines) -> dict[str, float]:
    """Give the figures that `BARS` hold, of what has been run.

    The best honest row is that with the highest mean AUC; the rival is the better one of `RIVALS`.
    """
    figures, warm = figures_of(lines), figures_of(lines, "warm")
    trained = [row.name for row in DECISIVE]
    others = [row for row in ROWS.values() if row.part in {"exploratory", "ceiling"}]
    found: dict[str, float] = {
        "decisive_runs": min(len(figures.get(name, {})) for name in trained),
        "other_folds": min(len({f for f, _ in figures.get(row.name, {})}) for row in others),
        "warm_runs": min(len(warm.get(name, {})) for name in trained),
        **confirm(figures),
    }
    if not all(name in figures for name in (*HONEST, *RIVALS)):
        return found

    def mean(name: str) -> float:
        return float(np.mean([line[PRIMARY] for line in figures[name].values()]))

    best, rival = max(HONEST, key=mean), max(RIVALS, key=mean)
    against = paired(figures, best, rival)
    if against is None or against.runs < 3:
        return found
    tests = {
        (row, other): test.p
        for row in HONEST
        for other in RIVALS
        if (test := paired(figures, row, other)) is not None and test.runs >= 3
    }
    found |= {
        "best_minus_rival": against.value,
        "best_minus_rival_low": against.low,
        "best_minus_rival_holm_p": holm(tests)[best, rival],
    }
    for name, one, other in (
        ("best_minus_control", best, CONTROL_OF.get(best, "cross_shuffled")),
        ("shuffled_minus_infonce", "cross_shuffled", BASELINE),
    ):
        if (test := paired(figures, one, other)) is not None:
            found[name] = test.value
    ideas = [paired(figures, row.name, IDEA_OF) for row in IDEAS]
    if all(idea is not None and idea.runs >= 3 for idea in ideas):
        found["ideas_ahead"] = sum(idea.better == idea.runs for idea in ideas if idea is not None)
    starts = [between_starts(lines, start).get(CONFIRMED) for start in VARIANTS]
    if all(each is not None and each.runs >= 3 for each in starts):
        found["starts_ahead"] = sum(each.better == each.runs for each in starts if each is not None)
    inverted = [line["inverted"] for line in figures.get(RECOMMENDED, {}).values()]
    return found | ({"inverted_by_recommended": sum(inverted)} if inverted else {})


def confirm(figures: Mapping[str, Mapping[tuple[int, int], Line]]) -> dict[str, float]:
    """Judge the row that led by the runs of the second seed alone."""
    second = {
        name: {key: line for key, line in runs.items() if key[1] == 1}
        for name, runs in figures.items()
    }
    tests = [
        test
        for rival in RIVALS
        if (test := paired(second, CONFIRMED, rival)) is not None and test.runs >= 3
    ]
    if len(tests) < len(RIVALS):
        return {}
    test = min(tests, key=lambda each: each.value)
    found = {
        "confirmed_runs": test.runs,
        "confirmed_minus_rival": test.value,
        "confirmed_minus_rival_low": test.low,
        "confirmed_minus_rival_p": test.p,
    }
    control = paired(second, CONFIRMED, CONFIRMED_CONTROL)
    return found | ({} if control is None else {"confirmed_minus_control": control.value})


def text_of(tree: Mapping[str, Any]) -> str:
    """Lay out the tree of `table` for a terminal, best row first."""
    head = f"{'row':48} runs  AUC   alone   six  AUPRC  acc.  offset inverted  against InfoNCE both"
    lines = [head]
    rows = sorted(tree["rows"].values(), key=lambda row: -row["mean_auc"])
    for row in rows:
        against = row["against_baseline"]
        words = ""
        if against is not None:
            words = f"{against['value']:+.3f}"
            if against["runs"] >= 3:
                words += f" [{against['low']:+.3f}, {against['high']:+.3f}]"
                words += f", {against['better']} of {against['runs']} better"
        lines.append(
            f"{row['title'][:48]:48} {row['runs']:3}  {row['mean_auc']:.3f} "
            f"{row['mean_auc_alone']:.3f}  {row['mean_auc_of_six']:.3f} {row['mean_auprc']:.3f} "
            f"{row['mean_accuracy']:.3f} {row['mean_accuracy_offset']:.3f} "
            f"{row['inverted']:3}/{row['asked']:<4}  {words}"
        )
    lines += ["", "What decides, Holm over these:"]
    for name, found in tree["primary"].items():
        lines.append(
            f"{name:48} {found['value']:+.4f} [{found['low']:+.4f}, {found['high']:+.4f}], "
            f"{found['better']} of {found['runs']}, p {found['holm']:.3g}; "
            f"{found['seen']:.3f} would have been seen"
        )
    return "\n".join(lines)
