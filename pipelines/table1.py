"""Train and evaluate every row of the paper's Table 1 over several seeds, and print it.

`--set` reads a list as JSON, its words in quotes: `--set 'table1.rows=["lse_nl", "dcl_lm"]'`.

A grid of settings as `sweep` runs it, resumable and cut into slices in the same way, each run below
`table1/ROW`. A row that has something to tune is trained with each of its values and the first
seed; the value that is best by `train.best_metric`, a figure of validation, gets the other seeds.
The first seed's run of that value is one of those reported.

Next to each figure stand half its 95 % interval, over patients and seeds, and in brackets the
paper's value where a row is trained as the paper's. Every row is compared with the uncorrected one;
next to "no difference shown" stands the smallest difference that would have been seen. Of two seeds
there is no interval, of one no verdict.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from medclip_dcl.files import write_text
from medclip_reporting.comparison import (
    Side,
    compare_sides,
    describe_difference,
    power_text,
)
from medclip_reporting.sweep import FEW_SEEDS, figure_text

from .cli import ConfigFile, Overrides, tool_main
from .config import Config
from .grid import PlannedRuns, grid_points
from .job import Job, run_job
from .runs import Planned, Run, Runs
from .sweep import Processes, Slice, describe_runs, measure_runs, read_slice
from .table1_rows import (
    BASELINE,
    COLUMNS,
    COMPARED,
    MORE,
    Row,
    chosen_rows,
    paper_values,
    row_seeds,
    tuned_by,
)

FOLDER = "table1"
FIGURES = "table1.json"
_WIDTH = 20
_GAUGES = ("negatives_removed", "effective_negatives")


def build(job: Job, processes: int = 0, rows: str = "", seeds: str = "") -> None:
    """Run what is missing of a slice, and print the table once all of it is done."""
    config, folder = job.config, job.work / FOLDER
    settings, table = config.table1, chosen_rows(config)
    taken = read_slice(rows, [row.name for row in table], "--rows")
    seeds_of = {row.name: row_seeds(row, settings) for row in table}
    every_seed = dict.fromkeys(seed for each in seeds_of.values() for seed in each)
    chosen = read_slice(seeds, [*every_seed], "--seeds")
    judge = tuned_by(config)
    points = {row.name: grid_points(row.tune if judge else {}) for row in table}
    changed = {key for row in table for key in (*row.changes, *row.tune)}
    runs = Runs(job, folder, changed, processes=processes, judge=judge)
    runs.prepare()
    planned: Planned = {
        row.name: {
            point.name: [
                runs.plan(
                    f"{row.name}/{point.name}".rstrip("/"),
                    seed,
                    {**row.changes, **point.changes},
                    row.adapter,
                )
                for seed in seeds_of[row.name]
            ]
            for point in points[row.name]
        }
        for row in table
    }
    kept = runs.race(
        planned, 1, lambda run: run.name.partition("/")[0] in taken and run.seed in chosen
    )
    if not runs.is_complete(planned, kept):
        return
    tree = _measure_table(table, planned, kept, job)
    write_text(folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    print(table_text(tree), flush=True)


def table_runs(config: Config) -> list[PlannedRuns]:
    """List the runs that the table trains: all seeds of each row, one of each other value."""
    found = []
    for row in chosen_rows(config):
        if row.is_trained:
            points = grid_points(row.tune if tuned_by(config) else {})
            seeds = len(row_seeds(row, config.table1))
            found += [
                PlannedRuns({**row.changes, **point.changes}, 1 if at else seeds)
                for at, point in enumerate(points)
            ]
    return found


def _measure_table(
    rows: Sequence[Row], planned: Planned, kept: Planned, job: Job
) -> dict[str, Any]:
    """Measure every row over its runs, with its costs, and against the uncorrected row."""
    config, judge = job.config, tuned_by(job.config)
    best = {name: next(iter(points.items())) for name, points in kept.items()}
    samples = config.evaluate.bootstrap
    sides, patients = measure_runs({name: runs for name, (_, runs) in best.items()}, samples)
    tree: dict[str, Any] = {}
    for row in rows:
        value, runs = best[row.name]
        tried = {name: each[0] for name, each in planned[row.name].items()}
        tree[row.name] = {
            "title": row.title,
            **describe_runs(runs, sides[row.name]),
            "paper": paper_values(row, config),
            "tuned": _tuning(tried, value, judge) if len(tried) > 1 else None,
            "gauges": _gauges(runs),
        }
        if row.name != BASELINE and BASELINE in sides:
            is_model = not row.is_trained and len(best[BASELINE][1]) > 1
            tree[row.name]["against_baseline"] = _against(
                sides[row.name], sides[BASELINE], is_model=is_model
            )
    return {"samples": samples, "patients": patients, "judge": judge, "rows": tree}


def _tuning(tried: Mapping[str, Run], value: str, judge: str) -> dict[str, Any]:
    scores = {name: round(run.judged(judge), 4) for name, run in tried.items()}
    others = sum(run.costs()["cpu_s"] for name, run in tried.items() if name != value)
    return {"value": value, "seed": tried[value].seed, "scores": scores, "cpu_s": round(others, 1)}


def _gauges(runs: Sequence[Run]) -> dict[str, float]:
    """Give the means over runs and logged steps of what a row does to negatives."""
    lines = [line for run in runs for line in run.log()]
    known = {name: [line[name] for line in lines if line.get(name) is not None] for name in _GAUGES}
    return {name: round(float(np.mean(values)), 4) for name, values in known.items() if values}


def _against(side: Side, baseline: Side, *, is_model: bool) -> dict[str, Any]:
    chosen = [name for name in COMPARED if name in side.keys() & baseline.keys()]
    differences = compare_sides(side, baseline, np.random.default_rng(0), chosen, is_model=is_model)
    return {
        name: {
            "difference": item.estimate.value,
            "low": item.estimate.low,
            "high": item.estimate.high,
            "p": item.estimate.p,
            "corrected_p": item.corrected_p,
            "detectable": item.detectable,
            "verdict": describe_difference(name, item),
        }
        for name, item in differences.items()
    }


def table_text(tree: Mapping[str, Any]) -> str:
    """Lay out the tree of `table1.json` as the paper does."""
    columns = {**COLUMNS, **MORE}
    head = f"{'Method':34}" + "".join(f"{name:>{_WIDTH}}" for name in columns) + "   seeds  cpu s"
    lines = [
        "Table 1. Mean over seeds +- half its 95 % interval over patients and seeds; in brackets "
        f"the paper's, on MIMIC-CXR, of rows trained as the paper's. {FEW_SEEDS.capitalize()}.",
        f"{tree['patients']} patients, {tree['samples']} draws. Recall: mean of R@10, R@50, R@100 "
        "both ways. Right is the paired item alone, as in the paper, and after its ties; `ties`: "
        "its ties in random order; `words`: any item with those words. `offset`: each prompt is "
        "levelled. CNR has no sign, and so a chance level far above 0; rows are compared by signed "
        "CNR.",
        "",
        head,
    ]
    for row in tree["rows"].values():
        cells = "".join(
            f"{_cell(row['figures'].get(figure), row['paper'].get(name)):>{_WIDTH}}"
            for name, figure in columns.items()
        )
        lines.append(f"{row['title']:34}{cells}{len(row['seeds']):8}{row['cost']['cpu_s']:7.0f}")
    lines += _effort_lines(tree)
    lines += ["", f"p below .05 after correction for the {len(COMPARED)} figures of a row:"]
    for row in tree["rows"].values():
        if "against_baseline" in row:
            lines.append(f"{row['title']:34} against no correction: {_verdict(row)}")
    return "\n".join(lines)


def _verdict(row: Mapping[str, Any]) -> str:
    # Differences first, then what was not seen, with how large it would have had to be.
    titles = {figure: name for name, figure in {**COLUMNS, **MORE}.items()}
    shown, silent = [], []
    for name, item in row["against_baseline"].items():
        if item["verdict"] in {"A is better", "B is better"}:
            shown.append(f"{titles[name]} {item['difference']:+.3g}")
        elif item["corrected_p"] is not None:
            silent.append(f"{titles[name]}{power_text(item['detectable'])}")
    if not shown and not silent:
        return "not judged: one seed of a row is one model"
    words = [", ".join(shown)] if shown else []
    words += [f"no difference shown in {', '.join(silent)}"] if silent else []
    return "; ".join(words)


def _effort_lines(tree: Mapping[str, Any]) -> list[str]:
    # How hard each row was tuned, and what it did to negatives.
    judge = tree["judge"] or "nothing: no row is tuned"
    lines = [
        "",
        f"Tuned with the first seed by {judge}; share of negatives removed, and how many act:",
    ]
    for row in tree["rows"].values():
        tuned, words = row["tuned"], "one value"
        if tuned:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in tuned["scores"].items())
            words = f"{len(tuned['scores'])} values, {tuned['value']} taken ({scores})"
        gauges = row["gauges"]
        if len(gauges) == len(_GAUGES):
            words += "; {:.1%} removed, {:.1f} act".format(*(gauges[name] for name in _GAUGES))
        lines.append(f"{row['title']:34} {words}")
    return lines


def _cell(found: Mapping[str, Any] | None, paper: float | None) -> str:
    if paper is None:
        return figure_text(found)
    return f"{figure_text(found)} ({paper:.{2 if paper < 10 else 0}f})".replace("(0.", "(.")


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    processes: Processes = 0,
    rows: Slice = "",
    seeds: Slice = "",
) -> int:
    """Run the table, or a slice of it; returns the exit code."""
    return run_job("table1", lambda job: build(job, processes, rows, seeds), config, overrides)


main = tool_main("table1", command)

if __name__ == "__main__":
    sys.exit(main())
