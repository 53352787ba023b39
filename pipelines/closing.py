"""Print what a finished recipe came to: the figures, the report, and what to do next."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_dcl.artifact import HEADER, read_artifact_header
from medclip_dcl.config import load_config, resolve_path
from medclip_dcl.errors import MedclipError
from medclip_dcl.evaluation import results
from medclip_dcl.retrieval import embeddings
from pipelines.write_report import REPORT


def summary_lines(work: Path) -> list[str]:
    """Gather the last words about a recipe.

    Args:
        work: its folder.

    Returns:
        Lines to print: seconds of each stage, figures where it was evaluated, the
        report, and the viewer where there is something to serve.
    """
    made = sorted(
        (read_artifact_header(header.parent) for header in work.glob(f"*/{HEADER}")),
        key=lambda artifact: str(artifact.origin["committed_at"]),
    )
    lines = [f"{artifact.kind:20}{artifact.origin['seconds']:9.1f} s" for artifact in made]
    kinds = {artifact.kind: artifact for artifact in made}
    if results.ARTIFACT.name in kinds:
        lines += ["", results.results_table(results.read_figures(kinds[results.ARTIFACT.name]))]
    lines += ["", f"report   {work / REPORT}"]
    if embeddings.ARTIFACT.name in kinds:
        lines.append("viewer   make serve, then open http://127.0.0.1:8000/")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the closing lines of the recipe that `--config` names.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m pipelines.closing")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args(argv)
    try:
        config = load_config(arguments.config)
        print(*summary_lines(resolve_path(config.work, config)), sep="\n")
    except MedclipError as error:
        print(f"closing: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
