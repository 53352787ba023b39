"""Does `compare` stay silent on two halves of one config, and speak up on a control?

    python -m benchmarks.method.compare [--quick] [--work FOLDER]

Eight runs of the uncorrected row of `configs/table1.yaml`, one seed each, are split at random
into halves, twenty times; four runs with shuffled reports are held against four of the
eight, twenty times. Patients, runs and their correction are those of `compare`. Next to it,
how often patients alone, with one run a side, would call two seeds different. Runs are those
of `table1` and are not done twice. `--quick`: a small corpus, six runs and three controls.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.record import finish, judge
from medclip_dcl.artifact import open_artifact
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.compare import Side, compare_sides, measure_sides, read_sample_results
from pipelines import table1
from testing.processes import options

CONFIG, WORK = Path("configs/table1.yaml"), Path("runs/table1")
QUICK = (
    "generate.patients=120",
    "generate.coverage_images=1",
    "language_model.steps=60",
    "train.steps=40",
    "train.warmup_steps=4",
    "train.validate_every_steps=0",  # the split is smaller than a batch, so nothing is tuned
    'table1.tune_by=""',
    "evaluate.bootstrap=200",
)
"""Settings of a corpus and of runs that take seconds."""
POOL, CONTROL = "lse_nl", "shuffled"
TRIALS = 20
BARS = {"silent_on_halves": ">= 17", "different_from_control": f"= {TRIALS}"}
SAMPLES = 1000


def measure_pool(work: Path, pool: int, controls: int, samples: int) -> tuple[Side, Side]:
    """Measure the runs of the pool and of the control, which has shuffled reports.

    All are measured on the same draws of patients.
    """
    sides = [
        [
            read_sample_results(
                open_artifact(
                    results.ARTIFACT.at(work / table1.FOLDER / row / f"seed-{seed}"),
                    results.ARTIFACT,
                )
            )
            for seed in range(count)
        ]
        for row, count in ((POOL, pool), (CONTROL, controls))
    ]
    first, second = measure_sides(sides, samples, np.random.default_rng(0))
    return first, second


def count_trials(pool: Side, control: Side, trials: int, seed: int = 0) -> dict[str, float]:
    """Count what `compare` says of random halves, and of random draws against the control.

    Gives `silent_on_halves` and `different_from_control`, of `trials`; and the share of pairs of
    single runs of the config that patients alone call different.
    """
    generator = np.random.default_rng(seed)
    size = len(next(iter(pool.values())))
    against = len(next(iter(control.values())))
    silent = different = 0
    for _ in range(trials):
        order = generator.permutation(size)
        first, second = _runs(pool, order[: size // 2]), _runs(pool, order[size // 2 :])
        silent += not _differ(first, second)
        half = min(size // 2, against)
        different += _differ(_runs(pool, order[:half]), control)
    pairs = list(combinations(range(size), 2))
    alone = [_differ(_runs(pool, [a]), _runs(pool, [b]), is_model=True) for a, b in pairs]
    return {
        "silent_on_halves": silent,
        "different_from_control": different,
        "single_runs_called_different": float(np.mean(alone)),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing and count; 1 where a run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method.compare")
    parser.add_argument("--quick", action="store_true", help="few patients, short runs")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the config")
    arguments = parser.parse_args(argv)
    try:
        if arguments.quick:
            with tempfile.TemporaryDirectory() as folder:
                counts = _measure(Path(folder), 6, 3, QUICK)
        else:
            counts = _measure(arguments.work, 8, 4, ())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{TRIALS} trials; a verdict is `different` where any figure is, after correction")
    return finish("compare", counts, judge(counts, BARS))


def _measure(work: Path, pool: int, controls: int, settings: Sequence[str]) -> dict[str, float]:
    for row, count in ((POOL, pool), (CONTROL, controls)):
        seeds = f"table1.seeds={list(range(count))}"
        changes = [
            f"work={work}",
            *settings,
            f'table1.rows=["{row}"]',
            seeds,
            "table1.row_seeds={}",
        ]
        with redirect_stdout(sys.stderr):  # the last line of a benchmark is its own
            code = table1.main(["--config", str(CONFIG), *options(changes)])
        if code:
            raise RuntimeError(f"table1 ended with exit code {code}")
    return count_trials(*measure_pool(work, pool, controls, SAMPLES), TRIALS)


def _runs(side: Side, chosen: Sequence[int] | np.ndarray) -> Side:
    return {name: runs[np.asarray(chosen)] for name, runs in side.items()}


def _differ(a: Side, b: Side, *, is_model: bool = False) -> bool:
    found = compare_sides(a, b, np.random.default_rng(0), is_model=is_model)
    return any(item.is_different for item in found.values())


if __name__ == "__main__":
    sys.exit(main())
