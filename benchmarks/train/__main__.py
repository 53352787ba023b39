"""The training loop beside its own bare step; the loader alone; memory over many steps.

    python -m benchmarks.train [--quick]
    python -m benchmarks.train --against FOLDER [--work FOLDER] [--quick]

Loop and bare step take turns in one process with one thread: ResNet-18 and a small BERT,
512 px films, 480 px crops. The loop reads, augments, steps and writes a line of the log every
step; the bare step has its tensors in memory. Ratios are of CPU time, and of wall time beside
it. Memory is that of BERT-base and ResNet-18 at batch 4.

`--against` names a checkout of an earlier state of this repository and measures nothing else:
both train the demo's model on `--work`'s artifacts in turn, some dozen steps each, one thread,
in processes of their own.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import BertConfig

from benchmarks.record import finish
from benchmarks.train import steps
from benchmarks.train.checkouts import compare_checkouts
from benchmarks.train.scene import set_scene
from tests.synthetic.corpus import write_corpus

PREPARED_PX, INPUT_PX = 512, 480
LEAST_SHARE, LEAST_IMAGES, MOST_MB = 0.95, 400.0, 1.0

Bars = dict[str, tuple[str, bool]]


class Tier(NamedTuple):
    """How much is measured."""

    studies: int
    batch: int
    rounds: int
    steps: int
    loaded: int
    """Batches of the loader alone."""
    memory_steps: int
    memory_px: int
    """Prepared films of the memory run, pixels; its crops are 15/16 of that."""
    turns: int
    """Turns of two checkouts."""


QUICK = Tier(120, 4, 1, 2, 20, 24, 128, 2)
FULL = Tier(320, 8, 3, 3, 60, 60, 256, 5)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        0, whether or not a bar is met.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    parser.add_argument("--against", type=Path, help="checkout of an earlier state")
    parser.add_argument("--work", type=Path, default=Path("runs/demo"), help="artifacts of a demo")
    arguments = parser.parse_args(argv)
    tier = QUICK if arguments.quick else FULL
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        if arguments.against is not None:
            bars: Bars = {}
            figures = compare_checkouts(arguments.against, arguments.work, Path(name), tier.turns)
        else:
            figures, bars = _measure(tier, Path(name))
    for name, value in figures.items():
        bar, met = bars.get(name, ("", True))
        print(f"{name:26} {value:10.3f}  {bar and f'bar {bar}'} {'' if met else 'MISSED'}")
    return finish("train", figures, bars)


def _measure(tier: Tier, folder: Path) -> tuple[dict[str, float], Bars]:
    work = write_corpus(folder / "films", tier.studies, PREPARED_PX)
    figures = steps.loader_alone(set_scene(work, 64, INPUT_PX), tier.loaded)
    scene = set_scene(work, tier.batch, INPUT_PX)
    figures |= steps.compare(scene, folder, tier.rounds, tier.steps)
    work = write_corpus(folder / "small", tier.studies, tier.memory_px)
    base = set_scene(work, 4, tier.memory_px * INPUT_PX // PREPARED_PX, BertConfig())
    figures |= steps.memory(base, folder / "memory", tier.memory_steps)
    bars = {
        name: (f">= {LEAST_SHARE}", figures[name] >= LEAST_SHARE)
        for name in ("loop_ratio", "loop_wall_ratio")
    }
    speed, slope = figures["loader_images_per_core_s"], figures["memory_mb_per_step"]
    bars["loader_images_per_core_s"] = (f">= {LEAST_IMAGES:g}", speed >= LEAST_IMAGES)
    bars["memory_mb_per_step"] = (f"<= {MOST_MB:g}", slope <= MOST_MB)
    return figures, bars


if __name__ == "__main__":
    sys.exit(main())
