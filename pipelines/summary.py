"""Print what a finished run came to: the figures, the report, and what to do next."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_dcl.artifact import HEADER, read_artifact_header
from medclip_dcl.config import resolve_path
from medclip_dcl.evaluation import results
from medclip_dcl.retrieval import embeddings

from .cli import command_parser, config_of, run_command
from .write_report import REPORT


def summary_lines(work: Path) -> list[str]:
    """List the seconds of each stage of `work`, its figures, its report and how to serve it."""
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
    """Print the summary of the run that `--config` names."""
    return run_command(command_parser("summary"), _print, argv)


def _print(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    print(*summary_lines(resolve_path(config.work, config)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
