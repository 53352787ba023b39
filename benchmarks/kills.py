"""Kill -9 in the middle of a job, start it again: is the end that of an uninterrupted run?

    python -m benchmarks.kills [--quick | --long] [--job NAME]

Each trial starts a job on a small generated corpus, kills its whole process group at a
random moment after it began to write, starts it again until it ends, and compares the
content digest with that of a run that nobody killed. For training the losses of every
logged step are compared as well.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import finish

RECIPE = "configs/demo.yaml"
SMALL = (
    "generate.patients=150",
    "images.shard_rows=8",
    "likelihood.unit_sentences=12",
    "likelihood.workers=1",
    "language_model.steps=20",
    "train.steps=24",
    "train.global_batch=16",
    "train.warmup_steps=4",
    "train.save_every_steps=4",
    "train.log_every_steps=1",
)
STORY = (
    "generate_studies",
    "build_manifest",
    "prepare_images",
    "split_sentences",
    "read_claims",
    "fit_language_model",
    "score_sentences",
    "build_eta_cache",
    "train",
)
KILLS = {"quick": 1, "normal": 6, "long": 60}


@dataclass(frozen=True)
class Victim:
    """A job to kill: what it makes, and the files that show that it is under way."""

    job: str
    artifact: str
    traces: str
    also: tuple[str, ...] = ()


VICTIMS = (
    Victim("prepare_images", "prepared", ".prepared.draft/shard-*"),
    Victim("score_sentences", "likelihoods", ".likelihoods.draft/unit*"),
    Victim("train", "model", "checkpoints/step-*", ("checkpoints", "metrics.jsonl")),
)


def start(job: str, work: Path) -> subprocess.Popen[bytes]:
    """Start a job in a process group of its own.

    Args:
        job: its name.
        work: folder of the recipe.

    Returns:
        The running process.
    """
    settings = (f"work={work}", *SMALL)
    options = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", f"pipelines.{job}", "--config", RECIPE, *options]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, start_new_session=True, stdout=quiet, stderr=quiet)


def run(job: str, work: Path) -> None:
    """Run a job to its end.

    Args:
        job: its name.
        work: folder of the recipe.

    Raises:
        RuntimeError: it ended with another code than 0.
    """
    code = start(job, work).wait()
    if code:
        raise RuntimeError(f"{job} ended with exit code {code}")


def content(victim: Victim, work: Path) -> tuple[str, list[dict[str, float]]]:
    """Read what a job made.

    Args:
        victim: the job.
        work: folder of the recipe.

    Returns:
        Content digest of its artifact, and the losses of every step where it trains.
    """
    digest = json.loads((work / victim.artifact / "artifact.json").read_text())["digest"]
    log = next(iter(sorted(work.glob("**/metrics.jsonl"))), None) if victim.job == "train" else None
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log else []
    kept = ("step", "loss", "uncorrected_loss", "frac_floor")
    return digest, [{name: line[name] for name in kept if name in line} for line in lines]


def kill_once(victim: Victim, work: Path, seconds: float, draw: random.Random) -> bool:
    """Start a job, kill it at a random moment and say whether it was still running.

    Args:
        victim: the job.
        work: folder of the recipe.
        seconds: how long an uninterrupted run writes.
        draw: where the moment comes from.

    Returns:
        True when the kill hit; False when the job had ended before.
    """
    process = start(victim.job, work)
    while process.poll() is None and not any(work.glob(victim.traces)):
        time.sleep(0.005)
    time.sleep(draw.uniform(0, seconds))
    hit = process.poll() is None
    if hit:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return hit


def try_victim(victim: Victim, base: Path, kills: int, draw: random.Random) -> dict[str, float]:
    """Kill a job many times and compare each end with an uninterrupted run's.

    Args:
        victim: the job.
        base: folder with the artifacts that the job reads; it is left unchanged.
        kills: kills that must hit.
        draw: where the moments come from.

    Returns:
        Counts: kills that hit, ends that differed, seconds of the uninterrupted run.
    """
    reference = base.with_name(f"reference-{victim.job}")
    shutil.copytree(base, reference)
    begun = time.monotonic()
    process = start(victim.job, reference)
    while process.poll() is None and not any(reference.glob(victim.traces)):
        time.sleep(0.005)
    writing = time.monotonic()
    if process.wait():
        raise RuntimeError(f"{victim.job} ended with exit code {process.returncode}")
    ended = time.monotonic()
    expected = content(victim, reference)
    hits = different = 0
    while hits < kills:
        work = base.with_name("trial")
        shutil.copytree(base, work)
        hits += kill_once(victim, work, ended - writing, draw)
        run(victim.job, work)
        different += content(victim, work) != expected
        shutil.rmtree(work)
    shutil.rmtree(reference)
    return {"kills": hits, "different": different, "seconds": round(ended - begun, 2)}


def main(argv: Sequence[str] | None = None) -> int:
    """Kill every job in turn and print what was left.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, or 1 where a job could not be run at all.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills")
    parser.add_argument("--quick", action="store_const", const="quick", dest="tier")
    parser.add_argument("--long", action="store_const", const="long", dest="tier")
    parser.add_argument("--job", choices=[victim.job for victim in VICTIMS])
    arguments = parser.parse_args(argv)
    kills = KILLS[arguments.tier or "normal"]
    draw = random.Random(0)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        victims = {victim.job: victim for victim in VICTIMS}
        for job in STORY:
            if job in victims and arguments.job in {None, job}:
                found = try_victim(victims[job], base, kills, draw)
                print(f"{job:18}" + ", ".join(f"{name} {value}" for name, value in found.items()))
                figures |= {f"{job}_{name}": value for name, value in found.items()}
            run(job, base)
    different = sum(value for name, value in figures.items() if name.endswith("_different"))
    return finish("kills", figures, {"different": ("0", different == 0)})


if __name__ == "__main__":
    sys.exit(main())
