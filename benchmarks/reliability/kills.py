"""Kill -9 in the middle of a job, start it again: is the end that of an uninterrupted run?

    python -m benchmarks.reliability.kills [--quick | --long] [--job NAME] [--work FOLDER]

A job works on a small generated corpus. Its whole process group is killed at a random moment
after it began to write, and started and killed again, until a run comes to its end. Kills are
aimed at flushes until enough of them hit one: the process is frozen when a half-written file is
seen, and killed where that file is still there, else let go on. What had been acknowledged before
a kill must be there after the next one, once, with the same bytes; and the end must have the
content of a run that nobody killed. For training the losses of every logged step are compared
as well; every checkpoint that can be seen after a kill must open, and no more steps may be lost
than are between two of them. Half of its kills hit a save. An index is built where an old one of
another model stands: after every kill the old one must open whole and answer as before, and from
the moment at which the new one bears its name, so must that. Some kills come between the two
renames of that moment, or right after them. Runs to an end that were made are noted in FOLDER and
not repeated; `faults` kills every command at each of its writes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from benchmarks.record import finish
from benchmarks.reliability.crash_targets import (
    CONFIG,
    CRASH_TARGETS,
    REPLACING_SHARE,
    SAVED_EVERY,
    SMALL,
    TINY,
    CrashTarget,
    Facts,
    IndexSwap,
)
from benchmarks.reliability.exactness import newest, unreadable
from benchmarks.run_log import RunLog
from medclip_dcl.files import STAGED
from medclip_dcl.progress import Progress
from medclip_dcl.training.logging import read_metrics
from testing import forkserver
from testing.corpus import write_config

_POLL_S = 0.0002


def start(
    job: str, work: Path, before: tuple[str, tuple[str, ...]] | None = None
) -> ForkServerProcess:
    """Start a job in a process group of its own; `before` is called in it first."""
    options = [word for setting in (f"work={work}", *SMALL) for word in ("--set", setting)]
    arguments = ["--config", CONFIG, *options]
    if job in TINY:
        arguments = ["--config", str(write_config(work / "config.yaml", work, **TINY[job]))]
    return forkserver.start(f"pipelines.{job}", arguments, work.with_suffix(".log"), before=before)


def run(job: str, work: Path) -> None:
    """Run a job to its end; RuntimeError where it ends with another code than 0."""
    process = start(job, work)
    process.join()
    _must_have_ended(process, job, work)


def _must_have_ended(process: ForkServerProcess, job: str, work: Path) -> None:
    if process.exitcode:
        said = work.with_suffix(".log").read_text(encoding="utf-8")[-2000:]
        raise RuntimeError(f"{job} ended with exit code {process.exitcode}: {said}")


def content(target: CrashTarget, work: Path) -> tuple[str, list[dict[str, float]]]:
    """Give the content digest of a job's artifact, and the losses of every step where it trains."""
    digest = json.loads((work / target.artifact / "artifact.json").read_text())["digest"]
    log = next(iter(sorted(work.glob("**/metrics.jsonl"))), None) if target.job == "train" else None
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log else []
    kept = ("step", "loss", "uncorrected_loss", "frac_floor")
    return digest, [{name: line[name] for name in kept if name in line} for line in lines]


def half_written(target: CrashTarget, work: Path) -> bool:
    """Return whether a file that has not yet been renamed is next to those that have."""
    return seen(work, f"{target.staged}/{STAGED}*")


def seen(work: Path, pattern: str) -> bool:
    """Return whether a folder that a process works in holds such a file."""
    try:
        return any(work.glob(pattern))
    except FileNotFoundError:  # a folder on the way was removed meanwhile
        return False


def kill_once(
    target: CrashTarget, work: Path, seconds: float, rng: random.Random, aimed: bool
) -> ForkServerProcess:
    """Start a job and kill it at a random moment, or in the first flush after it where `aimed`.

    `seconds` is how long an uninterrupted run writes. A process that came to its end before has
    exit code 0.
    """
    process = start(target.job, work)
    pid = process.pid
    assert pid is not None
    while process.is_alive() and not seen(work, target.traces):
        time.sleep(_POLL_S)
    moment = time.monotonic() + rng.uniform(0, seconds)
    while process.is_alive() and time.monotonic() < moment:
        time.sleep(_POLL_S)
    while process.is_alive():
        if aimed and not half_written(target, work):
            continue
        _signal(pid, signal.SIGSTOP)
        if not aimed or half_written(target, work):
            break
        _signal(pid, signal.SIGCONT)
    _signal(pid, signal.SIGKILL)
    process.join()
    return process


def _signal(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


@dataclass
class Count:
    """What happened to one job."""

    kills: int = 0
    in_flush: int = 0
    ends: int = 0
    different: int = 0
    lost: int = 0
    duplicates: int = 0
    acknowledged: int = 0
    """Most that was acknowledged at a kill and not yet committed."""
    unreadable: int = 0
    """Checkpoints that could be seen after a kill and not be opened."""
    steps_lost: int = 0
    """Most steps that were logged and that no checkpoint held."""

    def suffices(self, kills: int, flushes: int) -> bool:
        """Return whether there were kills enough, and enough of them within a flush."""
        return self.kills >= kills and self.in_flush >= flushes

    def add(self, found: Mapping[str, int]) -> None:
        """Count what happened on the way to one end."""
        for name, value in found.items():
            most = name in {"acknowledged", "steps_lost"}
            setattr(
                self, name, max(getattr(self, name), value) if most else getattr(self, name) + value
            )

    def inspect(self, work: Path) -> None:
        """Count what a kill left of a run."""
        self.unreadable += len(unreadable(work))
        if (work / "checkpoints").exists():
            done = max((line["step"] for line in read_metrics(work / "checkpoints")), default=0)
            self.steps_lost = max(self.steps_lost, done - newest(work))

    def compare(self, before: Facts, found: list[tuple[str, str]]) -> Facts:
        """Count what a kill lost or doubled."""
        now = dict(found)
        times = Counter(name for name, _ in found)
        self.duplicates += sum(number - 1 for number in times.values())
        self.lost += sum(now.get(name) != value for name, value in before.items())
        self.acknowledged = max(self.acknowledged, len(now))
        return now


def try_target(target: CrashTarget, base: Path, tier: str, log: RunLog) -> dict[str, float]:
    """Kill a job many times and compare each end with an uninterrupted run's.

    `base` has the artifacts that the job reads, and is left unchanged. Gives counts, those of an
    old index among them, and seconds of the uninterrupted run.
    """
    reference = base.with_name(f"reference-{target.job}")
    shutil.copytree(base, reference)
    begun = time.monotonic()
    process = start(target.job, reference)
    while process.is_alive() and not seen(reference, target.traces):
        time.sleep(_POLL_S)
    writing = time.monotonic()
    process.join()
    _must_have_ended(process, target.job, reference)
    ended = time.monotonic()
    expected = content(target, reference)
    index_swap = IndexSwap.between(base, reference) if target.replaces else None
    count, served = Count(), Counter[str]()
    limits = (target.kills(tier), target.flushes(tier))
    with Progress(target.job, limits[0], "kill") as progress:
        while not count.suffices(*limits):
            rng = random.Random(f"{target.job} {count.ends}")

            def reach_end(rng: random.Random = rng) -> dict[str, Any]:
                work, here = base.with_name("trial"), Count()
                shutil.copytree(base, work)
                before = index_swap.counts() if index_swap else {}
                so_far = (count, limits, ended - writing)
                _kill_until_done(target, work, so_far, here, index_swap, rng)
                here.ends += 1
                here.different += content(target, work) != expected
                shutil.rmtree(work)
                after = index_swap.counts() if index_swap else {}
                return {"of_job": vars(here), "of_index": {k: after[k] - before[k] for k in after}}

            found = log.once(f"{target.job} {count.ends}", reach_end)
            count.add(found["of_job"])
            served.update(found["of_index"])
            progress.advance(found["of_job"]["kills"])
    shutil.rmtree(reference)
    return {**vars(count), **served, "seconds": round(ended - begun, 2)}


def _kill_until_done(
    target: CrashTarget,
    work: Path,
    so_far: tuple[Count, tuple[int, int], float],
    count: Count,
    index_swap: IndexSwap | None,
    rng: random.Random,
) -> None:
    earlier, limits, seconds = so_far
    before: Facts = {}
    while True:
        kills, in_flush = earlier.kills + count.kills, earlier.in_flush + count.in_flush
        if Count(kills, in_flush).suffices(*limits):
            run(target.job, work)
        else:
            aimed = in_flush < target.flush_share * (kills + 1)
            if index_swap and not aimed and index_swap.lacks(work, kills + 1):
                process = start(target.job, work, index_swap.arming())
                process.join()
            else:
                process = kill_once(target, work, seconds, rng, aimed=aimed)
            if process.exitcode == -signal.SIGKILL:
                count.kills += 1
                count.in_flush += half_written(target, work)
                if index_swap:
                    index_swap.ask(work)
                if (
                    index_swap.is_replaced(work)
                    if index_swap
                    else (work / target.artifact).exists()
                ):
                    continue  # committed a moment before
                count.inspect(work)
                before = count.compare(before, target.acknowledged(work))
                continue
            _must_have_ended(process, target.job, work)
        final = target.final(work)
        count.lost += sum(final[name] != value for name, value in before.items() if name in final)
        return


def main(argv: Sequence[str] | None = None) -> int:
    """Kill every job in turn and print what was left; 1 where a job could not be run at all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.kills")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--work", type=Path, metavar="FOLDER")
    parser.add_argument("--job", choices=[target.job for target in CRASH_TARGETS])
    arguments = parser.parse_args(argv)
    tier = arguments.tier or "normal"
    log = RunLog(arguments.work, "kills")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        made: set[str] = set()
        for target in CRASH_TARGETS:
            if arguments.job not in {None, target.job}:
                continue
            for job in target.needs:
                if job not in made:
                    run(job, base)
                    made.add(job)
            start_from = base
            if target.fixture:
                scene = base.with_name(f"scene-{target.job}")
                start_from = target.fixture(scene, partial(run, target.job))
            found = try_target(target, start_from, tier, log)
            shown = ", ".join(f"{name} {value}" for name, value in found.items())
            print(f"{target.job:18}{shown}", flush=True)
            figures |= {f"{target.job}_{name}": value for name, value in found.items()}
    bars = {}
    for name in ("different", "lost", "duplicates", "unreadable", "unserved"):
        counts = [figures.get(f"{target.job}_{name}", 0) for target in CRASH_TARGETS]
        bars[name] = ("0", not any(counts))
    for target in CRASH_TARGETS:
        if f"{target.job}_kills" in figures:
            least = target.flushes(tier)
            hits = figures[f"{target.job}_in_flush"]
            bars[f"{target.job}_in_flush"] = (f">= {least}", hits >= least)
            if target.replaces:
                least = int(target.kills(tier) * REPLACING_SHARE)
                hits = figures[f"{target.job}_replacing"]
                bars[f"{target.job}_replacing"] = (f">= {least}", hits >= least)
    if "train_steps_lost" in figures:
        bars["train_steps_lost"] = (f"<= {SAVED_EVERY}", figures["train_steps_lost"] <= SAVED_EVERY)
    return finish("kills", figures, bars, log.commits)


if __name__ == "__main__":
    sys.exit(main())
