"""Training loop: model, data and loss of a `TrainSetup` -> a trained model.

`train` runs a setup; `Trainer` repeats `TrainStep`, logs, validates, saves and stops;
`ContrastiveObjective` in `objective.py` says what the loss of a batch is.

A run stops in good order: it finishes the step, saves and leaves. `accelerate launch` starts the
trainer as a child and, when it is asked to stop, ends without passing the signal on. On Linux
the kernel then sends SIGHUP instead. One request may arrive several times: from the process group,
from the launcher and from the kernel. Only a second Ctrl-C, later, means to stop at once.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.errors import ArtifactStale, CheckpointError, TrainingError
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.models.lora import merged
from medclip_dcl.models.settings import ModelConfig
from medclip_dcl.progress import Progress
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.dataset import ImageTextBatch, prefetch
from medclip_dcl.training.logging import MetricsLog, TrainLogger, TrainState, open_trackers
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import (
    learning_norms,
    load_optimizer_tensors,
    optimizer_tensors,
)
from medclip_dcl.training.settings import TrainConfig, lower_is_better
from medclip_dcl.training.setup import TrainSetup
from medclip_dcl.training.step import CLIP_NORM, StepReport, TrainStep
from medclip_dcl.training.stop_request import StopRequest
from medclip_dcl.training.validation import ValidationMetrics, evaluating, validation_loss

_MOST_SKIPPED = 10  # steps in a row without a finite loss or gradient, after which a run gives up
_IDS_SHOWN = 8
_COUNTERS = ("skipped", "in_a_row", "clipped", "best_step", "best_value", "launches")


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
        before = state.launches[-1][1] if state.launches else count
        norms = learning_norms(self._encoder, self._settings)
        if before != count and norms and self._accelerator.device.type == "cpu":
            raise ArtifactStale(
                f"the run stopped at step {state.step} with {before} processes, and {count} cannot "
                "go on with it: on CPUs the batch norms of each process see its own pairs alone; "
                f"set train.processes to {before}, or remove the checkpoints to start again"
            )
        self._step.replay_dropout(state.launches[0][1] if state.launches else count)
        if before != count or not state.launches:
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
        sign = -1 if lower_is_better(name) else 1
        if state.best_value is None or sign * value > sign * state.best_value:
            state.best_step, state.best_value = state.step, value
