"""A grid of settings over several seeds: its points, its runs, its table."""

import fcntl
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TextIO

import numpy as np
import typer
import yaml
from pydantic import Field, model_validator

from medclip_dcl.core.artifact import HEADER, open_artifact, read_artifact_header
from medclip_dcl.core.errors import ArtifactMissing, ConfigError, JobFailed
from medclip_dcl.core.files import disk_faults_named, write_text
from medclip_dcl.core.settings import Section, check_settings, read_yaml
from medclip_dcl.data import manifest
from medclip_dcl.evaluation import results
from medclip_dcl.training import checkpoint
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.logging import read_metrics
from medclip_dcl.training.settings import BestMetric, lower_is_better

from .cli import ConfigFile, Overrides
from .config import check_config, laid_over, setting_tree
from .data import refuse_missing_labels
from .job import STOPPED, Job, Stopped, run_job
from .run import run as run_config
from .stages import DATA_ARTIFACTS, STAGES, stages_of

CHANGED_SECTIONS = ("eta", "model", "objective", "train")  # sections that a grid may change
_FIGURES = {
    "AUC": "zero_shot.mean_auc",
    "ACC offset": "zero_shot.mean_balanced_accuracy_offset",
    "signed CNR": "grounding.cnr_signed",
    "Recall": "boxes.own_recall",
}

Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]


class Row(Section):
    """A named point of a grid."""

    title: str = ""
    """What the table calls it; empty: its name."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted setting -> value."""
    seeds: Seeds | None = None
    """Its own seeds; null: those of the grid."""
    published: dict[str, float] = Field(default_factory=dict)
    """Title of a figure -> what a paper reports of it on its own data, printed in brackets."""


class Grid(Section):
    """A grid file."""

    axes: dict[str, Values | dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """Setting -> its values; or any name -> named values, each a map of settings."""
    rows: dict[str, Row] = Field(default_factory=dict)
    """Points by name, in place of axes."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every point."""
    seeds: Seeds = (0, 1, 2)
    """Runs of each point."""
    figures: Annotated[dict[str, str], Field(min_length=1)] = Field(default=_FIGURES)
    """Title -> `question.figure` of the results that is listed; what no run has is left out."""
    judge: BestMetric = ""
    """Validation metric that chooses each run's published step, where the config's
    `train.best_metric` names none. Its best value is listed too: of values that are tried, choose
    by it, and not by figures on the test patients."""

    @model_validator(mode="after")
    def _one_kind_of_points(self) -> Self:
        if bool(self.axes) == bool(self.rows):
            raise ValueError("axes, or rows, name the points of a grid; give one of them")
        return self


@dataclass(frozen=True)
class GridPoint:
    """One point of a grid: its values by axis, and what it changes in a config."""

    name: str  # such as `a=0.2,k=0.35`, also that of its folder; empty without axes
    at: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    row: Row = field(default_factory=Row)


def read_grid(path: Path) -> Grid:
    """Read a grid file; ConfigError where it breaks a rule."""
    return check_settings(Grid, read_yaml(path, "grid"), f"grid {path}")


def grid_points(grid: Grid) -> list[GridPoint]:
    """List the points of a grid, of axes every combination, the last changing fastest.

    ConfigError where two of them would share a folder.
    """
    if grid.rows:
        return [
            GridPoint(name, {"row": name}, {**grid.settings, **row.settings}, row)
            for name, row in grid.rows.items()
        ]
    short = {axis: axis.rpartition(".")[2] for axis in grid.axes}
    if len(set(short.values())) < len(short):
        short = {axis: axis for axis in grid.axes}
    points = []
    for chosen in itertools.product(*grid.axes.values()):
        at = dict(zip(grid.axes, chosen, strict=True))
        changes = dict(grid.settings)
        for axis, value in at.items():
            named = grid.axes[axis]
            changes |= named[value] if isinstance(named, Mapping) else {axis: value}
        texts = {
            axis: value if isinstance(value, str) else json.dumps(value)
            for axis, value in at.items()
        }
        words = [f"{short[axis]}={text}" for axis, text in texts.items()]
        points.append(GridPoint(re.sub(r"[^\w.,=+-]", "_", ",".join(words)), at, changes))
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise ConfigError("two points of the grid share a folder's name; name the axis's values")
    return points


JUDGED = "validation"
"""Title of the judge's figure."""
FOLDER, FIGURES = "sweeps", "sweep.json"
CONFIG_FILE, LOG = "config.yaml", "log.txt"
_STAGES = ("build_eta_cache", "train", "evaluate")  # those of a run; all before are shared
_SHARED = [name for name in DATA_ARTIFACTS if name != "eta_cache"]


@dataclass(frozen=True)
class Run:
    """A point with one seed: its folder and its settings."""

    point: str
    seed: int
    folder: Path
    settings: Mapping[str, Any]

    def seconds(self) -> float:
        """Sum up what its model and its results took."""
        made = [self.folder / name for name in ("model", "results")]
        headers = [read_artifact_header(path) for path in made if (path / HEADER).is_file()]
        return float(sum(header.origin["seconds"] for header in headers))

    def judged(self, metric: str) -> float:
        """Look up the best value of a validation metric, that of the published step."""
        log = read_metrics(checkpoint.ARTIFACT.at(self.folder))
        values = [line[metric] for line in log if line.get(metric) is not None]
        values = [value for value in values if math.isfinite(value)]
        if not values:
            raise ArtifactMissing(
                f"run {self.folder} has no {metric} in its log; delete it and run again"
            )
        return float(min(values) if lower_is_better(metric) else max(values))


class Sweep:
    """The runs of a grid below one folder.

    ConfigError where a changed setting belongs to a stage that all runs share.
    """

    def __init__(self, job: Job, name: str, grid: Grid) -> None:
        self.job, self.name, self.grid = job, name, grid
        self.folder, self.points = job.work / FOLDER / name, grid_points(grid)
        self.metric: str = job.config.train.best_metric or grid.judge
        sections = {key.partition(".")[0] for point in self.points for key in point.changes}
        if others := sorted(sections.difference(CHANGED_SECTIONS)):
            raise ConfigError(
                f"a grid changes {others}, which its runs share; change settings of "
                f"{', '.join(CHANGED_SECTIONS)}, or give each value a config of its own"
            )

    def prepare(self) -> None:
        """Run the stages that all runs share; each leaves alone what is valid."""
        before = tuple(STAGES)[: list(STAGES).index(_STAGES[0])]
        tree = self.job.config.model_dump(mode="json")
        tree["jobs"] = [stage for stage in stages_of(self.job.config) if stage in before]
        with _alone_in(self.folder):
            write_text(self.folder / CONFIG_FILE, yaml.safe_dump(tree, sort_keys=False))
            if tree["jobs"]:
                code = run_config(self.folder / CONFIG_FILE, replace=True)
                _check(code, "correct what the stage names, and run again to go on")

    def plan(self) -> dict[str, list[Run]]:
        """Plan every run: point -> a run for each seed; ConfigError where a value breaks its rule.

        The folder that they share is written out: a run's own is another.
        """
        tree = _filled_in(self.job.config.model_dump(mode="json"), str(self.job.work))
        return {
            point.name: [
                self._run(point, seed, deepcopy(tree))
                for seed in point.row.seeds or self.grid.seeds
            ]
            for point in self.points
        }

    def _run(self, point: GridPoint, seed: int, tree: dict[str, Any]) -> Run:
        folder = self.folder / point.name / f"seed-{seed}"
        tree |= {"work": str(folder), "seed": seed, "jobs": list(_STAGES)}
        tree["train"]["best_metric"] = self.metric
        for key, value in point.changes.items():
            tree = laid_over(tree, setting_tree(key, value))
        config = check_config(tree, f"of run {point.name}")
        listed = manifest.ARTIFACT.at(self.job.work)
        if (listed / HEADER).is_file():
            refuse_missing_labels(config, read_artifact_header(listed))
        return Run(point.name, seed, folder, tree)

    def do(self, run: Run) -> None:
        """Run the stages of a run, which report into its log and leave alone what is valid.

        JobFailed where a stage failed.
        """
        with _alone_in(run.folder), (run.folder / LOG).open("a") as log:
            self._lay_out(run)
            with _printing_into(log):
                code = run_config(run.folder / CONFIG_FILE, replace=True)
        _check(
            code,
            f"run {run.folder} ended with exit code {code}; its {LOG} says why; correct that and "
            "run again",
        )
        self.job.say(run=run.point, seed=run.seed, seconds=run.seconds())

    def _lay_out(self, run: Run) -> None:
        """Write a run's config, and links to what all share."""
        config_file = run.folder / CONFIG_FILE
        text = yaml.safe_dump(dict(run.settings), sort_keys=False)
        if config_file.is_file() and config_file.read_text(encoding="utf-8") != text:
            # Checkpoints of other settings are of no use; the log is that of a finished model, too.
            CheckpointStore(checkpoint.ARTIFACT.at(run.folder), {}).clear()
        for name in _SHARED:
            link, target = run.folder / name, self.job.work / name
            if target.is_dir() and not link.is_symlink():
                link.symlink_to(os.path.relpath(target, run.folder))
        write_text(config_file, text)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    # Another slice may prepare, or do the same run.
    folder.mkdir(parents=True, exist_ok=True)
    with disk_faults_named(folder), (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _filled_in(tree: Any, work: str) -> Any:
    if isinstance(tree, dict):
        return {key: _filled_in(value, work) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled_in(value, work) for value in tree]
    return tree.replace("${WORK}", work) if isinstance(tree, str) else tree


def _check(code: int, words: str) -> None:
    if code == STOPPED:
        raise Stopped
    if code:  # below 0: killed from outside, most likely for its memory
        raise JobFailed(words, max(code, 1))


@contextmanager
def _printing_into(log: TextIO) -> Iterator[None]:
    # The descriptors too: libraries write to them, and stages inherit them.
    before = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
        with redirect_stdout(log), redirect_stderr(log):
            yield
    finally:
        log.flush()
        for number, own in zip((1, 2), before, strict=True):
            os.dup2(own, number)
            os.close(own)


def read_slice(text: str, names: Sequence[str]) -> set[str]:
    """Read names of points, or their numbers, such as `0,2`; empty: all; ConfigError for others."""
    name_of = {str(number): name for number, name in enumerate(names)} | {n: n for n in names}
    words = [word for word in text.split(",") if word]
    if unknown := [word for word in words if word not in name_of]:
        raise ConfigError(f"--points names {unknown}; choose among {', '.join(names)}")
    return {name_of[word] for word in words} or set(names)


def _sweep(job: Job, name: str, grid: Grid, points: str) -> None:
    """Do the runs of a grid, or of a slice; of the whole write the figures and print the table."""
    sweep = Sweep(job, name, grid)
    taken = read_slice(points, [point.name for point in sweep.points])
    sweep.plan()  # refuses what is wrong in a point before anything is prepared
    sweep.prepare()
    planned = sweep.plan()
    for run in itertools.chain(*itertools.zip_longest(*planned.values())):  # seed by seed
        if run and run.point in taken:
            sweep.do(run)
    if len(taken) < len(planned):
        job.say(next="the same without --points, for the table")
        return
    tree = _measure(sweep, planned)
    write_text(sweep.folder / FIGURES, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    print(sweep_text(tree), flush=True)
    job.say(points=len(tree["points"]), figures=str(sweep.folder / FIGURES))


def _measure(sweep: Sweep, planned: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    for point in sweep.points:
        runs = planned[point.name]
        kind = results.ARTIFACT
        trees = [results.read_figures(open_artifact(kind.at(run.folder), kind)) for run in runs]
        figures = {title: _over_runs(trees, name) for title, name in sweep.grid.figures.items()}
        if sweep.metric:
            judged = [run.judged(sweep.metric) for run in runs]
            figures = {JUDGED: _spread(judged), **figures}
        points.append(
            {
                "name": point.name,
                "title": point.row.title or point.name,
                "at": dict(point.at),
                "seeds": [run.seed for run in runs],
                "seconds": float(np.mean([run.seconds() for run in runs])),
                "published": point.row.published,
                "figures": {title: figure for title, figure in figures.items() if figure},
            }
        )
    titles = (JUDGED, *sweep.grid.figures)
    listed = [title for title in titles if any(title in point["figures"] for point in points)]
    if not set(listed) - {JUDGED}:
        raise ConfigError(f"the runs have none of the figures {[*sweep.grid.figures.values()]}")
    return {"grid": sweep.name, "judge": sweep.metric, "figures": listed, "points": points}


def _over_runs(trees: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any] | None:
    # Mean and standard deviation over the runs; None where one of them has no such figure.
    question, _, figure = name.partition(".")
    measured = [
        tree["questions"].get(question, {}).get("figures", {}).get(figure) for tree in trees
    ]
    values = [item["value"] for item in measured if item and item["value"] is not None]
    return _spread(values) if len(values) == len(trees) else None


def _spread(values: Sequence[float]) -> dict[str, Any]:
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"value": float(np.mean(values)), "deviation": spread, "values": [*values]}


def sweep_text(tree: Mapping[str, Any]) -> str:
    """Lay out a line a point for a terminal."""
    points, wide = tree["points"], 2 + max(len(point["title"]) for point in tree["points"])
    lines = [
        "mean over seeds +- their standard deviation; in brackets what a paper reports. Which of "
        "two points is better: medclip compare FOLDER FOLDER",
        f"{'':4}{'point':{wide}}" + "".join(f"{title:>20}" for title in tree["figures"]),
    ]
    for number, point in enumerate(points):
        cells = "".join(
            f"{_cell(point['figures'].get(title), point['published'].get(title)):>20}"
            for title in tree["figures"]
        )
        facts = f"seeds {len(point['seeds'])}, {point['seconds']:.0f} s"
        lines.append(f"{number:<4}{point['title']:{wide}}{cells}   {facts}")
    return "\n".join(lines)


def _cell(figure: Mapping[str, Any] | None, published: float | None) -> str:
    if figure is None:
        return "-"
    digits = 1 if abs(figure["value"]) >= 10 else 3
    spread = "" if figure["deviation"] is None else f"+-{figure['deviation']:.{digits}f}"
    paper = "" if published is None else f" ({published:.{2 if published < 10 else 0}f})"
    return f"{figure['value']:.{digits}f}{spread}{paper}"


def sweep(
    config: ConfigFile,
    grid: Annotated[Path, typer.Option(metavar="FILE", help="The grid, a YAML file.")],
    overrides: Overrides = None,
    points: Annotated[str, typer.Option(help="Do these alone, such as 0,2, or by name.")] = "",
) -> int:
    """Train and evaluate a grid of settings over several seeds: a table.

    A grid is a YAML file with `axes`, whose combinations are its points, or with named `rows`. Each
    run is a `medclip run` in `sweeps/GRID/POINT/seed-S`, which resumes where it stopped; stages
    before the first that the grid changes are done once, in the config's folder. Which of two
    points is better, and whether other seeds would agree, says `medclip compare` of their folders.

    Runs go one after another. `--points` does a slice, such as `--points $SLURM_ARRAY_TASK_ID`;
    slices may go side by side, each on the GPU that CUDA_VISIBLE_DEVICES names. The call without it
    leaves alone what is done, and writes `sweep.json` below `sweeps/GRID`.
    """
    read = read_grid(grid)
    return run_job("sweep", lambda job: _sweep(job, grid.stem, read, points), config, overrides)
