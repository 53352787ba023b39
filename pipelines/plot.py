"""Draw the curves and figures of several runs on one page, or the curves as one picture.

A run is drawn while it trains as well. Use `compare` to see whether two configs differ.
"""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure

from medclip_dcl.artifact import HEADER, open_artifact
from medclip_dcl.errors import ArtifactMissing, ConfigError
from medclip_dcl.evaluation import results
from medclip_dcl.files import write_bytes, write_text
from medclip_dcl.training import checkpoint
from medclip_dcl.training.logging import read_metrics
from medclip_reporting.curves import MOST_RUNS, RunRecord, curves_of, render_runs

from .cli import run_folder, tool_main


def read_run(folder: Path) -> RunRecord:
    """Read a run's log and results, as far as it has come.

    Raises:
        ArtifactMissing: it has neither.
    """
    log = read_metrics(checkpoint.ARTIFACT.at(folder))
    found = results.ARTIFACT.at(folder)
    tree = None
    if (found / HEADER).is_file():
        tree = results.read_figures(open_artifact(found, results.ARTIFACT))
    if not log and tree is None:
        raise ArtifactMissing(f"{folder} has neither a log of training nor results; run it first")
    return RunRecord(folder.name, log, tree)


def draw_runs(runs: Sequence[RunRecord]) -> bytes:
    """Draw the curves of at most five runs as one picture, two charts a row; PNG.

    Raises:
        ArtifactMissing: no run has a curve.
    """
    charts = curves_of(runs)
    if not charts:
        raise ArtifactMissing("no run has a curve to draw; name a page, such as runs.html")
    rows = (len(charts) + 1) // 2
    figure = Figure(figsize=(11, 3.4 * rows), dpi=120, layout="constrained")
    for number, (title, lines) in enumerate(charts.items(), start=1):
        axes = figure.add_subplot(rows, 2, number, title=title, xlabel="step")
        for line in lines:
            axes.plot(line.x, line.y, label=line.name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders, or configs.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The page; .png: its curves as a picture.")
    ] = Path("runs.html"),
) -> int:
    """Write a page with the curves of training and the figures of runs."""
    if len(runs) > MOST_RUNS:
        raise ConfigError(f"{len(runs)} runs are too many for a chart; give {MOST_RUNS} or fewer")
    records = [read_run(run_folder(run)) for run in runs]
    if out.suffix == ".png":
        write_bytes(out, draw_runs(records))
        print(f"wrote {out}")
    else:
        write_text(out, render_runs(records))
        print(f"wrote {out}; open it in a browser")
    return 0


main = tool_main("plot", command)

if __name__ == "__main__":
    sys.exit(main())
