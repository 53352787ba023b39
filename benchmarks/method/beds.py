"""The beds: what each runs, on which seeds, in which order, and the columns of its table.

Seeds were written down before any row but InfoNCE had been run, and none of them had been
used to choose a size. A bed runs seed by seed, every row of a seed in turn, so that a
stopped benchmark has compared whatever it has run.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.method import digits, phantom, studies, tradeoff
from benchmarks.method.ledger import Ledger, Run
from benchmarks.method.phantom_examination import examine
from benchmarks.method.rows import BOTH, MAIN, Row, factorial

PHANTOM_SEEDS = tuple(range(300, 308))
STUDIES_SEEDS = tuple(range(310, 315))
DIGITS_SEEDS = tuple(range(320, 325))
TRADEOFF_SEEDS = tuple(range(330, 340))
SHARES = (0.1, 0.25, 0.5)

PHANTOM, STUDIES, DIGITS, TRADEOFF = "phantom", "studies", "digits", "tradeoff"
BEDS = (PHANTOM, TRADEOFF, STUDIES, DIGITS)
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
    STUDIES: ("auc", "acc", "r1", "r5", "b2s10", "s2b10", "cnr", "cnr abs", "miou", "point"),
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
QUICK_ROWS = {"infonce", "const 0.1", "pll", "multipositive claims", "multipositive shuffled"}
QUICK_STUDIES = (
    "generate.patients=150",
    "generate.coverage_films=1",
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


def settings_of(bed: str) -> tuple[str, ...]:
    """Give the settings of a bed; each has a table of its own.

    Args:
        bed: the bed.

    Returns:
        Their names.
    """
    if bed == DIGITS:
        return tuple(f"r = {r}" for r in SHARES)
    if bed == TRADEOFF:
        return tuple(f"gamma^2 = {gamma_squared:g}" for gamma_squared, _, _ in tradeoff.SETTINGS)
    return ("",)


def run_bed(bed: str, size: Size, ledger: Ledger) -> None:
    """Run what is not done yet.

    Args:
        bed: the bed.
        size: how much of it.
        ledger: receives the runs.
    """
    runs = {
        PHANTOM: _phantom_runs,
        STUDIES: _studies_runs,
        DIGITS: _digits_runs,
        TRADEOFF: _tradeoff_runs,
    }
    for run, work in runs[bed](size):
        ledger.measure(run, work)


Work = functools.partial[dict[str, float]]


def _phantom_runs(size: Size) -> Iterator[tuple[Run, Work]]:
    for seed in size.seeds(PHANTOM_SEEDS):
        for row in factorial():
            if not size.quick or row.name in QUICK_ROWS:
                yield Run(PHANTOM, "", row.name, seed), Work(_measure_phantom, row, seed)


def _measure_phantom(row: Row, seed: int) -> dict[str, float]:
    model, gauges = phantom.train(row, seed)
    return examine(model, phantom.world_of(seed)) | gauges


def _tradeoff_runs(size: Size) -> Iterator[tuple[Run, Work]]:
    for seed in size.seeds(TRADEOFF_SEEDS):
        for (gamma_squared, eta, floor), setting in zip(
            tradeoff.SETTINGS, settings_of(TRADEOFF), strict=True
        ):
            for name, value in (("infonce", 0.0), (f"const {eta}", eta)):
                work = Work(tradeoff.measure, gamma_squared, value, floor, seed)
                yield Run(TRADEOFF, setting, name, seed), work


def _studies_runs(size: Size) -> Iterator[tuple[Run, Work]]:
    work = size.work / STUDIES
    if size.quick:
        for row in MAIN:
            if row.name in {"infonce", "multipositive claims"}:
                job = Work(studies.measure, row, work, 0, 20, QUICK_STUDIES)
                yield Run(STUDIES, "", row.name, 0), job
        return
    for seed in STUDIES_SEEDS:
        for row in (*MAIN, *BOTH):
            job = Work(studies.measure, row, work, seed, studies.STEPS, ())
            yield Run(STUDIES, "", row.name, seed), job


def _digits_runs(size: Size) -> Iterator[tuple[Run, Work]]:
    for r in SHARES[:1] if size.quick else SHARES:
        for seed in size.seeds(DIGITS_SEEDS):
            for row in digits.ROWS:
                if not size.quick or row.name in {"infonce", "true"}:
                    work = Work(digits.measure, row, r, seed)
                    yield Run(DIGITS, f"r = {r}", row.name, seed), work
