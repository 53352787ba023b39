"""Two commits measured in turn: what a change did to the speed of what is listed.

    python -m benchmarks.commits BASE [--rounds 5] [--name train --name loss ...]

BASE is checked out into a temporary worktree. Each round runs every benchmark once in either
checkout, the order changing from round to round, so that whatever else the machine does meets
both alike. A figure is compared as a ratio, new over old, round by round: the median, and an
interval that holds the true median in about 94 of 100 cases (the least and the largest of five
rounds). Figures that moved by more than 5 % with an interval that leaves out 1 are marked.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from scipy import stats

from benchmarks.record import finish

NAMES = ("loss", "train", "pll", "prepare", "retrieve")
"""Benchmarks whose quick tier takes minutes at most and measures speed alone."""
SHOWN = 0.05
_ROOT = Path(__file__).parents[2]

Figures = Mapping[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare this checkout with another commit; 0 whether or not a figure moved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits")
    parser.add_argument("base", help="commit that this checkout is compared with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", choices=NAMES, action="append", help="may be repeated")
    arguments = parser.parse_args(argv)
    found: dict[str, list[tuple[Figures, Figures]]] = {}
    with _checkout(arguments.base) as base:
        for turn in range(arguments.rounds):
            for name in arguments.name or NAMES:
                order = (base, _ROOT) if turn % 2 else (_ROOT, base)
                figures = {folder: _run(folder, name) for folder in order}
                found.setdefault(name, []).append((figures[base], figures[_ROOT]))
                print(f"round {turn + 1}: {name} done", file=sys.stderr, flush=True)
    ratios: dict[str, float] = {}
    for name, rounds in found.items():
        for figure, values in compared(rounds).items():
            middle, low, high = interval(values)
            mark = "  MOVED" if abs(middle - 1) > SHOWN and not low <= 1 <= high else ""
            print(f"{name:12} {figure:36} {middle:7.3f}  [{low:.3f}, {high:.3f}]{mark}")
            ratios[f"{name} {figure}"] = middle
    return finish("commits", ratios, {})


def compared(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, list[float]]:
    """Divide new by old, round by round, for figures that every round has and that are above 0."""
    names = set.intersection(*({*old} & {*new} for old, new in rounds))
    return {
        name: [new[name] / old[name] for old, new in rounds]
        for name in sorted(names)
        if all(old[name] > 0 and new[name] > 0 for old, new in rounds)
    }


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Give the median, and order statistics around it that hold the true one in 93 % or more.

    With fewer than five ratios they are the extremes, which hold it less often.
    """
    low, high = stats.quantile_test(ratios, p=0.5).confidence_interval(0.93)
    ends = (min(ratios), max(ratios)) if math.isnan(low) else (float(low), float(high))
    return statistics.median(ratios), *ends


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "base"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
        try:
            yield folder
        finally:
            subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def _run(folder: Path, name: str) -> Figures:
    """Run the quick tier of a benchmark by the code of a checkout; its figures."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"benchmarks.{name} failed in {folder.name}; its errors stand above")
    return json.loads(done.stdout.strip().splitlines()[-1])["figures"]


if __name__ == "__main__":
    sys.exit(main())
