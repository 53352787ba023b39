"""Progress of long work: a bar on a terminal, elsewhere a line now and then; and cores for it."""

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

EVERY_S = "PROGRESS_EVERY_S"  # environment variable: seconds between lines; 10 by default
FORMAT = "PROGRESS_FORMAT"
"""Environment variable: `json` for machines, else `words`; `--log` sets it."""
OF_RUN = "PROGRESS_OF_RUN"  # environment variable: set for the stages of a run
_BRIEF_S = 60.0  # between lines of a stage whose run has a line a stage
_SPARSER = 20  # a line for every twentieth of the time so far, once that is longer


def available_cores() -> int:
    """Count the cores that this process may use: its affinity mask's where there is one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def writes_json() -> bool:
    """Return whether lines are for machines."""
    return os.environ.get(FORMAT) == "json"


def is_brief() -> bool:
    """Return whether this is a stage of a run whose log nobody has asked for."""
    return OF_RUN in os.environ and FORMAT not in os.environ


def duration(seconds: float) -> str:
    """Write a duration as people say it: `40 s`, `12 min`, `3 h 5 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


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
        self._every_s = float(os.environ.get(EVERY_S, _BRIEF_S if is_brief() else 10))
        self._bar = _bar(label, total, unit, done, self._stream) if self._stream.isatty() else None

    def advance(self, items: int = 1, **figures: float) -> None:
        """Count finished items and show figures, such as a loss, next to them."""
        self._done += items
        self._figures.update(figures)
        if self._bar is not None:
            shown = " ".join(f"{name} {value:.4g}" for name, value in self._figures.items())
            self._bar.update(self._bar.task_ids[0], advance=items, figures=shown)
        elif time.monotonic() - self._last >= self._pause_s():
            self._write_line()

    def close(self) -> None:
        """End the bar, or write the last line."""
        if self._bar is not None:
            self._bar.stop()
        elif self._last > self._start or not is_brief():
            self._write_line()

    def _pause_s(self) -> float:
        # People want fewer lines of a night than of a minute; machines ask for what they want.
        if writes_json():
            return self._every_s
        return max(self._every_s, (time.monotonic() - self._start) / _SPARSER)

    def _write_line(self) -> None:
        self._last = time.monotonic()
        elapsed = self._last - self._start
        rate = (self._done - self._first) / elapsed if elapsed > 0 else 0.0
        left_s = (self._total - self._done) / rate if rate else None
        facts = {
            "progress": self._label,
            "done": self._done,
            "total": self._total,
            "unit": self._unit,
            "per_s": round(rate, 2),
            "left_s": None if left_s is None else round(left_s),
            **{name: round(value, 5) for name, value in self._figures.items()},
        }
        line = json.dumps(facts) if writes_json() else self._in_words(rate, elapsed, left_s)
        print(line, file=self._stream, flush=True)

    def _in_words(self, rate: float, elapsed: float, left_s: float | None) -> str:
        share = f" ({self._done / self._total:.0%})" if self._total else ""
        parts = [
            f"  {self._label}: {self._done:,} of {self._total:,} {self._unit}s{share}",
            f"{rate:,.3g} a second",
            *(f"{name} {value:.4g}" for name, value in self._figures.items()),
        ]
        if left_s is None or self._done >= self._total:
            parts[1] = f"in {duration(elapsed)}"
        else:
            parts.append(f"{duration(left_s)} left")
        return ", ".join(parts)

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
    shown_on = console.Console(file=stream)
    bar = progress.Progress(*columns, console=shown_on, transient=is_brief())
    bar.add_task(label, total=total, completed=done, figures="")
    bar.start()
    return bar
