"""Films, sentences and eta -> a trained model; and the frame of every training run."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from transformers import BertConfig, PreTrainedTokenizerBase

from medclip_dcl.artifacts.checkpoint import CheckpointStore
from medclip_dcl.artifacts.eta_cache import EtaCache
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.config import Config
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.cores import available_cores
from medclip_dcl.errors import ConfigError
from medclip_dcl.likelihood.language_model import load_language_model
from medclip_dcl.model.dual_encoder import DualEncoder, build_dual_encoder, load_text_weights
from medclip_dcl.model.image_encoder import load_image_weights
from medclip_dcl.model.weights import LoadReport
from medclip_dcl.studies.truth import Truth
from medclip_dcl.tasks.prompts import read_prompts
from medclip_dcl.training.checkup import Checkup, make_checkup
from medclip_dcl.training.contrast import Contrast
from medclip_dcl.training.corpus import Corpus, read_corpus
from medclip_dcl.training.draws import Stream, seed_for
from medclip_dcl.training.evidence import read_evidence
from medclip_dcl.training.journal import Journal
from medclip_dcl.training.lesson import BatchT, Course, Ending, Model
from medclip_dcl.training.loop import Loop
from medclip_dcl.training.metrics_log import MetricsLog
from medclip_dcl.training.pairs import PairBatch, Pairs, TokenTable
from medclip_dcl.training.sampler import PairSampler
from medclip_dcl.training.trackers import open_trackers, tracker_options


@dataclass(frozen=True)
class Inputs:
    """What a run is made from."""

    manifest: Artifact
    prepared: Artifact
    sentences: Artifact
    eta_cache: Artifact
    claims: Artifact | None
    """None where the objective reads no claims."""
    text_folder: Path
    """Folder of the language model that the text encoder starts from."""
    truth: Truth | None
    """What a generated source knows; None for any other."""
    image_weights: Path | None
    """Weights that the image encoder starts from; None: random."""


@dataclass(frozen=True)
class Trained:
    """A run of the image-text model that was ended."""

    ending: Ending
    """How the run ended."""
    grid: tuple[int, int]
    """Rows and columns of regions of one film."""
    corpus: Corpus
    """Training studies."""
    text_config: BertConfig
    tokenizer: PreTrainedTokenizerBase


def start_accelerator(settings: TrainConfig, work: Path | None = None) -> Accelerator:
    """Join the processes of the run.

    Args:
        settings: the training loop.
        work: the recipe's folder, for trackers that keep files; None: nothing is tracked.

    Returns:
        Device, processes and precision.

    Raises:
        ConfigError: there are more or fewer processes than the recipe expects, or a tracker
            is not installed.
    """
    accelerator = Accelerator(
        mixed_precision=settings.precision,
        cpu=not torch.accelerator.is_available(),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        **tracker_options(settings, work),
    )
    if accelerator.num_processes != settings.processes:
        raise ConfigError(
            f"train.processes is {settings.processes}, this run has {accelerator.num_processes}; "
            f"start it with torchrun --nproc-per-node {settings.processes} -m pipelines.train (on "
            "CPUs `accelerate launch` starts one process whatever it is asked)"
        )
    share = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(settings.torch_threads or max(1, share))
    return accelerator


def train(
    config: Config,
    inputs: Inputs,
    accelerator: Accelerator,
    store: CheckpointStore,
    folder: Path,
    say: Callable[..., None],
) -> Trained:
    """Train a model, or go on where a stopped run left off.

    Args:
        config: the configuration.
        inputs: what it is made from.
        accelerator: from `start_accelerator`.
        store: checkpoints of this run.
        folder: their folder; it receives the metrics log.
        say: prints facts, as names and plain values.

    Returns:
        The run's end. Where it is not finished, a checkpoint is on disk.

    Raises:
        MedclipError: an input is missing, stale or does not fit, or training cannot go on.
    """
    language_model = load_language_model(inputs.text_folder)
    text_config, tokenizer = language_model.model.config, language_model.tokenizer
    encoder = _start(config, inputs, text_config, accelerator, say)
    prepared, eta = PreparedImages(inputs.prepared), EtaCache(inputs.eta_cache)

    def pairs_of(split: str) -> tuple[Corpus, Pairs, PairSampler]:
        corpus = read_corpus(inputs.manifest, prepared, inputs.sentences, eta, split)
        return corpus, *_pairs(config, inputs, prepared, tokenizer, corpus, split, accelerator)

    corpus, pairs, sampler = pairs_of("train")
    validation: list[PairBatch] = []
    checkup: Checkup | None = None
    if config.train.validate_every_steps:
        seen, held_out, turns = pairs_of("validate")
        count = min(config.train.validate_batches, turns.steps_per_epoch)
        validation = [held_out.batch(step) for step in range(count)]
        if config.train.validate_films and accelerator.is_main_process:
            checkup = make_checkup(
                config,
                seen,
                inputs.manifest,
                prepared,
                read_prompts(Path(config.evaluate.prompts)),
                partial(TokenTable, tokenizer, max_tokens=config.model.text.max_tokens),
            )
    contrast = Contrast(config.objective, config.seed, encoder)
    facts = {"studies": len(corpus.study_ids), "texts": len(corpus.texts)}
    course = Course(
        encoder, contrast, pairs.batch, validation, sampler.steps_per_epoch, facts, checkup
    )
    ending = follow(course, config, accelerator, store, folder, say)
    side = encoder.image.grid(config.model.image.input_px)
    return Trained(ending, (side, side), corpus, text_config, tokenizer)


def follow(
    course: Course[Model, BatchT],
    config: Config,
    accelerator: Accelerator,
    store: CheckpointStore,
    folder: Path,
    say: Callable[..., None],
) -> Ending:
    """Train until the last step, or until asked to stop.

    Args:
        course: model, loss and batches.
        config: the configuration.
        accelerator: device, processes and precision.
        store: checkpoints of this run.
        folder: their folder; it receives the metrics log.
        say: prints facts, as names and plain values.

    Returns:
        The run's end. Where it is not finished, a checkpoint is on disk.

    Raises:
        MedclipError: a checkpoint is stale or does not fit, or training cannot go on.
    """
    loop = Loop(accelerator, course, store, config.train, config.seed)
    say(
        **course.facts,
        epochs=round(config.train.steps / course.steps_per_epoch, 1),
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        from_step=loop.place.step,
        passed_over=list(loop.passed_over),
    )
    start, encoder = loop.place.step, course.encoder
    open_trackers(accelerator, config, start)
    with MetricsLog(folder, start) if accelerator.is_main_process else nullcontext() as log:
        journal = Journal(accelerator, encoder, loop.optimizer, config.train, log, start, say)
        finished = loop.run(journal)
    step, weights = loop.published()
    return Ending(finished, loop.place, journal.latest, weights, step)


def tell_weights(say: Callable[..., None], part: str, report: LoadReport) -> None:
    """Say what became of the weights that a part starts from.

    Args:
        say: prints facts, as names and plain values.
        part: what was filled.
        report: the account of its keys.
    """
    say(weights=part, layout=report.layout, **report.counts)


def _start(
    config: Config,
    inputs: Inputs,
    text_config: BertConfig,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> DualEncoder:
    encoder = build_dual_encoder(config.model, text_config, config.seed)
    tell_weights(say, "text", load_text_weights(encoder, inputs.text_folder))
    if inputs.image_weights is not None:
        tell_weights(say, "image", load_image_weights(encoder.image, inputs.image_weights))
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        # One process sees the statistics of the whole batch; so do many.
        encoder.image = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)  # type: ignore[no-untyped-call]
    return encoder


def _pairs(
    config: Config,
    inputs: Inputs,
    prepared: PreparedImages,
    tokenizer: PreTrainedTokenizerBase,
    corpus: Corpus,
    split: str,
    accelerator: Accelerator,
) -> tuple[Pairs, PairSampler]:
    trains = split == "train"
    settings = config.train
    seed = config.seed if trains else seed_for(config.seed, Stream.VALIDATION) % 2**31
    sampler = PairSampler(
        corpus.films,
        corpus.sentences,
        settings.global_batch,
        seed,
        settings.shuffle_reports and trains,
    )
    local = settings.global_batch // settings.processes
    start = accelerator.process_index * local
    pairs = Pairs(
        corpus=corpus,
        evidence=read_evidence(
            config.objective, corpus, inputs.manifest, inputs.claims, inputs.truth
        ),
        prepared=prepared,
        tokens=TokenTable(tokenizer, corpus.texts, config.model.text.max_tokens),
        sampler=sampler,
        settings=settings,
        input_px=config.model.image.input_px,
        seed=config.seed if trains else None,
        mine=slice(start, start + local),
    )
    return pairs, sampler
