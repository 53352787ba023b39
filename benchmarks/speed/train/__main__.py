"""The training loop against its own bare step; the loader alone; memory over many steps.

    python -m benchmarks.train [--quick]

Loop and bare step take turns in one process with one thread: ResNet-18 and a small BERT,
512 px images, 480 px crops. The loop reads, augments, steps and writes a line of the log every
step; the bare step has its tensors in memory. Both ratios have a bar: images/s by wall time, which
asks for a machine that does nothing else, and by CPU time, all threads counted, which does not.
The bare step of ResNet-18 and BERT-base is timed in float32 and in bfloat16. Memory is that of
both at batch 4.

`make bench-compare` holds it against another commit's.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import BertConfig

from benchmarks.fixtures.corpus import write_corpus
from benchmarks.record import finish, judge
from benchmarks.speed.train import steps
from benchmarks.speed.train.fixtures import make_fixture

PREPARED_PX, INPUT_PX = 512, 480
SMALL_PX = 128, 120
"""Images of the memory run: what could grow does not depend on their size."""
BARS = {
    "loop_ratio": ">= 0.95",
    "loop_wall_ratio": ">= 0.95",
    "loader_images_per_core_s": ">= 400",
    "bf16_over_float32": ">= 1.8",
    "memory_mb_per_step": "<= 1",
}


class Tier(NamedTuple):
    """How much is measured."""

    studies: int
    batch: int
    rounds: int
    steps: int
    loaded: int
    """Batches of the loader alone."""
    memory_steps: int


QUICK = Tier(120, 4, 1, 2, 20, 24)
FULL = Tier(320, 8, 3, 3, 60, 60)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds")
    tier = QUICK if parser.parse_args(argv).quick else FULL
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        figures = _measure(tier, Path(name))
    return finish("train", figures, judge(figures, BARS))


def _measure(tier: Tier, folder: Path) -> dict[str, float]:
    work = write_corpus(folder / "images", tier.studies, PREPARED_PX)
    figures = steps.loader_alone(make_fixture(work, 64, INPUT_PX), tier.loaded)
    loop = make_fixture(work, tier.batch, INPUT_PX)
    figures |= steps.compare(loop, folder, tier.rounds, tier.steps)
    paper = make_fixture(work, tier.batch, INPUT_PX, BertConfig())
    figures |= steps.reduced(paper, 2 * tier.rounds + 1)
    prepared_px, input_px = SMALL_PX
    work = write_corpus(folder / "small", tier.studies, prepared_px)
    base = make_fixture(work, 4, input_px, BertConfig())
    return figures | steps.memory(base, folder / "memory", tier.memory_steps)


if __name__ == "__main__":
    sys.exit(main())
