"""`python -m benchmarks --list` names the benchmarks; `--long` runs the counts that take hours."""

import argparse
import subprocess
import sys
from collections.abc import Sequence

SPEED = ("loss", "pll", "prepare", "train", "serve", "gpu")
RELIABILITY = ("fuzz", "kills", "privacy", "service")
METHOD = ("demo", "labeler", "method", "real_studies.summary")

LONG = ("kills", "fuzz", "demo", "service", "serve")
"""Benchmarks whose full counts are run by hand; `--long` asks for them."""
_TIERED = {"kills", "fuzz", "serve"}


def main(argv: Sequence[str] | None = None) -> int:
    """List the benchmarks, or run the long ones; the code of the first that fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--list", action="store_true")
    choice.add_argument("--long", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(*sorted((*SPEED, *RELIABILITY, *METHOD)))
        return 0
    for name in LONG:
        options = ["--long"] if name in _TIERED else []
        code = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *options]).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
