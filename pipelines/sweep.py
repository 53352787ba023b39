"""Train and evaluate a grid of settings over several seeds: a table, and a figure per axis.

Any config may be swept. Each run has a folder, `sweeps/GRID/POINT/seed-S`, and resumes where it
stopped (see `runs`). Runs go side by side, one on each visible GPU in turn, two without a GPU. With
`--processes 1` a run keeps the config's threads; with more it has one.

On a cluster, `--points` and `--seeds` do a slice: `sbatch --array 0-11`, and in the job
`--points $SLURM_ARRAY_TASK_ID`. Whichever call finds every run done writes `sweep.json`,
`sweep.csv` and `sweep.html` below `sweeps/GRID`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.measure import read_sample_results
from medclip_dcl.files import write_text
from medclip_reporting.comparison import (
    Side,
    compare_sides,
    estimate_side,
    measure_sides,
)
from medclip_reporting.sweep import render_sweep, sweep_csv, sweep_text

from .cli import ConfigFile, Overrides, tool_main
from .config import Config
from .grid import Grid, GridPoint, grid_points, read_grid
from .job import Job, run_job
from .runs import Run, Runs

FOLDER, FIGURES = "sweeps", "sweep.json"

Processes = Annotated[int, typer.Option(min=0, help="Runs at a time; 0: one a GPU, 2 without one.")]
Slice = Annotated[str, typer.Option(help="Do these alone, such as 0,2.")]


def measure_runs(runs: Mapping[str, Sequence[Run]], samples: int) -> tuple[dict[str, Side], int]:
    """Measure the runs of each name on the same draws of patients; and count the patients."""
    sides = [
        [
            read_sample_results(open_artifact(results.ARTIFACT.at(run.folder), results.ARTIFACT))
            for run in each
        ]
        for each in runs.values()
    ]
    measured = measure_sides(sides, samples, np.random.default_rng(0))
    return dict(zip(runs, measured, strict=True)), len(sides[0][0].patients)


def describe_runs(runs: Sequence[Run], side: Side) -> dict[str, Any]:
    """Give seeds, mean costs, and every figure with its interval over patients and seeds."""
    costs, generator = [run.costs() for run in runs], np.random.default_rng(0)
    estimates = {name: asdict(estimate_side(values, generator)) for name, values in side.items()}
    return {
        "seeds": [run.seed for run in runs],
        "cost": {
            name: round(float(np.mean([cost[name] for cost in costs])), 2) for name in costs[0]
        },
        "figures": {name: {"n": len(runs), **found} for name, found in estimates.items()},
    }


def read_slice(text: str, known: Sequence[Any], what: str) -> set[Any]:
    """Read what an option names, such as `0,2` or `0-3`; empty: everything that is known.

    Raises:
        ConfigError: it names something else.
    """
    words = [word for word in text.split(",") if word]
    named: list[str] = []
    for word in words:
        ends = re.fullmatch(r"(\d+)-(\d+)", word)
        named += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [word]
    by_name = {str(item): item for item in known}
    if unknown := [name for name in named if name not in by_name]:
        raise ConfigError(f"{what} names {', '.join(unknown)}; choose among {', '.join(by_name)}")
    return {by_name[name] for name in named} if named else set(known)


def build(job: Job, name: str, grid: Grid, processes: int, points: str, seeds: str) -> None:
    """Run what is missing of a grid, then write table and page."""
    folder, grid_of = job.work / FOLDER / name, grid_points(grid.axes)
    taken = {grid_of[index].name for index in read_slice(points, range(len(grid_of)), "--points")}
    chosen = read_slice(seeds, grid.seeds, "--seeds")
    changed = {key for point in grid_of for key in point.changes} | grid.settings.keys()
    runs = Runs(job, folder, changed, processes=processes, judge=grid.judge)
    runs.prepare()
    planned = {
        name: {
            point.name: [
                runs.plan(point.name, seed, {**grid.settings, **point.changes})
                for seed in grid.seeds
            ]
            for point in grid_of
        }
    }
    kept = runs.race(planned, grid.keep, lambda run: run.name in taken and run.seed in chosen)
    if not runs.is_complete(planned, kept):
        return
    done = {key: kept[name].get(key, each[:1]) for key, each in planned[name].items()}
    tree = _measure_grid(name, grid, grid_of, done, job.config)
    write_text(folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    write_text(folder / "sweep.csv", sweep_csv(tree))
    write_text(folder / "sweep.html", render_sweep(tree))
    print(sweep_text(tree), flush=True)
    job.say(points=len(grid_of), page=str(folder / "sweep.html"))


def _measure_grid(
    name: str,
    grid: Grid,
    points: Sequence[GridPoint],
    runs: Mapping[str, Sequence[Run]],
    config: Config,
) -> dict[str, Any]:
    sides, patients = measure_runs(runs, config.evaluate.bootstrap)
    known = {figure for side in sides.values() for figure in side}
    if unknown := sorted(set(grid.figures) - known):
        raise ConfigError(
            f"grid {name}: the runs have no figures {unknown}; use of {sorted(known)}"
        )
    found = []
    for point in points:
        one = describe_runs(runs[point.name], sides[point.name])
        one["figures"] = {key: one["figures"].get(key) for key in grid.figures}
        judged = runs[point.name][0].judged(grid.judge) if grid.judge else None
        found.append({"name": point.name, "at": dict(point.at), "judged": judged, **one})
    axes = {axis: [*values] for axis, values in grid.axes.items()}
    facts = {"grid": name, "patients": patients, "samples": config.evaluate.bootstrap}
    least = _detectable([sides[point.name] for point in points], grid.figures)
    return {**facts, "judge": grid.judge, "detectable": least, "axes": axes, "points": found}


def _detectable(sides: Sequence[Side], figures: Sequence[str]) -> dict[str, float | None]:
    """Give the smallest difference of two points that would be seen: the median over pairs."""
    first, *others = sides
    known = [figure for figure in figures if all(figure in side for side in sides)]
    found = [
        compare_sides(first, other, np.random.default_rng(0), known) for other in others if known
    ]
    each = {figure: [pair[figure].detectable for pair in found] for figure in known}
    least = {
        figure: float(np.median([value for value in values if value is not None]))
        for figure, values in each.items()
        if any(value is not None for value in values)
    }
    return {figure: least.get(figure) for figure in figures}


def command(
    config: ConfigFile,
    grid: Annotated[Path, typer.Option(metavar="FILE", help="The grid, a YAML file.")],
    overrides: Overrides = None,
    processes: Processes = 0,
    points: Slice = "",
    seeds: Slice = "",
) -> int:
    """Run a grid of settings; returns the exit code."""
    read = read_grid(grid)

    def work(job: Job) -> None:
        build(job, grid.stem, read, processes, points, seeds)

    return run_job("sweep", work, config, overrides)


main = tool_main("sweep", command)

if __name__ == "__main__":
    sys.exit(main())
