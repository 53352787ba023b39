"""Every objective on real studies.

    python -m benchmarks.real_studies [--rounds 3]

Rows, figures and bars were written down before the first run. Runs are done in complete rounds:
first what decides (decisive rows, their controls, the constants, the ceiling) fold by fold, then
the other rows on three folds and on five, then the decisive rows with a second seed, then from a
warm start, then learning curves, ideas and other warm starts. `--rows NAME ...` does these rows
alone. What is done is kept and not done again. `--table` prints what there is; either way
results/real_studies.json is written.

    python -m benchmarks.real_studies --row cross_place --out FOLDER

trains a row on all studies and leaves FOLDER/model.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.method.real_studies import runs as running
from benchmarks.method.real_studies.rows import (
    CEILING,
    CONSTANTS,
    DECISIVE,
    FROZEN,
    HALVES,
    MADE,
    ROWS,
)
from benchmarks.method.real_studies.runs import Bed, Run, do_all, make_model, write_tfidf
from benchmarks.method.real_studies.studies import (
    FOLDS,
    SIZE,
    VARIANTS,
    labels_macro_f1,
    prepare,
    prepare_size,
    read_folds,
    read_patients,
    read_whole,
    warm_up,
)
from benchmarks.method.real_studies.summary import (
    BARS,
    CONFIRMED,
    CONFIRMED_CONTROL,
    Lines,
    best_constant,
    chosen_value,
    decide,
    figures_of,
    is_stopped,
    table,
    text_of,
)
from benchmarks.record import ROOT, finish, judge, machine
from medclip_dcl.files import write_text

LOG = ROOT / "benchmarks" / "results" / "real_studies_runs.jsonl"
RESULTS = ROOT / "benchmarks" / "results" / "real_studies.json"
RECIPE = ROOT / "benchmarks" / "results" / "real_recipe.json"
ALL = tuple(range(FOLDS))
ROUNDS = (("random", ALL, 0, "decisive"), ("random", ALL[:3], 0, "other"),
          ("random", ALL[3:], 0, "other"), ("random", ALL, 1, "decisive"),
          ("warm", ALL, 0, "decisive"), ("random", ALL[:3], 0, "curve"),
          ("random", ALL[:3], 0, "idea"),
          *((start, ALL[:3], 0, "start") for start in VARIANTS))  # fmt: skip
"""Start, folds, seed and rows of each round."""
_TEN = {row.name for row in DECISIVE}
_AGAIN = {*_TEN, CONFIRMED, CONFIRMED_CONTROL}
_FIRST = _TEN | {f"constant_{value}" for value in CONSTANTS} | {CEILING.name, FROZEN.name}
_FIRST |= {row.name for row in HALVES}


def planned(number: int, lines: Lines) -> Iterator[Run]:
    """List the runs of a round, fold by fold, so that what is done can be compared in pairs."""
    start, folds, seed, part = ROUNDS[number]
    figures = figures_of(lines)
    first_starts = (start, seed) == ("random", 0)
    for fold in folds:
        for name, row in ROWS.items():
            run = Run(start, name, "", fold, seed)
            if part in {"curve", "idea"}:
                if row.part == part:
                    yield run
            elif part == "start":
                if name in {CONFIRMED, FROZEN.name}:
                    yield run
            elif not first_starts:
                ceiling = start == "warm" and row.part == "ceiling"
                if ceiling or name in _AGAIN or name == best_constant(lines, fold):
                    yield run
            elif row.part in {"curve", "idea"}:
                continue
            elif (name in _FIRST) == (part == "decisive") and (
                fold < 3 or not is_stopped(figures, name)
            ):
                yield from (run._replace(value=value) for value in row.points)


def read_log(path: Path) -> dict[Run, dict[str, Any]]:
    """Read the runs that are kept."""
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {Run(**line["run"]): line for line in lines}


def main(argv: Sequence[str] | None = None) -> int:
    """Do rounds of runs, print the table; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.real_studies")
    parser.add_argument("--work", type=Path, default=Path("runs/real_studies"))
    parser.add_argument("--rounds", type=int, default=len(ROUNDS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print what there is")
    parser.add_argument("--row", choices=MADE, help="train this row on all studies, into --out")
    parser.add_argument("--out", type=Path, help="folder of that run")
    options = parser.parse_args(argv)
    if (options.row is None) != (options.out is None):
        parser.error("--row names what is trained, --out where; give both")
    root = os.environ.get("TEST_DATA")
    if root is None and not options.table:
        print("TEST_DATA is not set: there are no studies", file=sys.stderr)
        return 1
    if root is not None and options.row is not None:
        return train_on_all(Path(root) / "openi", options.row, options.out)
    if root is not None and not options.table:
        do_rounds(
            Path(root) / "openi", options.work, options.rounds, options.processes, options.rows
        )
    lines = read_log(LOG)
    tree = {start: table(lines, start) for start in running.STARTS}
    for start, part in tree.items():
        if part["rows"]:
            print(f"\n=== {start} start\n{text_of(part)}")
    figures = decide(lines)
    if root is not None:
        figures["labels_macro_f1"] = labels_macro_f1(read_patients(Path(root) / "openi"))
    if RECIPE.is_file():
        figures |= json.loads(RECIPE.read_text(encoding="utf-8"))["figures"]
    bars = judge(figures, BARS)
    commits = sorted({line["commit"] for line in lines.values()})
    kept = {
        "machine": machine(),
        "processors": sorted({line["processor"] for line in lines.values()}),
        "commits": commits,
        "figures": figures,
        "bars": {name: {"bar": bar, "met": met} for name, (bar, met) in bars.items()},
        "tables": tree,
    }
    write_text(RESULTS, json.dumps(kept, indent=1) + "\n")
    return finish("real_studies", figures, bars, ", ".join(commits))


def train_on_all(root: Path, row: str, out: Path) -> int:
    """Make a row's model on all studies, with the value that most folds chose; the exit code."""
    lines = read_log(LOG)
    chosen = [chosen_value(lines, Run("random", row, "", fold, 0)) for fold in range(FOLDS)]
    ((value, _),) = Counter(each for each in chosen if each is not None).most_common(1) or [
        (next(iter(ROWS[row].points)), 0)
    ]
    fold = read_whole(root, out, read_patients(root))
    prepare(fold, fold.folder)
    write_tfidf(fold)
    print(make_model(fold, row, value))
    return 0


def do_rounds(
    root: Path, work: Path, rounds: int, processes: int, rows: Sequence[str] = tuple(ROWS)
) -> None:
    """Do what is missing of the rounds and rows, and append each run to the log."""
    folds = read_folds(root, work, read_patients(root))
    bed = Bed(tuple(folds), work)
    ready: set[int] = set()
    for number in range(rounds):
        lines = read_log(LOG)
        wanted = [run for run in planned(number, lines) if run not in lines and run.row in rows]
        print(f"round {number}: {len(wanted)} runs", flush=True)
        needed = {0, *(run.fold for run in wanted)} if wanted else set()  # 0: what all share
        for fold in [folds[each] for each in sorted(needed - ready)]:
            prepare(fold, folds[0].folder)
            write_tfidf(fold)
        ready |= needed
        for size_px in {ROWS[run.row].settings.get(SIZE) for run in wanted} - {None}:
            prepare_size(folds[0], size_px)
        start, numbers, _, _ = ROUNDS[number]
        for each in numbers if wanted and start != "random" else ():
            warm_up(folds[each], start)
        for line in do_all(bed, wanted, processes):
            with LOG.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            name, auc = Run(**line["run"]).name, line["figures"]["mean_auc"]
            print(f"{name}: {auc:.3f}, {line['spent']['cpu_s']:.0f} CPU s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
