"""Watch a run train: its curves and last figures in the terminal, until its model is there."""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from medclip_dcl import model_package
from medclip_dcl.artifact import HEADER
from medclip_dcl.errors import ArtifactMissing
from medclip_dcl.training import checkpoint
from medclip_dcl.training.logging import read_metrics
from medclip_reporting.curves import curve

from .cli import run_folder, tool_main

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_PAUSE_S = 2.0
_HIDDEN = {"step", "skipped"}


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Draw a curve in blocks: each is the mean of its part of the values, low to high."""
    parts = min(width, len(values))
    ends = [round(number * len(values) / parts) for number in range(parts + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
    low, span = min(means), max(means) - min(means)
    tops = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round(tops * (mean - low) / span) if span else 0] for mean in means)


def draw(name: str, log: Sequence[Mapping[str, Any]]) -> Group:
    """Draw a run's figures: a line each with its curve, its first and its last value."""
    table = Table(box=None, pad_edge=False)
    for head in ("figure", "first", "last", "curve"):
        table.add_column(head, justify="right" if head in {"first", "last"} else "left")
    figures = dict.fromkeys(key for line in log for key in line if key not in _HIDDEN)
    for figure in figures:
        _, values = curve(log, figure)
        if len(values) > 1 and isinstance(values[-1], int | float):
            cells = [f"{value:.4g}" for value in (values[0], values[-1])]
            table.add_row(figure.replace("_", " "), *cells, sparkline(values))
    return Group(Text(f"{name}: step {log[-1]['step']:,}"), table)


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or its config.")],
    once: Annotated[bool, typer.Option("--once", help="Draw it once, and end.")] = False,
) -> int:
    """Draw the curves of a run's training in the terminal, again and again until it ends."""
    folder = run_folder(run)
    begun, log = checkpoint.ARTIFACT.at(folder), _read(folder)
    if once or not sys.stdout.isatty():
        Console().print(draw(folder.name, log))
        return 0
    with Live(draw(folder.name, log), auto_refresh=False) as screen:
        while not (model_package.ARTIFACT.at(folder) / HEADER).is_file():
            time.sleep(_PAUSE_S)
            if log := read_metrics(begun):
                screen.update(draw(folder.name, log), refresh=True)
    return 0


def _read(folder: Path) -> list[dict[str, Any]]:
    log = read_metrics(checkpoint.ARTIFACT.at(folder))
    if not log:
        raise ArtifactMissing(f"{folder} has no log of training yet; watch it once it trains")
    return log


main = tool_main("watch", command)

if __name__ == "__main__":
    sys.exit(main())
