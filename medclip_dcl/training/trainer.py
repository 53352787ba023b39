"""Images, sentences and eta -> a trained model: one step, the loop around it, and the run.

`set_up` builds model, data and loss, and `train` runs them; `Trainer` repeats `TrainStep`, logs,
validates, saves and stops; `ContrastiveObjective` in `objective.py` says what the loss of a batch
is.

A run stops in good order: it finishes the step, saves and leaves. `accelerate launch` starts the
trainer as a child and, when it is asked to stop, ends without passing the signal on. On Linux
the kernel then sends SIGHUP instead. One request may arrive several times: from the process group,
from the launcher and from the kernel. Only a second Ctrl-C, later, means to stop at once.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.artifact import Artifact
from medclip_dcl.data.ground_truth import Truth
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ArtifactStale, CheckpointError, ConfigError, TrainingError
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.likelihood.eta import EtaCache
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.lora import add_adapters, merged
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.models.towers import Start, read_start
from medclip_dcl.progress import Progress
from medclip_dcl.rng import RngStream, seed_for
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.dataset import (
    Corpus,
    ImageTextBatch,
    ImageTextDataset,
    SplitFeatures,
    TokenTable,
    prefetch,
    read_corpus,
    read_supervision,
)
from medclip_dcl.training.feature_cache import ARTIFACT as FEATURES
from medclip_dcl.training.feature_cache import cache_features
from medclip_dcl.training.logging import (
    MetricsLog,
    TrainLogger,
    TrainState,
    open_trackers,
)
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import (
    load_optimizer_tensors,
    optimizer_tensors,
)
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import TrainConfig
from medclip_dcl.training.step import CLIP_NORM, StepReport, TrainStep
from medclip_dcl.training.stop_request import StopRequest
from medclip_dcl.training.text_similarity import TextSpace, closest_threshold
from medclip_dcl.training.validation import (
    MOST_BATCHES,
    ValidationMetrics,
    evaluating,
    validation_batch,
    validation_loss,
)

_MOST_SKIPPED = 10  # steps in a row without a finite loss or gradient, after which a run gives up
_IDS_SHOWN = 8
_LEAST_RANDOM_RATE = 1e-4
_COUNTERS = ("skipped", "in_a_row", "clipped", "best_step", "best_value", "launches")


@dataclass(frozen=True)
class TrainInputs:
    """Inputs of a run."""

    manifest: Artifact
    prepared: Artifact
    sentences: Artifact
    eta_cache: Artifact
    claims: Artifact | None
    """None where neither the objective nor the choice of the best step reads claims."""
    text_folder: Path
    """Folder of the language model that the text encoder starts from, or of the whole model."""
    truth: Truth | None
    """What a generated source knows; None for any other."""
    image_weights: Path | None
    """Weights that the image encoder starts from; None: random."""
    findings: tuple[Finding, ...]
    """Prompts that the model is published with, and validated by."""
    text_checkpoint: Path | None = None
    """Folder of the pretrained weights that the text encoder comes from, where texts are compared;
    None: there are none."""
    similar_table: Path | None = None
    """Vectors by which texts are compared; None: an encoder's."""


@dataclass(frozen=True)
class TrainResult:
    """A run whose steps are all done, or that was stopped."""

    finished: bool
    state: TrainState
    figures: dict[str, float | None]
    """The last line of the metrics log."""
    weights: dict[str, Tensor]
    """Parameters and buffers of the model to publish."""
    published_step: int
    """Steps that it has done: all, or those of the best checkpoint."""
    grid: tuple[int, int]
    """Rows and columns of regions of one image."""
    corpus: Corpus
    model: ModelConfig
    """Settings of the model, with what the folders that it started from say of themselves."""
    text_config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainSetup:
    """Model, data and loss of a run, before its first step."""

    config: TrainingConfig
    """The config, with what the folders that the model starts from say of themselves."""
    start: Start
    encoder: DualEncoder
    prepared: PreparedImages
    corpus: Corpus
    """The training split."""
    dataset: ImageTextDataset
    sampler: ImageTextSampler
    objective: ContrastiveObjective
    validation: Sequence[ImageTextBatch]
    """Batches of the validation split; none where the run does not validate."""
    metrics: ValidationMetrics | None


def set_up(
    config: TrainingConfig,
    inputs: TrainInputs,
    accelerator: Accelerator,
    folder: Path,
    say: Callable[..., None],
) -> TrainSetup:
    """Build model, data and loss; `folder` receives cached features where the config asks for them.

    Raises:
        MedclipError: an input is missing, stale or does not fit.
    """
    begun = _read_start(config.model, inputs)
    config = config.model_copy(update={"model": begun.settings})
    encoder = _build_encoder(config, begun, accelerator, say)
    space = None
    if config.objective.compares_texts:
        table, checkpoint = inputs.similar_table, inputs.text_checkpoint
        device = accelerator.device
        space = TextSpace(config.objective, encoder.text, checkpoint, table, device)
    data = _Data(config, inputs, begun.tokenizer, accelerator, space)
    data = _with_features(data, encoder, folder, say)
    corpus, dataset, sampler = data.split("train")
    validation, metrics = data.validation()
    if validation and (pairs := len(validation[0].eta)) < config.train.global_batch:
        say(
            warning=f"the validation split has fewer studies than train.global_batch: its losses "
            f"are of batches of {pairs}, with {pairs - 1} negatives in place of "
            f"{config.train.global_batch - 1}"
        )
    threshold = 1.0
    if space is not None:
        say(texts_compared_by=space.name)
    if config.objective.negatives == "remove_similar":
        vectors, share = dataset.supervision.text_vectors, config.objective.remove_share
        assert vectors is not None
        threshold = closest_threshold(vectors, corpus, sampler, share)
        say(closest_share=share, above_cosine=round(threshold, 4))
    return TrainSetup(
        config=config,
        start=begun,
        encoder=encoder,
        prepared=data.prepared,
        corpus=corpus,
        dataset=dataset,
        sampler=sampler,
        objective=ContrastiveObjective(config.objective, config.seed, threshold),
        validation=validation,
        metrics=metrics,
    )


def train(
    setup: TrainSetup,
    accelerator: Accelerator,
    store: CheckpointStore,
    folder: Path,
    say: Callable[..., None],
) -> TrainResult:
    """Train a model, or continue a run that was stopped.

    `folder`, that of the checkpoints, receives the metrics log; `say` prints facts. Where the run
    comes back unfinished, a checkpoint is on disk.

    Raises:
        MedclipError: training cannot continue.
    """
    config, encoder, corpus, sampler = setup.config, setup.encoder, setup.corpus, setup.sampler
    settings = config.train.counted(sampler.steps_per_epoch)
    trainer = Trainer(accelerator, encoder, setup.objective, store, settings, config.seed)
    start = trainer.state.step
    say(
        studies=len(corpus.study_ids),
        texts=len(corpus.texts),
        steps=settings.total_steps,
        epochs=round(settings.total_steps / sampler.steps_per_epoch, 1),
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        from_step=start,
        passed_over=list(trainer.passed_over),
        **({"resumed_with": found} if (found := trainer.state.resumed_with) else {}),
    )
    open_trackers(accelerator, config, start)
    with MetricsLog(folder, start) if accelerator.is_main_process else nullcontext() as log:
        logger = TrainLogger(accelerator, encoder, trainer.optimizer, settings, log, start, say)
        finished = trainer.run(setup.dataset.batch, logger, setup.validation, setup.metrics)
    step, weights = trainer.published()
    side = encoder.image.grid(config.model.image.input_px)
    return TrainResult(
        finished=finished,
        state=trainer.state,
        figures=logger.latest,
        weights=merged(weights),
        published_step=step,
        grid=(side, side),
        corpus=corpus,
        model=config.model,
        text_config=setup.start.text_config,
        tokenizer=setup.start.tokenizer,
    )


def _read_start(model: ModelConfig, inputs: TrainInputs) -> Start:
    is_whole = bool(model.pretrained)
    return read_start(model, inputs.image_weights, inputs.text_folder, whole=is_whole)


def slow_start(model: ModelConfig, settings: TrainConfig) -> str:
    """Warn of an image encoder that learns from random weights at a low rate; empty: it does not.

    AdamW moves a weight by about the learning rate a step, whatever the gradient: at 1e-5, 10,000
    steps in one direction make 0.1.
    """
    rate = settings.image_learning_rate or settings.learning_rate
    is_frozen = settings.steps is not None and settings.image_frozen_steps >= settings.steps
    is_frozen |= settings.cache_features
    if model.pretrained or model.image.pretrained or is_frozen or rate >= _LEAST_RANDOM_RATE:
        return ""
    return (
        f"the image encoder starts from random weights and learns at {rate:g}, too little to leave "
        "its start; set model.image.pretrained to weights such as ImageNet's, or "
        f"train.image_learning_rate to {_LEAST_RANDOM_RATE:g} or more"
    )


def _build_encoder(
    config: TrainingConfig,
    begun: Start,
    accelerator: Accelerator,
    say: Callable[..., None],
) -> DualEncoder:
    encoder = build_dual_encoder(config.model, begun.text_config, config.seed)
    if config.objective.kind == "sigmoid":
        encoder.add_bias(-math.log(config.train.global_batch - 1))
    if warning := slow_start(config.model, config.train):
        say(warning=warning)
    for part, report in begun.fill(encoder).items():
        say(weights=part, layout=report.layout, **report.counts)
    if config.model.lora.rank:
        layers = add_adapters(encoder, config.model.lora, config.seed)
        say(lora_rank=config.model.lora.rank, lora_layers=layers)
    if accelerator.num_processes > 1 and accelerator.device.type == "cuda":
        # One process sees the statistics of the whole batch; so do many.
        encoder.image = nn.SyncBatchNorm.convert_sync_batchnorm(encoder.image)  # type: ignore[no-untyped-call]
    return encoder


def _with_features(
    data: "_Data", encoder: DualEncoder, work: Path, say: Callable[..., None]
) -> "_Data":
    if not data.config.train.cache_features:
        return data
    if data.config.model.lora.rank:
        raise ConfigError(
            "train.cache_features leaves both encoders as they are, and adapters would change "
            "them; set model.lora.rank to 0"
        )
    if data.accelerator.is_main_process:
        names = ["train", "validate"] if data.config.train.validate_every_steps else ["train"]
        inputs = {
            name: getattr(data.inputs, name) for name in ("manifest", "prepared", "sentences")
        }
        splits = {name: data.corpus(name) for name in names}
        artifact = cache_features(
            work, encoder, data.config.model, data.prepared, inputs, splits, data.accelerator.device
        )
        say(features=artifact.summary, seconds=artifact.origin["seconds"])
    data.accelerator.wait_for_everyone()
    return replace(data, features=FEATURES.at(work))


@dataclass(frozen=True)
class _Data:
    """Data of a run, split by split."""

    config: TrainingConfig
    inputs: TrainInputs
    tokenizer: PreTrainedTokenizerBase
    accelerator: Accelerator
    space: TextSpace | None
    features: Path | None = None
    """Folder of the features of frozen encoders."""

    @cached_property
    def prepared(self) -> PreparedImages:
        return PreparedImages(self.inputs.prepared)

    @cached_property
    def _eta(self) -> EtaCache:
        return EtaCache(self.inputs.eta_cache)

    def corpus(self, split: str) -> tuple[Corpus, TokenTable]:
        inputs = self.inputs
        corpus = read_corpus(inputs.manifest, self.prepared, inputs.sentences, self._eta, split)
        return corpus, TokenTable(self.tokenizer, corpus.texts, self.config.model.text.max_tokens)

    def split(self, split: str) -> tuple[Corpus, ImageTextDataset, ImageTextSampler]:
        config, inputs, settings = self.config, self.inputs, self.config.train
        corpus, tokens = self.corpus(split)
        trains = split == "train"
        # Validation batches are drawn once, from a seed of their own, and not augmented.
        seed = config.seed if trains else seed_for(config.seed, RngStream.VALIDATION) % 2**31
        studies = len(corpus.study_ids)
        size = settings.global_batch if trains else validation_batch(studies, settings)
        sampler = ImageTextSampler(
            corpus.images,
            corpus.sentences,
            size,
            seed,
            settings.shuffle_reports and trains,
        )
        local = size // settings.processes
        start = self.accelerator.process_index * local
        supervision = read_supervision(
            config.objective, corpus, inputs.manifest, inputs.claims, inputs.truth
        )
        if self.space is not None:
            encode = self.space.fit if trains else self.space.vectors
            supervision = replace(supervision, text_vectors=encode(corpus, tokens))
        dataset = ImageTextDataset(
            corpus=corpus,
            supervision=supervision,
            prepared=self.prepared,
            tokens=tokens,
            sampler=sampler,
            input_px=config.model.image.input_px,
            seed=config.seed if trains else None,
            mine=slice(start, start + local),
            features=None if self.features is None else SplitFeatures(self.features, split),
        )
        return corpus, dataset, sampler

    def validation(self) -> tuple[list[ImageTextBatch], ValidationMetrics | None]:
        settings = self.config.train
        if not settings.validate_every_steps:
            return [], None
        corpus, dataset, sampler = self.split("validate")
        count = min(MOST_BATCHES, sampler.steps_per_epoch)
        batches = [dataset.batch(step) for step in range(count)]
        if not settings.validate_images or not self.accelerator.is_main_process:
            return batches, None
        return batches, ValidationMetrics(
            self.config,
            corpus,
            self.inputs.manifest,
            self.inputs.claims,
            self.prepared,
            self.inputs.findings,
            partial(TokenTable, self.tokenizer, max_tokens=self.config.model.text.max_tokens),
        )


class Trainer:
    """One process's part in a training run; the model is handed in before its first step.

    It goes on from the newest whole checkpoint; `passed_over` names damaged ones.

    Raises:
        ArtifactStale: an unfinished run of another fingerprint is in the store, or one whose
            number of processes cannot change.
        CheckpointError: the newest checkpoint does not fit the model.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        encoder: DualEncoder,
        objective: ContrastiveObjective,
        store: CheckpointStore,
        settings: TrainConfig,
        seed: int,
    ) -> None:
        self._accelerator, self._settings, self._store = accelerator, settings, store
        self._encoder, self._objective = encoder, objective
        store.steps = settings.total_steps
        self._step = TrainStep(accelerator, encoder, objective, settings, seed)
        self.optimizer = self._step.optimizer
        self.state = TrainState()
        self.passed_over = self._resume()

    def run(
        self,
        batch: Callable[[int], ImageTextBatch],
        logger: TrainLogger,
        validation: Sequence[ImageTextBatch] = (),
        metrics: ValidationMetrics | None = None,
    ) -> bool:
        """Train until the last step, or until asked to stop; a checkpoint is then on disk.

        `batch` makes the batch of any step, on another thread. Returns whether every step is done.

        Raises:
            TrainingError: too many steps in a row met a number that is not finite, or
                a checkpoint cannot be written.
        """
        settings, state = self._settings, self.state
        batches = prefetch(batch, state.step, settings.total_steps)
        bar = Progress("train", settings.total_steps, "step", done=state.step)
        with StopRequest() as request, closing(batches), bar as progress:
            for item in batches:
                report = self._step(item, request.requested)
                self._count(item, report)
                progress.advance(1, **logger.note(state, report.output, report.norm))
                validated = bool(validation) and state.step % settings.validate_every_steps == 0
                if validated:
                    figures = self._validate(validation, metrics)
                    logger.note_validation(state.step, figures)
                last = report.stop or state.step == settings.total_steps
                judged = validated and bool(settings.best_metric)
                if last or judged or state.step % settings.save_every_steps == 0:
                    # The checkpoint claims the steps of the log, which must be on disk before it.
                    logger.sync()
                    self._save()
                if last:
                    break
        return state.step == settings.total_steps

    def published(self) -> tuple[int, dict[str, Tensor]]:
        """Give steps done and weights to publish: the best by the metric, else the last.

        Raises:
            CheckpointError: the best checkpoint is gone or damaged.
        """
        best = self.state.best_step
        if not best or best == self.state.step or not self._accelerator.is_main_process:
            return self.state.step, self._encoder.state_dict()
        weights = self._store.weights(best)
        if weights is None:
            raise CheckpointError(
                f"the best checkpoint, of step {best}, is gone or damaged; remove the checkpoints "
                "and train again, or set train.best_metric to nothing"
            )
        return best, weights

    def _resume(self) -> tuple[str, ...]:
        snapshot, damaged = self._store.find()
        # From different steps the processes would train on different batches without a word.
        step = snapshot.step if snapshot is not None else 0
        steps = self._accelerator.gather(torch.tensor([step], device=self._accelerator.device))
        if int(steps.min()) != int(steps.max()):
            raise TrainingError(
                "the processes find different checkpoints; `work` must be one folder for all"
            )
        if snapshot is not None:
            self._load(snapshot)
        self._note_launch()
        return damaged

    def _note_launch(self) -> None:
        state, count = self.state, self._accelerator.num_processes
        before = state.launches[-1][1] if state.launches else None
        if before == count:
            return
        settings = self._settings
        learns = not (settings.freeze_batchnorm or settings.cache_features)
        learns &= settings.image_frozen_steps < settings.total_steps
        norms = [
            item
            for item in self._encoder.modules()
            if isinstance(item, nn.modules.batchnorm._BatchNorm)
        ]
        if before and norms and learns and self._accelerator.device.type == "cpu":
            raise ArtifactStale(
                f"the run stopped at step {state.step} with {before} processes, and {count} cannot "
                "go on with it: on CPUs the batch norms of each process see its own pairs alone; "
                f"set train.processes to {before}, or remove the checkpoints to start again"
            )
        state.launches.append((state.step, count))

    def _load(self, snapshot: Snapshot) -> None:
        try:
            self._encoder.load_state_dict(dict(snapshot.weights))
        except RuntimeError as error:
            raise CheckpointError(
                f"checkpoint of step {snapshot.step} does not fit the model; remove it"
            ) from error
        load_optimizer_tensors(self.optimizer, self._encoder, snapshot.optimizer)
        state = dict(snapshot.state)
        if self._accelerator.scaler is not None:
            self._accelerator.scaler.load_state_dict(state["scaler"])
        self.state = TrainState(
            snapshot.step, **{name: state[name] for name in _COUNTERS if name in state}
        )

    def _save(self) -> None:
        if self._accelerator.is_main_process:
            scaler, train_state = self._accelerator.scaler, self.state
            state = {name: getattr(train_state, name) for name in _COUNTERS}
            state["scaler"] = None if scaler is None else scaler.state_dict()
            moments = optimizer_tensors(self.optimizer, self._encoder)
            snapshot = Snapshot(train_state.step, self._encoder.state_dict(), moments, state)
            self._store.save(snapshot, train_state.best_step)
        self._accelerator.wait_for_everyone()

    def _count(self, batch: ImageTextBatch, report: StepReport) -> None:
        state = self.state
        state.step = batch.step + 1
        if report.updated:
            state.in_a_row = 0
            state.clipped += report.norm > CLIP_NORM
            return
        state.skipped += 1
        state.in_a_row += 1
        if state.in_a_row >= _MOST_SKIPPED:
            ids = ", ".join(batch.study_ids[:_IDS_SHOWN])
            raise TrainingError(
                f"{state.in_a_row} steps in a row up to step {state.step} had a loss or gradient "
                f"that is not finite; the last batch: {ids}, ...; lower "
                "train.learning_rate, or look at these"
            )

    def _validate(
        self, batches: Sequence[ImageTextBatch], metrics: ValidationMetrics | None
    ) -> dict[str, float | None]:
        accelerator, encoder = self._accelerator, self._encoder
        figures: dict[str, float | None] = {}
        figures |= validation_loss(accelerator, encoder, self._objective, batches)
        if metrics is not None and accelerator.is_main_process:
            with evaluating(encoder), accelerator.autocast():
                figures |= metrics(encoder, accelerator.device)
        self._judge(figures)
        return figures

    def _judge(self, figures: dict[str, float | None]) -> None:
        # The best step so far; the main process alone knows every figure, and saves.
        name, state = self._settings.best_metric, self.state
        value = figures.get(name)
        if value is None or not math.isfinite(value):
            return
        sign = -1 if name.endswith("loss") else 1
        if state.best_value is None or sign * value > sign * state.best_value:
            state.best_step, state.best_value = state.step, value
