"""The loop against the bare step, the loader alone, and memory step by step."""

import statistics
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from benchmarks.speed.timing import cpu_ms, interleaved
from benchmarks.speed.train.fixtures import TrainFixture, run_loop
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.augment import jitter
from medclip_dcl.training.dataset import ImageTextBatch
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.trainer import CLIP_NORM

_SETTLED = 10  # steps until the allocator has met every length of sentence

Clock = tuple[float, float]


def now() -> Clock:
    """Give CPU seconds of this process, all threads, and wall seconds."""
    return time.process_time(), time.perf_counter()


class BareStep:
    """The rival: forward, loss, backward, clipping and update, on tensors in memory.

    No reading, no augmentation, no schedule, no look at whether a number is finite, no log.
    """

    def __init__(self, scene: TrainFixture, *, reduced: bool = False) -> None:
        """Build it; `reduced` runs the encoders in bfloat16, the loss stays float32."""
        self.reduced = reduced
        encoder = scene.encoder()
        encoder.image.to(memory_format=torch.channels_last)
        self.encoder: DualEncoder = encoder.train()
        self.objective = ContrastiveObjective(scene.config.objective, scene.config.seed)
        self.optimizer = AdamW(encoder.parameters(), lr=1e-5, fused=True)
        self.clip_norm = CLIP_NORM
        self.batch: ImageTextBatch = scene.dataset.batch(0)
        self.pixels: Tensor = jitter(self.batch.crops, self.batch.brightness, self.batch.contrast)

    def __call__(self) -> None:
        """Do one step."""
        batch = self.batch
        with torch.autocast("cpu", torch.bfloat16, enabled=self.reduced):
            regions, sentences = self.encoder(self.pixels, batch.input_ids, batch.attention_mask)
        self.objective(self.encoder, regions, sentences, batch).loss.backward()
        clip_grad_norm_(self.encoder.parameters(), self.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def compare(scene: TrainFixture, folder: Path, rounds: int, steps: int) -> dict[str, float]:
    """Time the loop and the bare step in turn; steps before and after a turn are not counted.

    Gives images/s of both by wall time, and how they stand, medians over the turns.
    """
    bare = BareStep(scene)
    ratios: list[Clock] = []
    walls: list[Clock] = []
    for turn in range(rounds):
        marks = _quietly(lambda turn=turn: run_loop(scene, folder / str(turn), steps + 2, now))
        ours = _spent(marks[1], marks[-1])  # the first step makes room for moments
        bare()
        begun = now()
        for _ in range(steps):
            bare()
        theirs = _spent(begun, now())
        ratios.append((theirs[0] / ours[0], theirs[1] / ours[1]))
        walls.append((ours[1], theirs[1]))
    images = steps * scene.config.train.global_batch
    cpu, wall = (statistics.median(column) for column in zip(*ratios, strict=True))
    loop_s, bare_s = (statistics.median(column) for column in zip(*walls, strict=True))
    return {
        "loop_ratio": cpu,
        "loop_wall_ratio": wall,
        "loop_images_per_s": images / loop_s,
        "bare_images_per_s": images / bare_s,
    }


def reduced(scene: TrainFixture, rounds: int) -> dict[str, float]:
    """Time bare steps in float32 and bfloat16 in turn, after one: median CPU seconds and ratio."""
    plain, half = BareStep(scene), BareStep(scene, reduced=True)
    rivals = {"float32": lambda _: plain(), "bf16": lambda _: half()}
    times = interleaved(rivals, rounds, warm_up=1)
    float32_s, bf16_s = (cpu_ms(times, name) / 1e3 for name in rivals)
    return {
        "bf16_over_float32": float32_s / bf16_s,
        "step_float32_cpu_s": float32_s,
        "step_bf16_cpu_s": bf16_s,
    }


def loader_alone(scene: TrainFixture, rounds: int) -> dict[str, float]:
    """Read, crop and augment batches in one thread, without a model.

    Gives images/s of a core by CPU time, medians; and microseconds an image of each half.
    """
    reads: list[float] = []
    changes: list[float] = []
    images = scene.config.train.global_batch
    for step in range(rounds):
        begun = time.process_time()
        batch = scene.dataset.batch(step)
        read = time.process_time()
        jitter(batch.crops, batch.brightness, batch.contrast)
        reads.append((read - begun) / images)
        changes.append((time.process_time() - read) / images)
    read_s, change_s = statistics.median(reads), statistics.median(changes)
    return {
        "loader_images_per_core_s": 1 / (read_s + change_s),
        "read_us": 1e6 * read_s,
        "augment_us": 1e6 * change_s,
    }


def memory(scene: TrainFixture, folder: Path, steps: int) -> dict[str, float]:
    """Follow this process's memory through a run.

    Gives the least-squares slope of the resident memory after the first ten steps, and its largest
    value, megabytes.
    """
    process = psutil.Process()
    seen = _quietly(lambda: run_loop(scene, folder, steps, lambda: process.memory_info().rss / 1e6))
    settled = np.array(seen[_SETTLED:])
    slope = float(np.polyfit(np.arange(len(settled)), settled, 1)[0])
    return {"memory_mb_per_step": slope, "memory_peak_mb": max(seen)}


def _quietly(run: Callable[[], list]) -> list:
    with redirect_stderr(StringIO()):  # the progress of the loop
        return run()


def _spent(begun: Clock, ended: Clock) -> Clock:
    return ended[0] - begun[0], ended[1] - begun[1]
