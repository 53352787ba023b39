"""Progress of long work: a bar on a terminal, JSON lines elsewhere."""

import json
import sys
import time
from types import TracebackType
from typing import Self, TextIO

from tqdm import tqdm

_QUIET_S = 10.0


class Progress:
    """Counts finished items of one piece of work.

    Args:
        label: what is being done, a few words.
        total: items in all.
        unit: what one item is.
        done: items that an earlier run had finished.
        stream: where to write; standard error by default.
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
        self._bar = None
        if self._stream.isatty():
            self._bar = tqdm(
                desc=label, total=total, unit=unit, initial=done, file=self._stream, smoothing=0.1
            )

    def advance(self, items: int = 1, **figures: float) -> None:
        """Count finished items and show figures next to them.

        Args:
            items: how many were finished.
            figures: numbers worth seeing, such as a loss.
        """
        self._done += items
        self._figures.update(figures)
        if self._bar is not None:
            if figures:
                shown = {name: f"{value:.4g}" for name, value in self._figures.items()}
                self._bar.set_postfix(shown, refresh=False)
            self._bar.update(items)
        elif time.monotonic() - self._last >= _QUIET_S:
            self._write_line()

    def close(self) -> None:
        """End the bar, or write the last line."""
        if self._bar is not None:
            self._bar.close()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
