"""Is a run what its config says, cut anywhere and started again, on one process or on two?

    python -m benchmarks.reliability.exactness [--quick] [--strict]

    resume   a tiny run is cut at twelve points, by kill -9 or SIGTERM, in the middle of an
             epoch, at its end, and inside the saving of a checkpoint; started again, it must
             end with the same bits, every process having seen the same samples in each step;
             the image encoder is thawed on the way
    refuse   the cut run must not go on with another number of processes: on a CPU the batch
             norms of each see its own pairs alone
    other    one process is cut and two go on, without dropout; two are cut, one goes on and is
             cut, and two go on, with dropout; batch norms frozen: their losses against those of
             a run that was not cut
    curve    two processes of half a batch each follow the losses of one with all of it, over
             50 steps; batch norms frozen, no dropout

Processes are real ones that talk over gloo; the model and its data are so small that what is
measured is the order of things. `--quick` cuts at three of the points.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from benchmarks.record import finish, judge
from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ArtifactError
from medclip_dcl.training.checkpoint import ARTIFACT
from medclip_dcl.training.logging import TIMINGS, read_metrics
from testing import forkserver
from testing.corpus import write_config, write_corpus

STUDIES = 80  # 48 of them train
LOOP = {
    "steps": 30,
    "global_batch": 8,
    "save_every_steps": 5,
    "warmup_steps": 4,
    "image_frozen_steps": 11,  # so cuts are on both sides of a thaw
}
EPOCH = 6
CURVE_STEPS = 50
CURVE_SEEDS = 3
STOPPED = 75
_HUNG_S = 120


@dataclass(frozen=True)
class Cut:
    """Where a run ends before its time."""

    step: int
    """After so many steps."""
    number: int
    """The signal."""
    flush: int = 0
    """0: before anything is saved; else at this flush to the disk of the checkpoint."""

    @property
    def kind(self) -> str:
        """Which of the three sorts of place it is."""
        if self.flush:
            return "saving"
        return "epoch_end" if self.step % EPOCH == 0 else "mid_epoch"


_KILL, _TERM = int(signal.SIGKILL), int(signal.SIGTERM)
CUTS = (
    Cut(8, _KILL),
    Cut(12, _TERM),
    Cut(15, _KILL, flush=4),
    Cut(6, _KILL),
    Cut(13, _TERM),
    Cut(5, _KILL, flush=2),
    Cut(18, _KILL),
    Cut(22, _KILL),
    Cut(20, _KILL, flush=8),
    Cut(24, _TERM),
    Cut(27, _TERM),
    Cut(25, _KILL, flush=13),
)
"""Twelve, four of each sort; the quick tier takes one of each."""


def arm(folder: str, step: int, number: int, flush: int) -> None:
    """Let this process note what it is fed, and end itself; called in the process itself.

    `folder` receives a file with a line for every step. The signal comes after so many steps (0:
    never) or at the flush after that step that `flush` counts (0: none).
    """
    from medclip_dcl.training.step import TrainStep

    rank = os.environ.get("RANK", "0")
    notes = (Path(folder) / f"seen-{rank}.jsonl").open("a", encoding="utf-8")
    inner, flush_file = TrainStep.__call__, os.fsync
    flushed: list[int] = []

    def counted(handle: int) -> None:
        flushed.append(handle)
        if len(flushed) == flush + 1:  # the log is flushed first
            os.kill(os.getpid(), number)
        flush_file(handle)

    def noted(self: Any, batch: Any, stop: bool) -> Any:
        report = inner(self, batch, stop)
        line = {"step": batch.step + 1, "items": batch.study_ids, "bytes": _digest_of(batch)}
        notes.write(json.dumps(line) + "\n")
        notes.flush()
        if batch.step + 1 == step:
            if flush:
                os.fsync = counted
            else:
                os.kill(os.getpid(), number)
        return report

    TrainStep.__call__ = noted  # type: ignore[method-assign]


def _digest_of(batch: Any) -> str:
    """Name every byte that a process is given for one step."""
    digest = hashlib.sha256()
    for name, value in sorted(vars(batch).items()):
        if hasattr(value, "numpy"):
            digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def start(work: Path, processes: int, cut: Cut | None, **sections: Mapping[str, Any]) -> list[Any]:
    """Start the trainer in its processes."""
    loop = {**LOOP, "processes": processes, **sections.pop("train", {})}
    config_file = write_config(work / "config.yaml", work, train=loop, **sections)
    where = (cut.step, cut.number, cut.flush) if cut else (0, 0, 0)
    before = ("benchmarks.reliability.exactness:arm", (str(work), *where))
    arguments = ["--config", str(config_file)]
    log = work.with_name(f"{work.name}.log")
    return forkserver.start_ranks(processes, "pipelines.train", arguments, log, before=before)


def end_of(started: list[ForkServerProcess]) -> list[int]:
    """Wait for the first process, end the others as a launcher would, give the exit codes.

    RuntimeError where it hangs.
    """
    first, *others = started
    first.join(_HUNG_S)
    if first.exitcode is None:
        raise RuntimeError("a run hangs")
    for other in others:
        other.join(_HUNG_S if first.exitcode in {0, STOPPED} else 1)
        if other.exitcode is None:
            other.kill()
            other.join()
    return [process.exitcode for process in started if process.exitcode is not None]


def must_end(work: Path, processes: int, **sections: Mapping[str, Any]) -> None:
    """Train to the end; RuntimeError where a process ends with another code than 0."""
    codes = end_of(start(work, processes, None, **sections))
    if any(codes):
        output = work.with_name(f"{work.name}.log-0").read_text(encoding="utf-8")
        raise RuntimeError(f"training ended with {codes}: {output[-2000:]}")


@dataclass(frozen=True)
class End:
    """What a run came to."""

    digest: str
    """Of the published model: every weight."""
    figures: list[dict[str, Any]]
    """The metrics log, without times."""
    seen: list[dict[int, dict[str, Any]]]
    """For each process, what it was fed in each step, and how often it differed."""
    repeated: int
    """Steps that were done twice with other bytes."""


def end(work: Path, processes: int) -> End:
    """Read what a run came to."""
    seen, repeated = [], 0
    for rank in range(processes):
        of_step: dict[int, dict[str, Any]] = {}
        for text in (work / f"seen-{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            repeated += of_step.get(line["step"], line) != line
            of_step[line["step"]] = line
        seen.append(of_step)
    lines = read_metrics(work / "checkpoints")
    figures = [{key: line[key] for key in line if key not in TIMINGS} for line in lines]
    digest = open_artifact(model_package.ARTIFACT.at(work), model_package.ARTIFACT).digest
    return End(digest, figures, seen, repeated)


def unreadable(work: Path) -> list[str]:
    """List the checkpoints that can be seen and cannot be opened."""
    bad = []
    for path in sorted((work / "checkpoints").glob("step-*")):
        try:
            open_artifact(path, ARTIFACT)
        except ArtifactError:
            bad.append(path.name)
    return bad


def newest(work: Path) -> int:
    """Give the step of the newest checkpoint; 0 where there is none."""
    names = [path.name for path in (work / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def resume(base: Path, processes: int, cuts: Sequence[Cut]) -> Counter[str]:
    """Cut a run, start it again, and compare its end with an uninterrupted one's."""
    whole = base.with_name("whole")
    shutil.copytree(base, whole)
    must_end(whole, processes)
    expected = end(whole, processes)
    shutil.rmtree(whole)
    count: Counter[str] = Counter(twice_in_an_epoch=_twice_in_an_epoch(expected))
    for cut in cuts:
        work = base.with_name("cut")
        shutil.copytree(base, work)
        codes = end_of(start(work, processes, cut))
        asked = STOPPED if cut.number == _TERM else -cut.number
        count["missed"] += codes[0] != asked  # a cut that did not come where it should
        count["unreadable"] += len(unreadable(work))
        lost = len(read_metrics(work / "checkpoints")) - newest(work)
        count["most_lost"] = max(count["most_lost"], lost)
        if processes == 1 and cut is cuts[0]:
            count["refused"] = _refuses(work)
        must_end(work, processes)
        found = end(work, processes)
        count["different_weights"] += found.digest != expected.digest
        count["different_curve"] += found.figures != expected.figures
        count["different_samples"] += found.repeated or found.seen != expected.seen
        count["cuts"] += 1
        count[cut.kind] += 1
        shutil.rmtree(work)
    return count


def _twice_in_an_epoch(run: End) -> int:
    """Count studies that stood twice in one epoch, or a batch that lacked places."""
    twice = 0
    for first in range(1, LOOP["steps"], EPOCH):
        ids = [name for step in range(first, first + EPOCH) for name in run.seen[0][step]["items"]]
        twice += EPOCH * LOOP["global_batch"] - len(set(ids))
    return twice


def _refuses(work: Path) -> int:
    """Return whether a run of one process refuses to go on with two."""
    codes = end_of(start(work, 2, None))
    output = work.with_name(f"{work.name}.log-0").read_text(encoding="utf-8")
    return int(codes[0] == 4 and "set train.processes to 1" in output)


def curve(folder: Path, seed: int) -> float:
    """Give the largest relative difference of the losses of one process and of two."""
    return _farthest(*(_losses(folder, seed, counts) for counts in ((1,), (2,))))


def other(folder: Path, seed: int) -> float:
    """Give the largest relative difference that changes of the number make on the way."""
    one, two = _losses(folder, seed, (1,)), _losses(folder, seed, (1, 2))
    return max(_farthest(one, two), there_and_back(folder, seed))


def there_and_back(folder: Path, seed: int) -> float:
    """Give that of two processes, then one, then two, with dropout."""
    counts = ((2,), (2, 1, 2))
    return _farthest(*(_losses(folder, seed, each, dropout=0.1) for each in counts))


def _losses(folder: Path, seed: int, launches: Sequence[int], dropout: float = 0.0) -> list[float]:
    """Train with so many processes in each part of the run; what is there is not done again."""
    settings = {
        "steps": CURVE_STEPS,
        "freeze_batchnorm": True,
        "learning_rate": 1e-3,
        "image_frozen_steps": 10,  # the distributed wrapper is made again at the thaw
    }
    objective = {"directions": "both", "relation": "claims"}
    work = folder / f"seed-{seed}-{dropout}-{'-'.join(map(str, launches))}"
    if not (work / "checkpoints").exists():
        torch.manual_seed(seed)  # of the language model that all start from
        write_corpus(work, studies=STUDIES, dropout=dropout, eta=0.2)
        *cut, last = launches
        for number, count in enumerate(cut, start=1):
            at = Cut(number * CURVE_STEPS // len(launches), _TERM)
            end_of(start(work, count, at, train=settings, objective=objective))
        must_end(work, last, train=settings, objective=objective)
        card = json.loads((model_package.ARTIFACT.at(work) / "model.json").read_text("utf-8"))
        changes = [item["processes"] for item in card["training"].get("resumed_with", [])]
        if changes != list(launches[1:]):
            raise RuntimeError("the model does not say which processes went on with it")
    return [line["loss"] for line in read_metrics(work / "checkpoints")]


def _farthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    if not len(ours) == len(theirs) == CURVE_STEPS or ours[0] == ours[-1]:
        raise RuntimeError("the curves have too few steps, or nothing was learned")
    return max(abs(one - two) / abs(one) for one, two in zip(ours, theirs, strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Cut, resume, compare, and print what came of it; 1 where a run could not be started."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.exactness")
    parser.add_argument("--quick", action="store_true", help="three cuts, one seed")
    parser.add_argument("--strict", action="store_true", help="1 where a bar is missed")
    arguments = parser.parse_args(argv)
    cuts, seeds = (CUTS[:3], 1) if arguments.quick else (CUTS, CURVE_SEEDS)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        base = write_corpus(folder / "base", studies=STUDIES)
        for processes in (1, 2):
            count = resume(base, processes, cuts)
            figures |= {f"processes_{processes}_{key}": value for key, value in count.items()}
        figures["curve_difference_ppm"] = 1e6 * max(curve(folder, seed) for seed in range(seeds))
        figures["other_difference_ppm"] = 1e6 * max(other(folder, seed) for seed in range(seeds))
    bars = judge(figures, _bars(len(cuts)))
    return finish("exactness", figures, bars, strict=arguments.strict)


def _bars(cuts: int) -> dict[str, str]:
    none = ("different_weights", "different_curve", "different_samples", "unreadable", "missed")
    each = dict.fromkeys((*none, "twice_in_an_epoch"), "0")
    each |= {"most_lost": f"<= {LOOP['save_every_steps']}", "cuts": f"{cuts}"}
    bars = {f"processes_{n}_{name}": bar for n in (1, 2) for name, bar in each.items()}
    return bars | {
        "processes_1_refused": "1",
        **dict.fromkeys(("curve_difference_ppm", "other_difference_ppm"), "<= 1"),
    }


if __name__ == "__main__":
    sys.exit(main())
