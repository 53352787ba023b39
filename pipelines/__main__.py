"""`python -m pipelines`: the table of contents; `python -m pipelines JOB ...` runs one."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

STAGES = (
    "generate_studies",
    "build_manifest",
    "prepare_images",
    "split_sentences",
    "read_claims",
    "fit_language_model",
    "score_sentences",
    "build_eta_cache",
    "prepare_image_set",
    "train",
    "calibrate_scores",
    "probe_images",
    "evaluate",
    "write_cards",
    "build_index",
    "ask_service",
    "write_report",
)
"""The jobs in the order in which data flows through them."""

TOOLS = ("doctor", "plan", "check_data", "calibrate_eta", "table1", "compare", "push_model")
"""Commands that answer a question; no recipe runs them by itself."""


def job_summaries(names: Sequence[str] = (*STAGES, *TOOLS)) -> dict[str, str]:
    """Read the first line of every job's docstring without importing it.

    Args:
        names: jobs and tools.

    Returns:
        Name -> one line, in the order given: that of the story, then the tools.
    """
    folder = Path(__file__).parent
    summaries = {}
    for name in names:
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        summaries[name] = (ast.get_docstring(tree) or "").splitlines()[0]
    return summaries


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of contents, or run the job that is named first.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The job's exit code; 0 for the table, 2 for a name that is no job.
    """
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
