"""The training loop against its own bare step, and the step in bfloat16.

    python -m benchmarks.train [--quick]

Loop and bare step take turns in one process with one thread: ResNet-18 and a small BERT,
512 px images, 480 px crops. The loop reads, augments, steps and writes a line of the log every
step; the bare step has its tensors in memory. Both ratios have a bar: images/s by wall time, which
asks for a machine that does nothing else, and by CPU time, all threads counted, which does not.
The bare step of ResNet-18 and BERT-base is timed in float32 and in bfloat16.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW
from transformers import BertConfig

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, interleaved
from medclip_dcl.core.artifact import open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.text_encoder import read_bert_config, read_bert_tokenizer
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.corpus import TokenTable
from medclip_dcl.training.dataset import ImageTextBatch, ImageTextDataset, jitter
from medclip_dcl.training.launch import start_accelerator
from medclip_dcl.training.logging import MetricsLog, TrainLogger
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.step import CLIP_NORM
from medclip_dcl.training.supervision import read_supervision
from medclip_dcl.training.trainer import Trainer
from pipelines.config import Config
from tests.support.corpus import read_tiny_corpus, write_corpus

PREPARED_PX, INPUT_PX = 512, 480
BARS = {
    "loop_ratio": ">= 0.95",
    "loop_wall_ratio": ">= 0.95",
    "bf16_over_float32": ">= 1.8",
}


class Tier(NamedTuple):
    """How much is measured."""

    studies: int
    batch: int
    rounds: int
    steps: int


QUICK = Tier(120, 4, 1, 2)
FULL = Tier(320, 8, 3, 3)
_REPEATS = 8  # sentences of 5 to some 60 word pieces: the padded batch differs from step to step


@dataclass(frozen=True)
class TrainFixture:
    """What a training run needs, before its first step."""

    config: Config
    dataset: ImageTextDataset
    text: BertConfig
    """Sizes of the text encoder."""

    def encoder(self) -> DualEncoder:
        """Build the model, random weights."""
        return build_dual_encoder(self.config.model, self.text, self.config.seed)


Clock = tuple[float, float]


def now() -> Clock:
    """Return CPU seconds of this process, all threads, and wall seconds."""
    return time.process_time(), time.perf_counter()


class Watched(ContrastiveObjective):
    """An objective that notes the time whenever a step asks for its loss."""

    def __init__(self, fixture: TrainFixture) -> None:
        super().__init__(fixture.config.objective, fixture.config.seed)
        self.marks: list[Clock] = []

    def compute_loss(
        self, network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Note the time, then compute the loss."""
        self.marks.append(now())
        return super().compute_loss(network, encoder, batch)


def make_fixture(
    work: Path, batch: int, input_px: int, text: BertConfig | None = None
) -> TrainFixture:
    """Put the trainer's parts together: ResNet-18, defaults, one thread, a line of the log a step.

    `work` is of `tests.support.corpus.write_corpus`. Without sizes of a text encoder it is
    the corpus's own language model.
    """
    config = Config.model_validate(
        {
            "work": str(work),
            "model": {"image": {"input_px": input_px}},
            "train": {"global_batch": batch},
        }
    )
    corpus = read_tiny_corpus(work)
    folder = masked_lm.ARTIFACT.at(work)
    texts = [" ".join([said] * (1 + at % _REPEATS)) for at, said in enumerate(corpus.texts)]
    reported = read_supervision(
        config.objective,
        corpus,
        open_artifact(manifest.ARTIFACT.at(work), manifest.ARTIFACT),
        None,
    )
    dataset = ImageTextDataset(
        corpus=corpus,
        supervision=reported,
        prepared=PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT)),
        tokens=TokenTable(read_bert_tokenizer(folder), texts, 32 if text is None else 128),
        sampler=ImageTextSampler(corpus.images, corpus.sentences, batch, config.seed, False),
        input_px=input_px,
        seed=config.seed,
        mine=slice(0, batch),
    )
    return TrainFixture(config, dataset, text or read_bert_config(folder))


def run_loop(fixture: TrainFixture, folder: Path, steps: int) -> list[Clock]:
    """Train by the trainer's own loop into an empty folder; when each step asked for its loss."""
    config = fixture.config.model_copy(
        update={"train": fixture.config.train.model_copy(update={"steps": steps})}
    )
    encoder = fixture.encoder()
    watched = Watched(fixture)
    accelerator: Accelerator = start_accelerator(config.train, workers=1)
    folder.mkdir()
    store = CheckpointStore(folder, {"steps": steps}, steps)
    trainer = Trainer(accelerator, encoder, watched, store, config.train, config.seed)
    with MetricsLog(folder, 0) as log:
        logger = TrainLogger(
            accelerator, encoder, trainer.optimizer, config.train, log, 0, lambda **_facts: None
        )
        trainer.run(fixture.dataset.batch, logger)
    return watched.marks


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
        with redirect_stderr(StringIO()):  # the progress of the loop
            marks = run_loop(scene, folder / str(turn), steps + 2)
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


def _spent(begun: Clock, ended: Clock) -> Clock:
    return ended[0] - begun[0], ended[1] - begun[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 0, whether or not a bar is met."""
    tier = QUICK if is_quick(argv) else FULL
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        figures = _measure(tier, Path(name))
    return finish("train", figures, judge(figures, BARS))


def _measure(tier: Tier, folder: Path) -> dict[str, float]:
    work = write_corpus(folder / "images", tier.studies, PREPARED_PX)
    loop = make_fixture(work, tier.batch, INPUT_PX)
    figures = compare(loop, folder, tier.rounds, tier.steps)
    paper = make_fixture(work, tier.batch, INPUT_PX, BertConfig())
    return figures | reduced(paper, 2 * tier.rounds + 1)


if __name__ == "__main__":
    sys.exit(main())
