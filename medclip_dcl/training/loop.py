"""The loop: resume, step, log, validate, save, stop."""

import math
from contextlib import closing
from typing import Generic

import torch
from accelerate import Accelerator
from torch import Tensor

from medclip_dcl.artifacts.checkpoint import CheckpointStore, Snapshot
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.errors import CheckpointError, TrainingError
from medclip_dcl.progress import Progress
from medclip_dcl.training.economy import economise
from medclip_dcl.training.journal import Journal
from medclip_dcl.training.lesson import BatchT, Course, Model, Place
from medclip_dcl.training.optimizer import (
    build_optimizer,
    load_optimizer_tensors,
    optimizer_tensors,
)
from medclip_dcl.training.reading import read_ahead
from medclip_dcl.training.step import StepReport, TrainStep
from medclip_dcl.training.stopping import StopRequest
from medclip_dcl.training.validation import evaluating, validation_loss

_IDS_SHOWN = 8
_COUNTERS = ("skipped", "in_a_row", "best_step", "best_value")


class Loop(Generic[Model, BatchT]):
    """One process's part in a training run.

    Args:
        accelerator: device, processes and precision.
        course: model, loss and batches, as they are before the first step.
        store: checkpoints.
        settings: the training loop.
        seed: seed of dropout.

    Attributes:
        place: where the run stands.
        passed_over: names of damaged checkpoints that were found on the way.
        optimizer: moves the weights.

    Raises:
        ArtifactStale: an unfinished run of another recipe is in the store.
        CheckpointError: the newest checkpoint does not fit the model.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        course: Course[Model, BatchT],
        store: CheckpointStore,
        settings: TrainConfig,
        seed: int,
    ) -> None:
        self._accelerator, self._settings, self._store = accelerator, settings, store
        self._course: Course[Model, BatchT] = course
        encoder = course.encoder
        economise(encoder, settings)
        self._encoder: Model = encoder.to(accelerator.device)
        course.contrast.to(accelerator.device)
        self.optimizer = build_optimizer(encoder, settings)
        self.place = Place()
        self.passed_over = self._resume()
        self._step: TrainStep[Model, BatchT] = TrainStep(
            accelerator, self._encoder, course.contrast, self.optimizer, settings, seed
        )

    def run(self, journal: Journal) -> bool:
        """Train until the last step, or until asked to stop.

        Args:
            journal: receives the figures.

        Returns:
            Whether every step is done. A checkpoint of this moment is on disk.

        Raises:
            TrainingError: too many steps in a row met a number that is not finite, or
                a checkpoint cannot be written.
        """
        settings, place = self._settings, self.place
        batches = read_ahead(
            self._course.batch, place.step, settings.steps, settings.loader_workers
        )
        bar = Progress("train", settings.steps, "step", done=place.step)
        with StopRequest() as request, closing(batches), bar as progress:
            for batch in batches:
                report = self._step(batch, request.requested)
                self._count(batch, report)
                progress.advance(1, **journal.note(place.step, place.skipped, report.output))
                examined = self._is_examined()
                if examined:
                    journal.note_validation(place.step, self._validate())
                last = report.stop or place.step == settings.steps
                judged = examined and bool(settings.best_metric)
                if last or judged or place.step % settings.save_every_steps == 0:
                    journal.sync()
                    self._save()
                if last:
                    break
        return place.step == settings.steps

    def published(self) -> tuple[int, dict[str, Tensor]]:
        """Give what the run is to publish.

        Returns:
            Steps done, and parameters and buffers: of the best step where a metric chose
            one, else of the last.

        Raises:
            CheckpointError: the best checkpoint is gone or damaged.
        """
        best = self.place.best_step
        if not best or best == self.place.step or not self._accelerator.is_main_process:
            return self.place.step, self._encoder.state_dict()
        weights = self._store.weights(best)
        if weights is None:
            raise CheckpointError(
                f"the best checkpoint, of step {best}, is gone or damaged; remove the checkpoints "
                "and train anew, or set train.best_metric to nothing"
            )
        return best, weights

    def _resume(self) -> tuple[str, ...]:
        found = self._store.find()
        step = found.snapshot.step if found.snapshot is not None else 0
        steps = self._accelerator.gather(torch.tensor([step], device=self._accelerator.device))
        if int(steps.min()) != int(steps.max()):
            raise TrainingError(
                "the processes find different checkpoints; `work` must be one folder for all"
            )
        if found.snapshot is not None:
            self._load(found.snapshot)
        return found.skipped

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
        self.place = Place(snapshot.step, **{name: state[name] for name in _COUNTERS})

    def _save(self) -> None:
        if self._accelerator.is_main_process:
            scaler, place = self._accelerator.scaler, self.place
            state = {name: getattr(place, name) for name in _COUNTERS}
            state["scaler"] = None if scaler is None else scaler.state_dict()
            moments = optimizer_tensors(self.optimizer, self._encoder)
            snapshot = Snapshot(place.step, self._encoder.state_dict(), moments, state)
            self._store.save(snapshot, self._settings.keep_checkpoints, place.best_step)
        self._accelerator.wait_for_everyone()

    def _count(self, batch: BatchT, report: StepReport) -> None:
        place = self.place
        place.step = batch.step + 1
        if report.updated:
            place.in_a_row = 0
            return
        place.skipped += 1
        place.in_a_row += 1
        if place.in_a_row >= self._settings.max_skipped:
            ids = ", ".join(batch.item_ids[:_IDS_SHOWN])
            raise TrainingError(
                f"{place.in_a_row} steps in a row up to step {place.step} had a loss or gradient "
                f"that is not finite; the last batch: {ids}, ...; lower "
                "train.learning_rate, or look at these"
            )

    def _is_examined(self) -> bool:
        every = self._settings.validate_every_steps
        return bool(self._course.validation) and self.place.step % every == 0

    def _validate(self) -> dict[str, float | None]:
        figures: dict[str, float | None] = {}
        figures |= validation_loss(
            self._accelerator, self._encoder, self._course.contrast, self._course.validation
        )
        if self._course.checkup is not None and self._accelerator.is_main_process:
            with evaluating(self._encoder), self._accelerator.autocast():
                figures |= self._course.checkup(self._encoder, self._accelerator.device)
        self._judge(figures)
        return figures

    def _judge(self, figures: dict[str, float | None]) -> None:
        """Remember the best step; the main process alone knows every figure, and saves."""
        name, place = self._settings.best_metric, self.place
        value = figures.get(name)
        if value is None or not math.isfinite(value):
            return
        sign = -1 if name.endswith("loss") else 1
        if place.best_value is None or sign * value > sign * place.best_value:
            place.best_step, place.best_value = place.step, value
