"""The beds: what each runs, on which seeds, in which order, and the columns of its table.

Seeds were written down before any row but InfoNCE had been run, and none of them had been
used to choose a size. Main rows of every bed come before the rest, and all rows of a seed
before the next seed, so that a stopped benchmark has compared whatever it has run.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.method import digits, phantom, studies, tradeoff
from benchmarks.method.phantom_examination import examine
from benchmarks.method.rows import BOTH, MAIN, Row, factorial
from benchmarks.method.run_log import Run, RunLog

PHANTOM_SEEDS = tuple(range(300, 308))
STUDIES_SEEDS = tuple(range(310, 315))
DIGITS_SEEDS = tuple(range(320, 325))
TRADEOFF_SEEDS = tuple(range(330, 340))
SHARES = (0.1, 0.25, 0.5)

PHANTOM, STUDIES, DIGITS, TRADEOFF = "phantom", "studies", "digits", "tradeoff"
SUITES = (PHANTOM, TRADEOFF, STUDIES, DIGITS)
"""In the order in which they are run."""
METRICS: Mapping[str, tuple[str, ...]] = {
    PHANTOM: (
        "auc",
        "auc single",
        "acc",
        "auc rare",
        "r1",
        "r5",
        "r1 rare",
        "i2s",
        "map",
        "point",
        "cnr",
        "cnr rare",
    ),
    STUDIES: ("auc", "acc", "r1", "r5", "b2s10", "s2b10", "map", "cnr", "cnr abs", "miou", "point"),
    DIGITS: ("lp1", "lp5", "mean"),
    TRADEOFF: ("auc", "acc", "r1", "r1 rare", "cnr"),
}
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    PHANTOM: ("const 0.02", "const 0.05", "const 0.1", "const 0.2", "const 0.3"),
    STUDIES: ("const 0.05", "const 0.1"),
    DIGITS: ("low", "high", "high, fallback"),
    TRADEOFF: (),
}
"""Rows that the best constant is picked from."""
GOALS: Mapping[str, str] = {
    PHANTOM: "multipositive claims",
    STUDIES: "multipositive claims",
    DIGITS: "true",
    TRADEOFF: "",
}
"""Row that is set against the best constant."""
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
    """Give the settings of a bed; each has a table of its own.

    Args:
        suite: its name.

    Returns:
        Their names.
    """
    if suite == DIGITS:
        return tuple(f"r = {r}" for r in SHARES)
    if suite == TRADEOFF:
        return tuple(f"gamma^2 = {gamma_squared:g}" for gamma_squared, _, _ in tradeoff.SETTINGS)
    return ("",)


def run_suites(suites: Iterable[str], size: Size, run_log: RunLog) -> None:
    """Run what is not done yet.

    Args:
        suites: the beds.
        size: how much of them.
        run_log: receives the runs.
    """
    runs = {
        PHANTOM: _phantom_runs,
        STUDIES: _studies_runs,
        DIGITS: _digits_runs,
        TRADEOFF: _tradeoff_runs,
    }
    for main in (True, False):
        for suite in suites:
            for run, work in runs[suite](size, main=main):
                run_log.measure(run, work)


Work = functools.partial[dict[str, float]]


def _phantom_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    for seed in size.seeds(PHANTOM_SEEDS):
        for row in factorial():
            asked = row.name in QUICK_ROWS if size.quick else True
            if asked and (row in MAIN) == main:
                yield Run(PHANTOM, "", row.name, seed), Work(_measure_phantom, row, seed)


def _measure_phantom(row: Row, seed: int) -> dict[str, float]:
    model, gauges = phantom.train(row, seed)
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
    rows = MAIN if main else BOTH
    if size.quick:
        seeds, steps, settings = (0,), 20, QUICK_STUDIES
        rows = tuple(row for row in MAIN if main and row.name in QUICK_MAIN)
    for seed in seeds:
        for row in rows:
            job = Work(studies.measure, row, size.work / STUDIES, seed, steps, settings)
            yield Run(STUDIES, "", row.name, seed), job


def _digits_runs(size: Size, *, main: bool) -> Iterator[tuple[Run, Work]]:
    for r in SHARES[:1] if main else () if size.quick else SHARES[1:]:
        for seed in (0,) if size.quick else DIGITS_SEEDS:
            for row in digits.ROWS:
                if not size.quick or row.name in QUICK_MAIN:
                    work = Work(digits.measure, row, r, seed)
                    yield Run(DIGITS, f"r = {r}", row.name, seed), work
