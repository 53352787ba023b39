"""Kill -9 at random moments of a job, start it again: is the end that of an uninterrupted run?

    python -m benchmarks.reliability.kills [--quick | --long] [--strict] [--job NAME]
        [--work FOLDER]

`faults` kills every command at each of its writes; here four jobs are killed between them as well,
with all their workers. A job works on a small folder, in which an artifact of other settings stands
in the place of its own; its process group is killed at a random moment, and started and killed
again, until a run comes to its end. At least a third of the kills is aimed: the group is frozen
when a half-written file is seen, and killed where that file is still there. After every kill
whatever bears its final name must be the old one or the new one, every byte of it, and units of
work that were whole must be as they were; the end must have the files of an undisturbed run. What
`exactness` asks of training, such as its curve, is not asked again. Ends that were reached are
noted in FOLDER and not repeated.
"""

import argparse
import functools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import finish
from benchmarks.reliability.faults import Bench, Scene, is_new, is_old_or_new
from benchmarks.reliability.writers import REPLACING, Writer, snapshot, units
from benchmarks.run_log import RunLog
from medclip_dcl.files import STAGED
from medclip_dcl.progress import Progress

KILLS = {"quick": 6, "normal": 12, "long": 60}
AIMED = 1 / 3
"""Share of the kills that must hit a flush."""
_QUICK_SHARE = {"train": 1 / 3}  # its restarts are long
_POLL_S = 0.0002
_SMALL = (
    *("generate.patients=150", "generate.size_px=128", "images.size_px=144", "workers=2"),
    *("likelihood.unit_pieces=500", "language_model.steps=20"),
    "language_model.vocabulary=2000",  # no sentence is longer than a unit, so each has one score
)


def killed_jobs(_hub: str = "") -> tuple[Writer, ...]:
    """List the jobs that are killed, and those that they need before them."""
    studies = functools.partial(Writer, base="studies", settings=_SMALL)
    evaluated = functools.partial(Writer, base="evaluated")
    return (
        *(studies(name) for name in ("generate_studies", "build_manifest")),
        studies("prepare_images", old=("images.size_px=48",), leaf=True),
        *(studies(name) for name in ("split_sentences", "fit_language_model")),
        studies("score_sentences", old=("likelihood.variant=within_word_l2r",)),
        evaluated("build_index", settings=("index.shard_rows=2",), old=("index.shard_rows=8",)),
        evaluated(
            "train",
            settings=("train.steps=48", "train.save_every_steps=4"),
            old=("seed=1",),
            words=REPLACING,
        ),
    )


JOBS = ("prepare_images", "score_sentences", "build_index", "train")


def half_written(work: Path) -> bool:
    """Return whether a file that has not yet been renamed stands anywhere below a folder."""
    try:
        return any(work.rglob(f"{STAGED}*"))
    except FileNotFoundError:  # a folder on the way was removed meanwhile
        return False


def kill_once(scene: Scene, work: Path, log: Path, rng: random.Random, *, aimed: bool) -> int:
    """Start a job and kill it at a random moment, or in the first flush after it where `aimed`.

    Gives the exit code: 0 where it came to its end before.
    """
    process = scene.writer.start(work, log)
    assert process.pid is not None
    moment = time.monotonic() + rng.uniform(0, scene.seconds)
    while process.is_alive() and time.monotonic() < moment:
        time.sleep(_POLL_S)
    while process.is_alive():
        if aimed and not half_written(work):
            continue
        _signal(process.pid, signal.SIGSTOP)
        if not aimed or half_written(work):
            break
        _signal(process.pid, signal.SIGCONT)
    _signal(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _signal(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def reach_end(
    bench: Bench, scene: Scene, kills: int, flushes: int, rng: random.Random
) -> dict[str, Any]:
    """Kill a job until a run of it ends, or until that many kills and flushes; count what it left.

    The run after the last kill is left alone.
    """
    work, found = bench.copy(scene.start, "trial"), Counter[str](ends=1)
    before: dict[str, tuple[str, int]] = {}
    code = -signal.SIGKILL
    while code:
        if found["kills"] >= kills and found["in_flush"] >= flushes:
            code = scene.writer.run(work, bench.log)
        else:
            aimed = found["in_flush"] < flushes and found["in_flush"] <= AIMED * found["kills"]
            code = kill_once(scene, work, bench.log, rng, aimed=aimed)
        if code not in {0, -signal.SIGKILL}:
            raise RuntimeError(f"{scene.writer.name} ended with {code}: {bench.said()}")
        if code:
            found["kills"] += 1
            found["in_flush"] += half_written(work)
            after = units(work)
            found["lost"] += sum(after.get(name, kept) != kept for name, kept in before.items())
            before = units(work, drafts=True)
            found["acknowledged"] += len(before)
            seen = snapshot(work)
            names = {*seen, *scene.old, *scene.new}
            found["broken"] += sum(not is_old_or_new(scene, seen, name) for name in names)
    found["different"] = not is_new(scene, snapshot(work))
    shutil.rmtree(work)
    return {name: int(value) for name, value in found.items()}


def try_job(bench: Bench, scene: Scene, tier: str, log: RunLog) -> Counter[str]:
    """Let a job reach one end after the other until it was killed often enough."""
    name, count = scene.writer.name, Counter[str]()
    kills = max(1, round(KILLS[tier] * (_QUICK_SHARE.get(name, 1) if tier == "quick" else 1)))
    flushes = int(kills * AIMED)
    with Progress(name, kills, "kill") as progress:
        while count["kills"] < kills or count["in_flush"] < flushes:
            trial = f"{name} {count['ends']}"
            left = (kills - count["kills"], flushes - count["in_flush"])
            run = functools.partial(reach_end, bench, scene, *left, random.Random(trial))
            found = log.once(trial, run)
            count.update(found)
            progress.advance(found.get("kills", 0))
    return count


def main(argv: Sequence[str] | None = None) -> int:
    """Kill every job in turn and print what was left; 1 where `--strict` and a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.kills")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--work", type=Path, metavar="FOLDER")
    parser.add_argument("--strict", action="store_true", help="1 where a bar is missed")
    parser.add_argument("--job", choices=JOBS, action="append")
    arguments = parser.parse_args(argv)
    tier, log = arguments.tier or "normal", RunLog(arguments.work, "kills")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.job or JOBS, killed_jobs, counted=False)
        for scene in bench.scenes():
            found, name = try_job(bench, scene, tier, log), scene.writer.name
            shown = ", ".join(f"{key} {value}" for key, value in found.items())
            print(f"{name:18}{shown}", flush=True)
            figures |= {f"{name}_{key}": value for key, value in found.items()}
    bars = {}
    for key in ("different", "lost", "broken"):
        bars[key] = ("0", not any(figures.get(f"{job}_{key}", 0) for job in JOBS))
    for job in JOBS:
        if least := int(figures.get(f"{job}_kills", 0) * AIMED):
            bars[f"{job}_in_flush"] = (f">= {least}", figures[f"{job}_in_flush"] >= least)
    return finish("kills", figures, bars, log.commits, strict=arguments.strict)


if __name__ == "__main__":
    sys.exit(main())
