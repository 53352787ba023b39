"""Images per second of a recipe on this machine, from a few steps with random films."""

import statistics
import time

import torch
from transformers import BertConfig

from medclip_dcl.config import Config
from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.model.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.training.contrast import Contrast
from medclip_dcl.training.economy import economise
from medclip_dcl.training.optimizer import build_optimizer
from medclip_dcl.training.pairs import PairBatch
from medclip_dcl.training.run import start_accelerator
from medclip_dcl.training.step import TrainStep

_PIECES = 32
"""Word pieces of a sentence here: what the longest of a batch of report sentences has."""
_FIRST_PAIRS = 4
"""Pairs in the first step on a CPU, where more of them tell no more once a step is slow."""
_PART = 8  # share of the time that a step may take before it is called slow
_MOST_STEPS = 20


def measure_pace(config: Config, text: BertConfig, seconds: float) -> tuple[float, int]:
    """Time some steps of one process.

    Args:
        config: the recipe.
        text: sizes of the text encoder.
        seconds: when to stop, roughly; two steps are done at least.

    Returns:
        Images per second of one process by wall time, a median, and the pairs in a timed
        step: a process's share of the batch, fewer where a step is slow. The paper's loss
        stands in for the recipe's, which costs no more than a hundredth of the step.

    Raises:
        ConfigError: several processes were started.
    """
    share = max(2, config.train.global_batch // config.train.processes)
    alone = {"global_batch": share, "processes": 1, "compile_backend": "none"}
    step = _step_of(config, text, config.train.model_copy(update=alone))
    pairs = share if torch.accelerator.is_available() else min(_FIRST_PAIRS, share)
    while True:
        batch = _random_batch(config, text, pairs)
        _timed(step, batch)
        took = _timed(step, batch)
        if pairs == share or took > seconds / _PART:
            break
        pairs = min(share, 4 * pairs)
    times = [took]
    while len(times) < _MOST_STEPS and sum(times) < seconds:
        times.append(_timed(step, batch))
    return pairs / statistics.median(times), pairs


def _timed(step: TrainStep[DualEncoder, PairBatch], batch: PairBatch) -> float:
    begun = time.perf_counter()
    step(batch, False)
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter() - begun


def _step_of(
    config: Config, text: BertConfig, settings: TrainConfig
) -> TrainStep[DualEncoder, PairBatch]:
    accelerator = start_accelerator(settings)
    encoder = build_dual_encoder(config.model, text, config.seed)
    economise(encoder, settings)
    encoder.to(accelerator.device).train()
    contrast = Contrast(ObjectiveConfig(directions=config.objective.directions), 0, encoder)
    optimizer = build_optimizer(encoder, settings)
    return TrainStep(accelerator, encoder, contrast, optimizer, settings, config.seed)


def _random_batch(config: Config, text: BertConfig, pairs: int) -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    px, width = config.model.image.input_px, min(_PIECES, text.max_position_embeddings)
    ones = torch.ones(pairs)
    ids = torch.randint(text.vocab_size, (pairs, width), generator=generator)
    return PairBatch(
        step=0,
        mine=slice(0, pairs),
        study_ids=tuple(map(str, range(pairs))),
        crops=torch.randint(256, (pairs, 1, px, px), generator=generator, dtype=torch.uint8),
        brightness=ones,
        contrast=ones,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        eta=0.05 * ones,
        sentence_codes=None,
        report_codes=None,
        labels=None,
    )
