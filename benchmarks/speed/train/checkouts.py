"""Two checkouts of this repository train the same model in turn, each by its own code."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

CONFIG = "configs/demo.yaml"
INPUTS = ("manifest", "prepared", "sentences", "claims", "language_model", "eta_cache")
"""Artifacts of the demo that training reads."""
FIRST, LAST = 8, 40
"""Steps between which a run is timed; imports and the first lines of the log come before."""
_POLL_S = 0.02


class Turn(NamedTuple):
    """One timed stretch of training."""

    cpu_s: float
    wall_s: float


def compare_checkouts(before: Path, work: Path, folder: Path, turns: int) -> dict[str, float]:
    """Let an earlier state of the repository and this one train in turn.

    Args:
        before: checkout of the earlier state.
        work: folder of a demo whose jobs up to `train` are done; it is left as it is.
        folder: receives copies.
        turns: turns of each, one after the other.

    Returns:
        Images/s of both by wall time, and the ratios, medians over the turns.
    """
    here = Path(__file__).parents[3]
    times: dict[Path, list[Turn]] = {before: [], here: []}
    for turn in range(turns):
        for checkout in (before, here) if turn % 2 else (here, before):
            copied = folder / f"turn{turn}-{checkout == here}"
            for name in INPUTS:
                shutil.copytree(work / name, copied / name)
            times[checkout].append(_train(checkout.resolve(), copied))
            shutil.rmtree(copied)
    images = (LAST - FIRST) * 64
    pairs = list(zip(times[before], times[here], strict=True))
    return {
        "demo_cpu_speedup": statistics.median(old.cpu_s / new.cpu_s for old, new in pairs),
        "demo_wall_speedup": statistics.median(old.wall_s / new.wall_s for old, new in pairs),
        "demo_images_per_s_before": images / statistics.median(t.wall_s for t in times[before]),
        "demo_images_per_s": images / statistics.median(t.wall_s for t in times[here]),
        "demo_images_per_cpu_s_before": images / statistics.median(t.cpu_s for t in times[before]),
        "demo_images_per_cpu_s": images / statistics.median(t.cpu_s for t in times[here]),
    }


def _train(checkout: Path, work: Path) -> Turn:
    """Train by a checkout's own code, one thread, and time its steps by its log."""
    settings = {
        "work": str(work),
        "train.steps": LAST,
        "train.log_every_steps": 1,
        "train.torch_threads": 1,
        "train.warmup_steps": 4,
    }
    command = [sys.executable, "-m", "pipelines.train", "--config", CONFIG]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    own = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    log = work / "checkpoints" / "metrics.jsonl"
    with (work / "said.txt").open("w") as said:
        running = subprocess.Popen(
            command, cwd=checkout, env=os.environ | own, stdout=said, stderr=said
        )
        seen = psutil.Process(running.pid)
        marks: dict[int, tuple[float, float]] = {}
        while running.poll() is None:
            lines = log.read_bytes().count(b"\n") if log.is_file() else 0
            if FIRST <= lines <= LAST and lines not in marks:
                times = seen.cpu_times()
                marks[lines] = times.user + times.system, time.monotonic()
            time.sleep(_POLL_S)
    if running.returncode or not {FIRST, LAST} <= marks.keys():
        raise RuntimeError((work / "said.txt").read_text()[-2000:])
    (begun_cpu, begun), (ended_cpu, ended) = marks[FIRST], marks[LAST]
    return Turn(ended_cpu - begun_cpu, ended - begun)
