"""What each trial of a long benchmark came to, kept line by line: a killed one goes on after it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.record import commit


class RunLog:
    """Trials by name. A trial's name must say all that it depends on but the code.

    Without a folder nothing outlives the process.
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self._path = folder / f"{name}.jsonl" if folder else None
        self._lines: dict[str, dict[str, Any]] = {}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut the last line
        self._path.write_text(whole, encoding="utf-8")
        lines = map(json.loads, whole.splitlines())
        self._lines = {line["trial"]: line for line in lines}

    @property
    def found(self) -> dict[str, dict[str, Any]]:
        """What every trial so far came to, by name."""
        return {name: line["found"] for name, line in self._lines.items()}

    @property
    def commits(self) -> str:
        """The commits whose code was tried."""
        return " ".join(sorted({line["commit"] for line in self._lines.values()}))

    def once(self, trial: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Give what a trial came to; it is run unless it was before."""
        if trial not in self._lines:
            line = {"trial": trial, "commit": commit(), "found": run()}
            self._lines[trial] = line
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
                    stream.flush()
                    os.fsync(stream.fileno())
        return self._lines[trial]["found"]
