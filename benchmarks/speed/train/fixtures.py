"""A corpus of random images, and the trainer's own parts put together over it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from accelerate import Accelerator
from torch import nn
from transformers import BertConfig

from benchmarks.fixtures.corpus import read_tiny_corpus
from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import Config
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import masked_lm
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.text_encoder import read_bert_config, read_bert_tokenizer
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.dataset import (
    ImageTextBatch,
    ImageTextDataset,
    TokenTable,
    read_supervision,
)
from medclip_dcl.training.logging import MetricsLog, TrainLogger
from medclip_dcl.training.objective import ContrastiveObjective, ObjectiveOutput
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.trainer import Trainer, start_accelerator

Seen = TypeVar("Seen")

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


class Watched(ContrastiveObjective):
    """An objective that calls `look` whenever a step asks for its loss; `seen` has what it gave."""

    def __init__(self, fixture: TrainFixture, look: Callable[[], Seen]) -> None:
        super().__init__(fixture.config.objective, fixture.config.seed)
        self._look = look
        self.seen: list[Seen] = []

    def compute_loss(
        self, network: nn.Module, encoder: DualEncoder, batch: ImageTextBatch
    ) -> ObjectiveOutput:
        """Look, then compute the loss."""
        self.seen.append(self._look())
        return super().compute_loss(network, encoder, batch)


def make_fixture(
    work: Path, batch: int, input_px: int, text: BertConfig | None = None
) -> TrainFixture:
    """Put the trainer's parts together: ResNet-18, defaults, one thread, a line of the log a step.

    `work` is of `benchmarks.fixtures.corpus.write_corpus`. Without sizes of a text encoder it is
    the corpus's own language model.
    """
    config = Config.model_validate(
        {
            "work": str(work),
            "model": {"image": {"input_px": input_px}},
            "train": {"global_batch": batch, "torch_threads": 1, "log_every_steps": 1},
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


def run_loop(
    fixture: TrainFixture, folder: Path, steps: int, look: Callable[[], Seen]
) -> list[Seen]:
    """Train by the trainer's own loop into an empty folder; give what `look` gave at each step."""
    config = fixture.config.model_copy(
        update={"train": fixture.config.train.model_copy(update={"steps": steps})}
    )
    encoder = fixture.encoder()
    watched = Watched(fixture, look)
    accelerator: Accelerator = start_accelerator(config.train)
    folder.mkdir()
    store = CheckpointStore(folder, {"steps": steps}, steps)
    trainer = Trainer(accelerator, encoder, watched, store, config.train, config.seed)
    with MetricsLog(folder, 0) as log:
        logger = TrainLogger(
            accelerator, encoder, trainer.optimizer, config.train, log, 0, lambda **_facts: None
        )
        trainer.run(fixture.dataset.batch, logger)
    return watched.seen
