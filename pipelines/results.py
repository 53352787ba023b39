"""Figures of finished runs: those of one, and which of two configs is better."""

import json
import shlex
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from medclip_dcl.core.artifact import HEADER, open_artifact, read_artifact_header, verify_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing
from medclip_dcl.core.files import write_text
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.measure import read_sample_results
from medclip_dcl.inference import model_package

from .cli import run_folder
from .report.comparison import (
    LEVEL,
    Difference,
    compare_sides,
    describe_difference,
    measure_sides,
)
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


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its config.")],
    open_report: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the report in a browser.")
    ] = True,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash every byte of its artifacts, or of one, instead."),
    ] = False,
) -> int:
    """Show the results of a finished run: its figures, its report, and what to do next."""
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
    nested = (
        header.parent for depth in ("*", "*/*") for header in folder.glob(f"{depth}/{HEADER}")
    )
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


SAMPLES = 1000
"""Draws of patients and runs."""


def find_runs(text: str) -> list[Path]:
    """Find the results of a side: folders joined by commas.

    Each is results, a run that holds them, or a folder of runs, which are sorted.

    Raises:
        ArtifactMissing: a folder holds none.
    """
    runs: list[Path] = []
    for name in text.split(","):
        folder = Path(name).expanduser()
        inside = (folder / HEADER, folder / results.ARTIFACT.name / HEADER)
        direct = [path.parent for path in inside if path.is_file()]
        below = sorted(path.parent for path in folder.glob(f"*/{results.ARTIFACT.name}/{HEADER}"))
        if not direct and not below:
            raise ArtifactMissing(f"{folder} holds no results; name a folder that evaluate wrote")
        runs += direct[:1] or below
    return runs


def comparison_table(differences: Mapping[str, Difference], runs: tuple[int, int]) -> str:
    """Lay out a line per figure, and the verdict over all; `runs` are those of A and of B."""
    wide = max(map(len, differences), default=0) + 1
    lines = [
        f"A: {runs[0]} run(s), B: {runs[1]} run(s); {SAMPLES} draws of patients and runs; "
        f"p corrected for {len(differences)} figures",
        f"{'figure':{wide}}{'A':>8}{'B':>8}{'A - B':>9}{'95 % interval':>20}{'p':>8}  verdict",
    ]
    for name, item in differences.items():
        estimate = item.estimate
        if item.a is None or item.b is None or estimate.value is None:
            lines.append(f"{name:{wide}} undecided: {estimate.reason}")
            continue
        span = (
            f"n={min(runs)}"
            if estimate.low is None
            else f"[{estimate.low:.3f}, {estimate.high:.3f}]"
        )
        p = "" if item.corrected_p is None else f"{item.corrected_p:.3f}"
        lines.append(
            f"{name:{wide}}{item.a:8.3f}{item.b:8.3f}{estimate.value:+9.3f}{span:>20}{p:>8}  "
            f"{describe_difference(name, item)}"
        )
    return "\n".join([*lines, comparison_verdict(differences, runs)])


def comparison_verdict(differences: Mapping[str, Difference], runs: tuple[int, int]) -> str:
    """Say over all figures which differ, or why that cannot be said."""
    reported = [name for name, item in differences.items() if item.is_different]
    if min(runs) < 2:
        return (
            "no verdict: one side has one run, which compares two models and not two configs; "
            "two seeds of one config often differ by patients alone. Give three runs a side or more"
        )
    if reported:
        return f"different in {', '.join(reported)}"
    return (
        f"no difference shown at {LEVEL:.0%}; in brackets the smallest that such runs would "
        "show, as estimated from their spread"
    )


def compare(
    a: Annotated[str, typer.Argument(metavar="RUN_A", help="Folder of a run, or of one config's.")],
    b: Annotated[str, typer.Argument(metavar="RUN_B", help="The same of the other config.")],
    figure: Annotated[list[str] | None, typer.Option(help="This one; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option("--json", help="File for every number.")] = None,
) -> int:
    """Say which of two configs is better, in which figure, and whether other seeds would agree.

    A run is a folder that holds `results` (or `results` itself). A side with several seeds is
    a folder of such folders, or folders joined by commas. Patients are resampled for all runs
    together, runs for each side separately; p is corrected for the number of figures (Holm).
    With one run on a side there is no verdict: two models are not two configs. Next to
    "no difference shown" stands the smallest difference that would have been seen.
    """
    folders = find_runs(a), find_runs(b)
    sides = [
        [read_sample_results(open_artifact(path, results.ARTIFACT)) for path in side]
        for side in folders
    ]
    first, second = measure_sides(sides, SAMPLES, np.random.default_rng(0))
    differences = compare_sides(first, second, np.random.default_rng(0), figure or ())
    counts = len(sides[0]), len(sides[1])
    print(comparison_table(differences, counts), flush=True)
    if output:
        tree = {name: asdict(item) for name, item in differences.items()}
        write_text(output, json.dumps(tree, indent=1, allow_nan=False) + "\n")
    return 0
