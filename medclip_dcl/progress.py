"""Progress of long work: a bar on a terminal, JSON lines elsewhere."""

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_EVERY_S = "PROGRESS_EVERY_S"
"""Environment variable: seconds between JSON lines; 10 by default."""


class Progress:
    """Counts finished items of one piece of work, on standard error unless a stream is given.

    `done` are items that an earlier run had finished.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "item",
        done: int = 0,
        stream: TextIO | None = None,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._label, self._total, self._unit = label, total, unit
        self._done, self._first = done, done
        self._start = self._last = time.monotonic()
        self._figures: dict[str, float] = {}
        self._every_s = float(os.environ.get(_EVERY_S, "10"))
        self._bar = _bar(label, total, unit, done, self._stream) if self._stream.isatty() else None

    def advance(self, items: int = 1, **figures: float) -> None:
        """Count finished items and show figures, such as a loss, next to them."""
        self._done += items
        self._figures.update(figures)
        if self._bar is not None:
            shown = " ".join(f"{name} {value:.4g}" for name, value in self._figures.items())
            self._bar.update(self._bar.task_ids[0], advance=items, figures=shown)
        elif time.monotonic() - self._last >= self._every_s:
            self._write_line()

    def close(self) -> None:
        """End the bar, or write the last line."""
        if self._bar is not None:
            self._bar.stop()
        else:
            self._write_line()

    def _write_line(self) -> None:
        self._last = time.monotonic()
        elapsed = self._last - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        line = {
            "progress": self._label,
            "done": self._done,
            "total": self._total,
            "unit": self._unit,
            "per_s": round(rate, 2),
            "left_s": round((self._total - self._done) / rate) if rate else None,
            **{name: round(value, 5) for name, value in self._figures.items()},
        }
        print(json.dumps(line), file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bar(label: str, total: int, unit: str, done: int, stream: TextIO) -> "Bar":
    from rich import console, progress

    columns = (
        progress.TextColumn(label),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn(f"{unit}  {{task.fields[figures]}}"),
        progress.TimeRemainingColumn(),
    )
    bar = progress.Progress(*columns, console=console.Console(file=stream))
    bar.add_task(label, total=total, completed=done, figures="")
    bar.start()
    return bar
