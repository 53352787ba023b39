"""`python -m pipelines`: the table of contents; `python -m pipelines JOB ...` runs one."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from .stages import STAGES, TOOLS


def job_summaries(names: Sequence[str] = (*STAGES, *TOOLS)) -> dict[str, str]:
    """Read the first line of every job's docstring, by name, without importing it."""
    folder = Path(__file__).parent
    summaries = {}
    for name in names:
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        summaries[name] = (ast.get_docstring(tree) or "").splitlines()[0]
    return summaries


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of contents, or run the job that is named first."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print("python -m pipelines JOB --config FILE [--set key=value ...]\n")
        for name, line in job_summaries(STAGES).items():
            print(f"  {name:20}{line}")
        print("\ntools")
        for name, line in job_summaries(TOOLS).items():
            print(f"  {name:20}{line}")
        return 0
    name, *rest = arguments
    if name not in (*STAGES, *TOOLS):
        print(f"no job {name!r}; python -m pipelines lists them", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"pipelines.{name}").main(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
