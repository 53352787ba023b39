"""The metrics log: one JSON line per logged step, cut back when a run is resumed."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from medclip_dcl.artifacts.files import disk_faults_named, write_text

FILE = "metrics.jsonl"
"""Name of the log, in the folder of the checkpoints."""

TIMINGS = ("images_per_s",)
"""Fields that differ from run to run."""


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read the log of a run.

    Args:
        folder: folder of the checkpoints.

    Returns:
        Its lines, in order of the step; none where there is no log. A line that a kill
        cut short ends the log.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class MetricsLog:
    """Appends lines to the log of a run.

    Args:
        folder: folder of the checkpoints.
        step: steps that the run has done; later lines of a killed run are dropped.

    Attributes:
        last: the last line of figures that was kept; empty where there is none.

    Raises:
        ArtifactUnwritable: the disk refuses, here or at a later line.
    """

    def __init__(self, folder: Path, step: int) -> None:
        kept = [line for line in read_metrics(folder) if line["step"] <= step]
        figures = [line for line in kept if "loss" in line]
        self.last: dict[str, Any] = figures[-1] if figures else {}
        self._path = folder / FILE
        with disk_faults_named(self._path):
            write_text(self._path, "".join(_line(line) for line in kept))
            # Unbuffered: a line that the disk refused is not tried again when the log is closed.
            self._stream = self._path.open("ab", buffering=0)

    def write(self, figures: Mapping[str, Any]) -> None:
        """Append one line.

        Args:
            figures: `step`, and what was measured.
        """
        left = _line(figures).encode()
        with disk_faults_named(self._path):
            while left:  # a full disk takes a part first
                left = left[self._stream.write(left) :]

    def sync(self) -> None:
        """Flush the log to the disk: a checkpoint is about to claim its steps."""
        with disk_faults_named(self._path):
            os.fsync(self._stream.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()


def _line(figures: Mapping[str, Any]) -> str:
    return json.dumps(dict(figures)) + "\n"
