"""One JSON line per finished run, so that a stopped benchmark goes on where it was."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """Which run: bed, setting (such as r), row, seed."""

    bed: str
    setting: str
    row: str
    seed: int


class RunLog:
    """Finished runs of a work folder; a last line that a kill cut short is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.figures: dict[Run, dict[str, float]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        whole = []
        for line in lines:
            try:
                tree = json.loads(line)
            except json.JSONDecodeError:
                break
            whole.append(line)
            self.figures[Run(*(tree[key] for key in ("bed", "setting", "row", "seed")))] = tree[
                "figures"
            ]
        if len(whole) < len(lines):
            path.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")

    def measure(self, run: Run, work: Callable[[], Mapping[str, float]]) -> None:
        """Do a run unless it is done, and write the line of its figures."""
        if run in self.figures:
            return
        begun = time.process_time()
        figures = {name: round(float(value), 5) for name, value in work().items()}
        figures["cpu s"] = round(time.process_time() - begun, 2)
        self.figures[run] = figures
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({**vars(run), "figures": figures}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        shown = "  ".join(f"{name} {figures[name]:.3f}" for name in list(figures)[:4])
        print(
            f"{run.bed} {run.setting} seed {run.seed} {run.row}: {shown}  ({figures['cpu s']} s)",
            flush=True,
        )

    def of(self, bed: str, setting: str) -> dict[str, dict[int, dict[str, float]]]:
        """Give the runs of one table: row -> seed -> figures."""
        rows: dict[str, dict[int, dict[str, float]]] = {}
        for run, figures in self.figures.items():
            if (run.bed, run.setting) == (bed, setting):
                rows.setdefault(run.row, {})[run.seed] = figures
        return rows
