"""The beds: what each runs, on which seeds, in which order, and the columns of its table.

Seeds were written down before any row but InfoNCE had been run, and none of them had been
used to choose a size. Main rows of every bed come before the rest, and all rows of a seed
before the next seed, so that a stopped benchmark has compared whatever it has run.
"""

import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.method import digits, phantom, studies, tradeoff
from benchmarks.method.comparison import Runs
from benchmarks.method.phantom import examine
from benchmarks.method.rows import (
    ASSERTING,
    BOTH,
    CROSS,
    CROSS_RIVALS,
    MAIN,
    PIXELS_FIRST,
    PIXELS_THEN,
    PLACED,
    PLACED_RIVALS,
    Row,
    factorial,
)
from benchmarks.run_log import Run, RunLog

PHANTOM_SEEDS = tuple(range(300, 308))
STUDIES_SEEDS = tuple(range(310, 315))
DIGITS_SEEDS = tuple(range(320, 325))
TRADEOFF_SEEDS = tuple(range(330, 340))
CROSS_SEEDS = tuple(range(500, 508))
PIXELS_SEEDS = tuple(range(510, 518))
ASSERTING_SEEDS = tuple(range(520, 524))
SHARES = (0.1, 0.25, 0.5)

PHANTOM, STUDIES, DIGITS, TRADEOFF = "phantom", "studies", "digits", "tradeoff"
CROSS_PHANTOM, CROSS_STUDIES = "cross phantom", "cross studies"
ASSERTING_STUDIES = "asserting studies"
SUITES = (PHANTOM, CROSS_PHANTOM, TRADEOFF, STUDIES, CROSS_STUDIES, ASSERTING_STUDIES, DIGITS)
"""In the order in which they are run."""
_BOXES = ("r1", "r5", "b2s10", "s2b10", "map", "cnr", "cnr abs", "miou", "point")
_PIXELS = ("auc", "acc", "acc offset", *_BOXES, "r1 by claim", "r1 within claim")
_PHANTOM = ("auc rare", "r1", "r5", "r1 rare", "i2s", "map", "point", "cnr", "cnr rare")
METRICS: Mapping[str, tuple[str, ...]] = {
    PHANTOM: ("auc", "auc single", "acc", *_PHANTOM),
    CROSS_PHANTOM: ("auc", "acc", "acc offset", *_PHANTOM),
    STUDIES: ("auc", "acc", *_BOXES),
    CROSS_STUDIES: _PIXELS,
    ASSERTING_STUDIES: _PIXELS,
    DIGITS: ("lp1", "lp5", "mean"),
    TRADEOFF: ("auc", "acc", "r1", "r1 rare", "cnr"),
}
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    PHANTOM: ("const 0.02", "const 0.05", "const 0.1", "const 0.2", "const 0.3"),
    CROSS_PHANTOM: tuple(row.name for row in CROSS_RIVALS),
    STUDIES: ("const 0.05", "const 0.1"),
    CROSS_STUDIES: tuple(row.name for row in PLACED_RIVALS),
    ASSERTING_STUDIES: (PLACED.name,),
    DIGITS: ("low", "high", "high, fallback"),
    TRADEOFF: (),
}
"""Rows that the best rival is picked from, in each metric after the fact."""
GOALS: Mapping[str, str] = {
    PHANTOM: "multipositive claims",
    CROSS_PHANTOM: "cross",
    STUDIES: "multipositive claims",
    CROSS_STUDIES: PLACED.name,
    ASSERTING_STUDIES: ASSERTING[-1].name,
    DIGITS: "true",
    TRADEOFF: "",
}
"""Row that is set against the best rival."""
STOPPED = "stopped"
SHORT, LONG, AUGMENTED = "700 steps", "2,000 steps", "augmented"
_LENGTHS = {
    SHORT: (phantom.EARLY_STEPS, 0.0),
    LONG: (phantom.STEPS, 0.0),
    AUGMENTED: (phantom.AUGMENTED_STEPS, 1.0),
}
"""Setting of the confirmatory round -> training steps, noise on the regions of each step."""
_PIXELS_ROWS = (PIXELS_FIRST, PIXELS_THEN)
QUICK_MAIN = ("infonce", "multipositive claims", "true")
QUICK_ROWS = (*QUICK_MAIN, "const 0.1")
QUICK_STUDIES: tuple[str, ...] = (
    "generate.patients=120",
    "generate.coverage_images=1",
    "language_model.steps=60",
)


@dataclass(frozen=True)
class Size:
    """How much of a bed is run."""

    quick: bool
    work: Path

    def seeds(self, full: tuple[int, ...]) -> tuple[int, ...]:
        """Give the seeds: those of the full run, or two that it does not use."""
        return (0, 1) if self.quick else full


def settings_of(suite: str) -> tuple[str, ...]:
    """Give the settings of a bed; each has a table of its own."""
    if suite == DIGITS:
        return tuple(f"r = {r}" for r in SHARES)
    if suite == TRADEOFF:
        return tuple(f"gamma^2 = {gamma_squared:g}" for gamma_squared, _, _ in tradeoff.SETTINGS)
    if suite == CROSS_PHANTOM:
        return (STOPPED, *_LENGTHS)
    return ("",)


def runs_of(run_log: RunLog, suite: str, setting: str) -> Runs:
    """Give the runs of one table: row -> seed -> figures.

    The setting `stopped` takes of every row and seed the length of training with the better `report
    auc`, a figure of validation images and their reports.
    """
    if setting == STOPPED:
        return _stopped([runs_of(run_log, suite, length) for length in (SHORT, LONG)])
    rows: dict[str, dict[int, Mapping[str, float]]] = {}
    for trial, figures in run_log.found.items():
        run = Run.of(trial)
        if (run.bed, run.setting) == (suite, setting):
            rows.setdefault(run.row, {})[run.seed] = figures
    return rows


def _stopped(lengths: Sequence[Runs]) -> Runs:
    short, long = lengths
    return {
        row: {
            seed: max((runs[row][seed] for runs in lengths), key=lambda run: run["report auc"])
            for seed in short[row].keys() & long[row].keys()
        }
        for row in short
        if row in long
    }


def run_suites(suites: Iterable[str], size: Size, run_log: RunLog) -> None:
    """Run what is not done yet of some beds."""
    runs = {
        PHANTOM: _phantom_runs,
        CROSS_PHANTOM: _cross_phantom_runs,
        STUDIES: _studies_runs,
        CROSS_STUDIES: functools.partial(_pixels_runs, CROSS_STUDIES, PIXELS_SEEDS, _PIXELS_ROWS),
        ASSERTING_STUDIES: functools.partial(
            _pixels_runs, ASSERTING_STUDIES, ASSERTING_SEEDS, (ASSERTING, ())
        ),
        DIGITS: _digits_runs,
        TRADEOFF: _tradeoff_runs,
    }
    for main in (True, False):
        for suite in suites:
            for run, work in runs[suite](size, main=main):
                run_log.once(run.trial, functools.partial(_measured, run, work))


Work = functools.partial[dict[str, float]]


def _measured(run: Run, work: Work) -> dict[str, float]:
    begun = time.process_time()
    figures = {name: round(float(value), 5) for name, value in work().items()}
    figures["cpu s"] = round(time.process_time() - begun, 2)
    shown = "  ".join(f"{name} {value:.3f}" for name, value in list(figures.items())[:4])
    took = f"({figures['cpu s']} s)"
    print(f"{run.bed} {run.setting} seed {run.seed} {run.row}: {shown}  {took}", flush=True)
    return figures


def _phantom_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    for seed in size.seeds(PHANTOM_SEEDS):
        for row in factorial():
            asked = row.name in QUICK_ROWS if size.quick else True
            if asked and (row in MAIN) == main:
                yield Run(PHANTOM, "", row.name, seed), Work(_measure_phantom, row, seed)


def _cross_phantom_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    for seed in size.seeds(CROSS_SEEDS) if main else ():
        for setting, (steps, noise) in list(_LENGTHS.items())[: 2 if size.quick else None]:
            for row in CROSS:
                if not size.quick or row.name in {*QUICK_MAIN, "cross"}:
                    work = Work(_measure_phantom, row, seed, steps, noise)
                    yield Run(CROSS_PHANTOM, setting, row.name, seed), work


def _measure_phantom(
    row: Row, seed: int, steps: int | None = None, noise: float = 0.0
) -> dict[str, float]:
    model, gauges = phantom.train(row, seed, steps, noise)
    return examine(model, phantom.world_of(seed)) | gauges


def _tradeoff_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    asked = list(zip(tradeoff.SETTINGS, settings_of(TRADEOFF), strict=True)) if main else []
    for seed in size.seeds(TRADEOFF_SEEDS):
        for (gamma_squared, eta, floor), setting in asked[-1:] if size.quick else asked:
            for name, value in (("infonce", 0.0), (f"const {eta}", eta)):
                work = Work(tradeoff.measure, gamma_squared, value, floor, seed)
                yield Run(TRADEOFF, setting, name, seed), work


def _studies_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    seeds, steps = STUDIES_SEEDS, studies.STEPS
    settings: tuple[str, ...] = ()
    rows: tuple[Row, ...] = MAIN if main else BOTH
    if size.quick:
        seeds, steps, settings = (0,), 20, QUICK_STUDIES
        rows = tuple(row for row in MAIN if main and row.name in QUICK_MAIN)
    for seed in seeds:
        for row in rows:
            job = Work(studies.measure, row, size.work / STUDIES, seed, steps, settings)
            yield Run(STUDIES, "", row.name, seed), job


def _pixels_runs(
    suite: str,
    seeds: tuple[int, ...],
    both: tuple[tuple[Row, ...], tuple[Row, ...]],
    size: Size,
    *,
    main: bool,
) -> Iterator[tuple[Run, Work]]:
    rows = both[0] if main else both[1]
    steps, settings = studies.STEPS, studies.STOPPED
    if size.quick:
        seeds, steps = (0,), 20
        settings = (*settings, *QUICK_STUDIES, "train.validate_every_steps=10")
        rows = tuple(row for row in rows if row.name in {"infonce", GOALS[suite]})
    for seed in seeds:
        for row in rows:
            job = Work(studies.measure, row, size.work / "cross_studies", seed, steps, settings)
            yield Run(suite, "", row.name, seed), job


def _digits_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    for r in SHARES[:1] if main else () if size.quick else SHARES[1:]:
        for seed in (0,) if size.quick else DIGITS_SEEDS:
            for row in digits.ROWS:
                if not size.quick or row.name in QUICK_MAIN:
                    work = Work(digits.measure, row, r, seed)
                    yield Run(DIGITS, f"r = {r}", row.name, seed), work
