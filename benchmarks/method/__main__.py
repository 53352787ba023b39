"""Which objective wins, on known truth, with controls: the table as it falls.

    python -m benchmarks.method [--quick] [--bed phantom] [--work FOLDER]

Seven beds. `phantom`: images as region vectors, reports as bags of words, a simulated imperfect
reader of reports; every objective, source of eta, floor, rival and control, eight seeds.
`cross phantom`: the same world on eight other seeds, image anchors of their own, every row
stopped by one figure that needs no labels. `tradeoff`: one class an image, constants alone,
ten seeds. `studies`: generated images and reports through the product's own jobs, with a BERT;
the main rows, five seeds. `cross studies`: a few more patients, cross anchors and places, every
row stopped by the same figure, eight other seeds. `asserting studies`: the same with relations of
asserting sentences alone, four other seeds. `digits`: SimCLR on thinned digits, five seeds at
each of three shares.

Sizes of the phantoms and of digits are those of the pages that they rebuild. Those of
`studies` were chosen by runs of InfoNCE alone on seed 0, so that a run takes half a minute
and InfoNCE is neither at chance nor at its ceiling. Seeds, sizes, rows and bars stood
before any row was run on these seeds; every row is reported. Rows of a seed share data, first
weights and batches, so that differences are paired.

A finished run is a line of FOLDER/runs.jsonl and is not done again. The tables and the last
line are made from whatever is there.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.method.bars import held_against
from benchmarks.method.comparison import print_table, summary
from benchmarks.method.suites import (
    CONSTANTS,
    METRICS,
    SUITES,
    Size,
    run_suites,
    runs_of,
    settings_of,
)
from benchmarks.record import finish, judge, machine
from benchmarks.run_log import RunLog


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is missing, then print the tables; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.method")
    parser.add_argument("--quick", action="store_true", help="two other seeds, few rows")
    parser.add_argument("--bed", choices=SUITES, action="append", help="this bed; may be repeated")
    parser.add_argument("--work", type=Path, default=Path("runs/method"), help="finished runs")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    if not arguments.quick:
        return _measure(arguments, Size(quick=False, work=arguments.work.resolve()))
    with tempfile.TemporaryDirectory() as folder:
        return _measure(arguments, Size(quick=True, work=Path(folder)))


def _measure(arguments: argparse.Namespace, size: Size) -> int:
    run_log = RunLog(size.work, "runs")
    if not arguments.tables:
        run_suites(arguments.bed or SUITES, size, run_log)
    tables: dict[str, Any] = {}
    for suite in SUITES:
        for setting in settings_of(suite):
            runs, title = runs_of(run_log, suite, setting), f"{suite} {setting}".strip()
            if runs:
                tables[title] = summary(runs, METRICS[suite], CONSTANTS[suite])
                print_table(title, tables[title], METRICS[suite])
    figures, wanted = held_against(run_log)
    figures["runs"] = len(run_log.found)
    figures["cpu_seconds"] = sum(run["cpu s"] for run in run_log.found.values())
    print()
    bars = judge({name: figures[name] for name in wanted}, wanted)
    kept = {
        "machine": machine(),
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "bars": {name: {"bar": bar, "met": met} for name, (bar, met) in bars.items()},
    }
    _keep(size.work / "method.json", kept, tables)
    return finish("method", figures, bars)


def _keep(path: Path, kept: dict[str, Any], tables: dict[str, Any]) -> None:
    """Write every table as numbers, one row a line."""
    lines = [
        f"  {json.dumps(title)}: {{\n"
        + ",\n".join(f"   {json.dumps(row)}: {json.dumps(cells)}" for row, cells in rows.items())
        + "\n  }"
        for title, rows in tables.items()
    ]
    head = "".join(f" {json.dumps(name)}: {json.dumps(part)},\n" for name, part in kept.items())
    head = f'{{\n{head} "tables": {{\n'
    path.write_text(head + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
