"""Show the results of a finished run: its figures, its report, and what to do next."""

import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from medclip_dcl.core.artifact import HEADER, read_artifact_header, verify_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing
from medclip_dcl.evaluation import results
from medclip_dcl.inference import model_package

from .cli import run_folder, tool_main
from .stages import REPORT


def summary_lines(work: Path) -> list[str]:
    """List where the seconds of `work` went; its figures, its report and how to serve it.

    A run without a report, or without a model, has no line about it.
    """
    made = sorted(
        (read_artifact_header(header.parent) for header in work.glob(f"*/{HEADER}")),
        key=lambda artifact: str(artifact.origin["committed_at"]),
    )
    lines = [f"{artifact.kind:20}{artifact.origin['seconds']:9.1f} s" for artifact in made]
    lines.append(f"{'together':20}{sum(item.origin['seconds'] for item in made):9.1f} s")
    kinds = {artifact.kind: artifact for artifact in made}
    if results.ARTIFACT.name in kinds:
        lines += ["", results.results_table(results.read_figures(kinds[results.ARTIFACT.name]))]
    lines.append("")
    if (work / REPORT).is_file():
        lines.append(f"report   {work / REPORT}")
    if model_package.ARTIFACT.name in kinds:
        served = shlex.quote(str(work))
        lines.append(f"viewer   medclip serve {served}, then open http://127.0.0.1:8000/")
    return lines


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its config.")],
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash every byte of its artifacts, or of one, instead."),
    ] = False,
) -> int:
    """Print the figures of a run and open its report; or verify its artifacts."""
    run = run_folder(run)
    if verify:
        verify_artifacts(run)
        return 0
    report = run / REPORT
    if not report.is_file():
        raise ArtifactMissing(f"{run} holds no {REPORT}; run write_report first")
    print(*summary_lines(run), sep="\n", flush=True)
    if open_report and sys.stdout.isatty():
        webbrowser.open(report.resolve().as_uri())
    return 0


def verify_artifacts(folder: Path) -> None:
    """Hash an artifact, or all of a run, and print a line for each.

    Elsewhere a file is not hashed again while it has the size, times and inode with which it was
    hashed before. This finds what these do not show: bytes that a disk has lost or changed.

    Raises:
        ArtifactMissing: there is none.
        ArtifactCorrupt: one is damaged; the others were looked at as well.
    """
    nested = (found.parent for depth in ("*", "*/*") for found in folder.glob(f"{depth}/{HEADER}"))
    paths = [folder] if (folder / HEADER).is_file() else sorted(nested)
    if not paths:
        raise ArtifactMissing(f"{folder} holds no artifact; name a run's folder, or an artifact's")
    damaged = []
    for path in paths:
        try:
            artifact = verify_artifact(path)
        except ArtifactError as error:
            damaged.append(path.name)
            print(f"{path.name:20} {error}", flush=True)
        else:
            size = sum(entry["bytes"] for entry in artifact.files.values())
            print(f"{path.name:20} whole, {len(artifact.files)} files, {size:,} bytes", flush=True)
    if damaged:
        raise ArtifactCorrupt(f"{', '.join(damaged)} of {folder} damaged; rerun their jobs")


main = tool_main("show", command)

if __name__ == "__main__":
    sys.exit(main())
