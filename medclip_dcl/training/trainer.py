"""Training loop: data, model and objective -> a trained model.

`run` trains, or goes on with a run that was stopped; what else happens meanwhile is given to it as
`Hooks`. It repeats `TrainStep`, logs, validates, saves and stops.
A run stops in good order: it finishes the step, saves and leaves.
"""

import math
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor

from medclip_dcl.core.errors import CheckpointError, TrainingError
from medclip_dcl.core.progress import Progress
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.dataset import ImageTextBatch, ImageTextDataset, prefetch
from medclip_dcl.training.launch import StopRequest
from medclip_dcl.training.logging import MetricsLog, TrainLogger, TrainState
from medclip_dcl.training.objective import ContrastiveObjective
from medclip_dcl.training.optim import load_optimizer_tensors, optimizer_tensors
from medclip_dcl.training.sampler import ImageTextSampler
from medclip_dcl.training.settings import TrainConfig, lower_is_better
from medclip_dcl.training.step import CLIP_NORM, StepReport, TrainStep

_MOST_SKIPPED = 10  # steps in a row without a finite loss or gradient, after which a run gives up
_IDS_SHOWN = 8
# Of the state, next to the step: what a resumed run goes on from.
_COUNTERS = ("skipped", "in_a_row", "clipped", "best_step", "best_value", "launches")


class TrainingData(NamedTuple):
    """The training split, its order, and the batch of any step."""

    corpus: Corpus
    dataset: ImageTextDataset
    sampler: ImageTextSampler


Validate = Callable[[Accelerator, DualEncoder, ContrastiveObjective], dict[str, float | None]]


@dataclass(frozen=True)
class Hooks:
    """Callbacks of a run: what happens besides its steps."""

    say: Callable[..., None]  # prints facts
    validate: Validate | None = None
    """Measures the model every `validate_every_steps`; None: nothing does."""
    begin: Callable[[int], None] = lambda _step: None
    """Called with the steps done before the first one of this start."""


@dataclass(frozen=True)
class TrainResult:
    """A run whose steps are all done, or that was stopped."""

    finished: bool
    state: TrainState
    figures: dict[str, float | None]  # the last line of the metrics log
    weights: dict[str, Tensor]  # parameters and buffers of the model to publish
    published_step: int  # steps that it has done: all, or those of the best checkpoint


def run(
    data: TrainingData,
    model: DualEncoder,
    objective: ContrastiveObjective,
    hooks: Hooks,
    *,
    settings: TrainConfig,
    seed: int,
    accelerator: Accelerator,
    store: CheckpointStore,
) -> TrainResult:
    """Train a model, or continue a run that was stopped; the model is that before its first step.

    The folder of the checkpoints receives the metrics log too. Where the run comes back unfinished,
    a checkpoint is on disk.

    Raises:
        MedclipError: training cannot continue.
    """
    settings = settings.counted(data.sampler.steps_per_epoch)  # a pass's steps are known now
    trainer = Trainer(accelerator, model, objective, store, settings, seed)
    start = trainer.state.step
    hooks.say(
        studies=len(data.corpus.study_ids),
        texts=len(data.corpus.texts),
        steps=settings.total_steps,
        epochs=round(settings.total_steps / data.sampler.steps_per_epoch, 1),
        device=str(accelerator.device),
        processes=accelerator.num_processes,
        from_step=start,
        passed_over=list(trainer.passed_over),
        **trainer.state.resumed_with(),
    )
    if len(trainer.state.launches) > 1 and trainer.state.launches[-1][0] == start:
        hooks.say(
            warning=f"the run goes on with {accelerator.num_processes} processes, another number "
            "than before: batches stay the same, and from here on the weights are not bit-equal to "
            "those of a run that was not stopped"
        )
    hooks.begin(start)
    with MetricsLog(store.folder, start) if accelerator.is_main_process else nullcontext() as log:
        logger = TrainLogger(accelerator, model, trainer.optimizer, settings, log, start, hooks.say)
        finished = trainer.run(data.dataset.batch, logger, hooks.validate)
    step, weights = trainer.published()
    return TrainResult(finished, trainer.state, logger.latest, weights, step)


class Trainer:
    """One process's part in a training run; the model is handed in before its first step.

    It goes on from the newest whole checkpoint; `passed_over` names damaged ones.

    Raises:
        ArtifactStale: an unfinished run of another fingerprint is in the store.
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
        store.steps = settings.total_steps  # by which a checkpoint says whether its run is over
        self._step = TrainStep(accelerator, encoder, objective, settings, seed)
        self.optimizer = self._step.optimizer
        self.state = TrainState()
        self.passed_over = self._resume()

    def run(
        self,
        batch: Callable[[int], ImageTextBatch],
        logger: TrainLogger,
        validate: Validate | None = None,
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
                # Where figures choose the step, each that is judged must be on disk: weights of the
                # best one are read back from there.
                judged = False
                if validate is not None and state.step % settings.validate_every_steps == 0:
                    figures = validate(self._accelerator, self._encoder, self._objective)
                    judged = self._judge(figures)
                    logger.note_validation(state.step, figures)
                last = report.stop or state.step == settings.total_steps
                if last or judged or state.step % settings.save_every_steps == 0:
                    # The checkpoint claims the steps of the log, which must be on disk before it.
                    logger.sync()
                    self._save()
                if last:
                    break
        return state.step == settings.total_steps

    def published(self) -> tuple[int, dict[str, Tensor]]:
        """Return steps done and weights to publish: the best by the metric, else the last.

        Raises:
            CheckpointError: the best checkpoint is gone or damaged.
        """
        best = self.state.best_step
        # All processes hold the same weights, and the main one alone writes them.
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
        launches, count = self.state.launches, self._accelerator.num_processes
        # From a launch with another number on, rounding and dropout are others.
        if not launches or launches[-1][1] != count:
            launches.append((self.state.step, count))
        return damaged

    def _load(self, snapshot: Snapshot) -> None:
        try:
            self._encoder.load_state_dict(dict(snapshot.weights))
        except RuntimeError as error:
            raise CheckpointError(
                f"checkpoint of step {snapshot.step} does not fit the model; remove it"
            ) from error
        load_optimizer_tensors(self.optimizer, self._encoder, snapshot.optimizer)
        state = dict(snapshot.state)
        if self._accelerator.scaler is not None:  # fp16 alone has one
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
        # A process that went on could end the run before the checkpoint is whole.
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

    def _judge(self, figures: dict[str, float | None]) -> bool:
        # Notes the best step so far; the main process alone knows every figure, and saves. Returns
        # whether figures choose the step at all.
        name, state = self._settings.best_metric, self.state
        value = figures.get(name)
        if value is not None and math.isfinite(value):
            sign = -1 if lower_is_better(name) else 1  # losses fall, areas and recalls rise
            if state.best_value is None or sign * value > sign * state.best_value:
                state.best_step, state.best_value = state.step, value
        return bool(name)
