"""Every row of Table 1 on generated studies, with one command: what comes out, and what it costs.

    python -m benchmarks.method.table1 [--quick] [--work FOLDER] [--seeds 0 1] [--set KEY=VALUE]

The config is `configs/table1.yaml`: the paper's nine rows, ours and their controls, five or ten
seeds, the rivals tuned on the validation split. Finished runs are not done again, so that the time
of the whole is that which the runs noted. Kept is the whole tree of `table1.json`, intervals and
p-values with it. `--quick`: two rows of two seeds on a corpus of 120 patients.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.processes import options
from benchmarks.record import finish, judge
from pipelines import table1
from pipelines.table1_rows import COLUMNS, MORE

CONFIG = Path("configs/table1.yaml")
WORK = Path("runs/table1")
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
BARS = {"minutes_on_two_cores": "<= 120"}


def run_table(work: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Run what is missing of a table; give it as `pipelines.table1` keeps it.

    RuntimeError where it failed.
    """
    words = ["--config", str(CONFIG), *options([f"work={work}", *settings])]
    with redirect_stdout(sys.stderr):  # the last line of a benchmark is its own
        code = table1.main(words)
    if code:
        raise RuntimeError(f"table1 ended with exit code {code}")
    text = (work / table1.FOLDER / table1.FIGURES).read_text(encoding="utf-8")
    tree: dict[str, Any] = json.loads(text)
    return tree


def seed_settings(seeds: Sequence[int]) -> list[str]:
    """Give the settings that run every row with these seeds."""
    return [f"table1.seeds={json.dumps(list(seeds))}", "table1.row_seeds={}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the table and print it; 1 where a run failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method.table1")
    parser.add_argument("--quick", action="store_true", help="two rows, two seeds, few patients")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the config")
    parser.add_argument("--seeds", type=int, nargs="+", help="runs of each row, not the config's")
    parser.add_argument("--set", action="append", default=[], help="a setting of the config")
    arguments = parser.parse_args(argv)
    begun = time.monotonic()
    try:
        if arguments.quick:
            few = ('table1.rows=["lse_nl", "dcl_lm"]', *seed_settings([0, 1]))
            with tempfile.TemporaryDirectory() as folder:
                tree = run_table(Path(folder), [*QUICK, *few])
        else:
            chosen = seed_settings(arguments.seeds) if arguments.seeds else []
            tree = run_table(arguments.work, [*chosen, *arguments.set])
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(table1.table_text(tree))
    figures = _account(tree, time.monotonic() - begun)
    return finish("table1", figures, judge(figures, BARS), kept=tree)


def _account(tree: dict[str, Any], seconds: float) -> dict[str, float]:
    rows = tree["rows"].values()
    tuned = [row["tuned"] for row in rows if row["tuned"]]
    runs = sum(len(row["seeds"]) for row in rows) + sum(len(each["scores"]) - 1 for each in tuned)
    cpu = sum(row["cost"]["cpu_s"] * len(row["seeds"]) for row in rows)
    cpu += sum(each["cpu_s"] for each in tuned)
    figures: dict[str, float] = {
        "runs": runs,
        "cpu_seconds_per_run": cpu / runs,
        "minutes_on_two_cores": cpu / 2 / 60,
        "wall_minutes_of_this_call": seconds / 60,
        "model_megabytes": max(row["cost"]["model_mb"] for row in rows),
    }
    for name, row in tree["rows"].items():
        for column, figure in {**COLUMNS, **MORE}.items():
            found = row["figures"].get(figure, {}).get("value")
            if found is not None:
                figures[f"{name}_{column}"] = found
        if row["tuned"]:
            figures |= {f"{name}_tried_{value}": s for value, s in row["tuned"]["scores"].items()}
    return figures


if __name__ == "__main__":
    sys.exit(main())
