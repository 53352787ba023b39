"""A disk that fails, or is full, while the trainer saves a checkpoint.

    python -m benchmarks.reliability.saves [--quick]

A run that has a good checkpoint goes on to its next one and is stopped there. Each time
another call that changes the disk below `checkpoints` fails, from the first to the last:
once with EIO, once with ENOSPC from there on (`failing_disk.c`, which needs a C compiler);
then no file may grow beyond so many bytes. The trainer must say what happened in one line;
the good checkpoint must still open with the same bytes; and the same command must then end
with the weights of a run that nothing disturbed. `--quick` tries every tenth call.
"""

import argparse
import errno
import mmap
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.fixtures import forkserver
from benchmarks.fixtures.corpus import write_config, write_corpus
from benchmarks.record import finish
from benchmarks.reliability.exactness import STOPPED, unreadable
from benchmarks.reliability.faults import failing_disk
from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.training.checkpoint import ARTIFACT

GOOD, NEXT, STEPS = 5, 10, 12
"""Steps after which there is a good checkpoint, the next one, and the end."""
EVERY = {"quick": 10, "full": 1}
SIZES = {"quick": 2, "full": 8}
_LEAST_BYTES = 700


@dataclass
class Count:
    """What happened in one kind of trial."""

    trials: int = 0
    failed: int = 0
    """Trials in which the trainer ended with an error."""
    unclear: int = 0
    """Errors without their own line, with a trace, or with another exit code than 4."""
    touched: int = 0
    """Trials after which the good checkpoint, and no later one, was there and not the same."""
    unreadable: int = 0
    """Checkpoints that could be seen and not be opened."""
    different: int = 0
    """Trials whose second run failed, or ended with other weights."""


def arm(folder: str, counter: str, at: int, error: int, lasting: int) -> None:
    """Stop this process after the next checkpoint, and let its writes fail until then."""
    from benchmarks.reliability import exactness, faults

    exactness.arm(str(Path(folder).parent), NEXT, 15, 0)
    faults.arm(folder, counter, at, error, lasting)


def cap(folder: str, most_bytes: int) -> None:
    """The same with no file growing beyond a size."""
    from benchmarks.reliability import exactness, faults

    exactness.arm(str(Path(folder).parent), NEXT, 15, 0)
    faults.limit_files(most_bytes)


class Bench:
    """The folder that trials start from, and what an undisturbed run ends with."""

    def __init__(self, folder: Path) -> None:
        self.base, self.log, self.counter = folder / "base", folder / "log", folder / "calls"
        torch.manual_seed(0)
        write_corpus(self.base)
        before = ("benchmarks.reliability.exactness:arm", (str(self.base), GOOD, 15, 0))
        if self.train(self.base, before) != STOPPED:
            raise RuntimeError(f"no good checkpoint: {self.log.read_text()[-2000:]}")
        self.good = open_artifact(self._checkpoint(self.base), ARTIFACT).digest
        whole = self.copy("whole")
        if self.train(whole):
            raise RuntimeError(f"training failed with no fault: {self.log.read_text()[-2000:]}")
        self.weights = self._published(whole)

    def train(self, work: Path, before: Any = None) -> int:
        """Train in a process of its own; give its exit code."""
        loop = {"steps": STEPS, "save_every_steps": GOOD}
        config_file = write_config(work / "config.yaml", work, train=loop)
        return forkserver.run(
            "pipelines.train", ["--config", str(config_file)], self.log, before=before
        )

    def copy(self, name: str) -> Path:
        """Copy the folder that has a good checkpoint."""
        return shutil.copytree(self.base, self.base.with_name(name))

    def calls(self) -> int:
        """Count the calls that change the disk up to the next checkpoint."""
        work = self.copy("counted")
        code = self.train(work, self._fault(work, 0, 0, lasting=0))
        shutil.rmtree(work)
        if code != STOPPED:
            raise RuntimeError(f"saving failed with no fault: {self.log.read_text()[-2000:]}")
        return int.from_bytes(self.counter.read_bytes()[:8], sys.byteorder)

    def suffer_call(self, at: int, error: int, lasting: int, count: Count) -> None:
        """Let one call fail, or all from there on."""
        work = self.copy("trial")
        self._suffer(work, self._fault(work, at, error, lasting), count)

    def suffer_size(self, most_bytes: int, count: Count) -> None:
        """Let no file grow beyond a size."""
        work = self.copy("trial")
        before = ("benchmarks.reliability.saves:cap", (str(work / "checkpoints"), most_bytes))
        self._suffer(work, before, count)

    def _fault(self, work: Path, at: int, error: int, lasting: int) -> Any:
        self.counter.write_bytes(bytes(mmap.PAGESIZE))
        where = (str(work / "checkpoints"), str(self.counter), at, error, lasting)
        return "benchmarks.reliability.saves:arm", where

    def _suffer(self, work: Path, before: Any, count: Count) -> None:
        count.trials += 1
        code = self.train(work, before)
        if code != STOPPED:
            count.failed += 1
            count.unclear += not is_clear(code, self.log.read_text(encoding="utf-8"))
        count.unreadable += len(unreadable(work))
        if not self._checkpoint(work, NEXT).exists():
            good = self._checkpoint(work)
            count.touched += not good.exists() or open_artifact(good, ARTIFACT).digest != self.good
        count.different += self.train(work) != 0 or self._published(work) != self.weights
        shutil.rmtree(work)

    @staticmethod
    def _checkpoint(work: Path, step: int = GOOD) -> Path:
        return work / "checkpoints" / f"step-{step:08d}"

    @staticmethod
    def _published(work: Path) -> str:
        return open_artifact(model_package.ARTIFACT.at(work), model_package.ARTIFACT).digest


def is_clear(code: int, output: str) -> bool:
    """Return whether a failing trainer said what the disk refused, in one line and no trace.

    Args:
        code: its exit code.
        output: all that it printed.

    Returns:
        Whether it did.
    """
    lines = [line for line in output.splitlines() if line.startswith("train: ")]
    named = [line for line in lines if "could not be written" in line]
    return code == 4 and len(named) == 1 and "Traceback" not in output


def main(argv: Sequence[str] | None = None) -> int:
    """Let the disk fail in every call of a save and print what came of it.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, or 1 where nothing could be measured.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.saves")
    parser.add_argument("--quick", action="store_const", const="quick", default="full", dest="tier")
    tier = parser.parse_args(argv).tier
    figures: dict[str, float] = {}
    counts = {"full": Count()}
    with tempfile.TemporaryDirectory() as name, failing_disk(Path(name)) as can_fail:
        bench = Bench(Path(name))
        files = [path for path in (bench.base / "checkpoints").rglob("*") if path.is_file()]
        largest = max(path.stat().st_size for path in files)
        for number in range(SIZES[tier]):
            most = _LEAST_BYTES + (largest - _LEAST_BYTES) * number // SIZES[tier]
            bench.suffer_size(most, counts["full"])
        if can_fail:
            counts["call"] = Count()
            figures["calls"] = bench.calls()
            for error, lasting in ((errno.EIO, 0), (errno.ENOSPC, 1)):
                for at in range(1, int(figures["calls"]) + 1, EVERY[tier]):
                    bench.suffer_call(at, error, lasting, counts["call"])
        else:
            print("no C compiler: failing calls are not measured")
    for kind, count in counts.items():
        print(f"{kind:6}" + ", ".join(f"{key} {value}" for key, value in vars(count).items()))
        figures |= {f"{kind}_{key}": value for key, value in vars(count).items()}
    wrong = ("unclear", "touched", "unreadable", "different")
    bars = {key: ("0", figures[key] == 0) for key in figures if key.endswith(wrong)}
    return finish("saves", figures, bars)


if __name__ == "__main__":
    sys.exit(main())
