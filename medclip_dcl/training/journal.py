"""What is told of a run while it goes on: figures to log and trackers, and a word of warning."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim import Optimizer

from medclip_dcl.config.training import TrainConfig
from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.model.view_encoder import ViewEncoder
from medclip_dcl.objective.build import ObjectiveOutput
from medclip_dcl.training.metrics_log import MetricsLog

_FLOOR_ALARM = 0.2
_FLOOR_LINES = 5


class Journal:
    """Writes the metrics log and watches the share of anchors on the floor.

    Args:
        accelerator: averages figures over processes.
        encoder: the model, for gamma.
        optimizer: for the learning rate; the first group's is logged.
        settings: the training loop.
        log: the metrics log; None in all processes but the main one.
        step: steps done before.
        say: prints facts, as names and plain values.

    Attributes:
        latest: the last line of figures.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        encoder: DualEncoder | ViewEncoder,
        optimizer: Optimizer,
        settings: TrainConfig,
        log: MetricsLog | None,
        step: int,
        say: Callable[..., None],
    ) -> None:
        self._accelerator, self._encoder, self._optimizer = accelerator, encoder, optimizer
        self._settings, self._log, self._say = settings, log, say
        self._marked_step, self._marked_s = step, time.monotonic()
        self._floor: deque[float] = deque(maxlen=_FLOOR_LINES)
        self._warned = False
        self.latest: dict[str, float | None] = log.last if log is not None else {}

    def note(self, step: int, skipped: int, output: ObjectiveOutput) -> dict[str, float]:
        """Write a line where one is due.

        Args:
            step: steps done.
            skipped: steps whose loss or gradient was not finite.
            output: loss and gauges of this process's anchors.

        Returns:
            Figures to show beside the progress; empty where no line was due.
        """
        if step % self._settings.log_every_steps and step != self._settings.steps:
            return {}
        figures = self._mean_of(output)
        self.latest = {
            "step": step,
            **{name: value if math.isfinite(value) else None for name, value in figures.items()},
            "gamma_squared": self._encoder.gamma.item() ** 2,
            "lr": self._optimizer.param_groups[0]["lr"],
            "skipped": skipped,
            "images_per_s": self._rate(step),
        }
        self._write(self.latest)
        self._watch_floor(step, figures["frac_floor"])
        return {
            "loss": figures["loss"],
            "uncorrected": figures["uncorrected_loss"],
            "floor": figures["frac_floor"],
            "images_per_s": self.latest["images_per_s"] or 0.0,
        }

    def note_validation(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Write a line about the validation split.

        Args:
            step: steps done.
            figures: losses and answers by name; None: not known.
        """
        self._write({"step": step, **figures})
        self._marked_s = time.monotonic()  # validation is no part of the training speed
        self._marked_step = step

    def sync(self) -> None:
        """Flush the log: a checkpoint is about to claim its steps."""
        if self._log is not None:
            self._log.sync()

    def _mean_of(self, output: ObjectiveOutput) -> dict[str, float]:
        tensors = {"loss": output.loss.detach(), **output.gauges}
        stacked = torch.stack([tensor.float() for tensor in tensors.values()])
        mean = self._accelerator.reduce(stacked, reduction="mean").tolist()
        return dict(zip(tensors, mean, strict=True))

    def _rate(self, step: int) -> float:
        now = time.monotonic()
        images = (step - self._marked_step) * self._settings.global_batch
        rate = images / max(now - self._marked_s, 1e-9)
        self._marked_step, self._marked_s = step, now
        return round(rate, 2)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.write(line)
        known = {name: value for name, value in line.items() if value is not None}
        self._accelerator.log(known, step=line["step"])

    def _watch_floor(self, step: int, frac_floor: float) -> None:
        self._floor.append(frac_floor)
        share = sum(self._floor) / len(self._floor)
        if len(self._floor) == _FLOOR_LINES and share > _FLOOR_ALARM and not self._warned:
            self._warned = True
            self._say(
                step=step,
                frac_floor=round(share, 3),
                warning="anchors on the floor learn nothing; set objective.floor=fallback, or "
                "lower eta.eta_max or train.global_batch",
            )
