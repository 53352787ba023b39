"""`python -m benchmarks --list` names the benchmarks; `--long` runs the counts that take hours."""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LONG = (
    "kills",
    "exactness",
    "saves",
    "faults",
    "fuzz",
    "archive",
    "demo",
    "pll",
    "table1",
    "compare",
    "service",
    "serve",
    "retrieve",
)
"""Benchmarks whose full counts are run by hand; `--long` asks for them."""

_NOT_ONE = {"__init__", "__main__", "record", "warm", "victims", "standing", "mutants"}


def names() -> tuple[str, ...]:
    """Give the benchmarks' names.

    Returns:
        The modules and packages of this folder that print figures, sorted.
    """
    folder = Path(__file__).parent
    found = {path.stem for path in folder.glob("*.py")}
    found |= {path.parent.name for path in folder.glob("*/__main__.py")}
    return tuple(sorted(found - _NOT_ONE))


def main(argv: Sequence[str] | None = None) -> int:
    """List the benchmarks, or run the long ones and keep what they print.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, or the code of the first benchmark that could not measure.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--list", action="store_true")
    choice.add_argument("--long", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(*names())
        return 0
    for name in LONG:
        options = ["--long"] if name in {"kills", "faults", "fuzz", "pll", "serve"} else []
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options]).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
