"""What is reported of a run while it goes on: the metrics log, trackers, and a warning.

The log is one JSON line per logged step, cut back when a run is resumed. Trackers are those that
Accelerate knows by name, such as TensorBoard.
"""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from torch.optim import Optimizer

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import disk_faults_named, write_text
from medclip_dcl.models.dual_encoder import DualEncoder
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.objective import ObjectiveOutput
from medclip_dcl.training.settings import TrainConfig

FILE = "metrics.jsonl"


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read a run's log, if any, from the folder of its checkpoints.

    A line that a kill cut short ends it.
    """
    path = folder / FILE
    if not path.is_file():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class MetricsLog(AbstractContextManager["MetricsLog"]):
    """Appends lines to the log in a folder; those after `step` of a killed run are dropped.

    `last` is the last line of figures that was kept; empty where there is none.
    """

    def __init__(self, folder: Path, step: int) -> None:
        earlier = [line for line in read_metrics(folder) if line["step"] <= step]
        figures = [line for line in earlier if "loss" in line]
        self.last: dict[str, Any] = figures[-1] if figures else {}
        self._path = folder / FILE
        with disk_faults_named(self._path):
            write_text(self._path, "".join(_line(line) for line in earlier))
            # Unbuffered: a line that the disk refused is not tried again when the log is closed.
            self._stream = self._path.open("ab", buffering=0)

    def write(self, figures: Mapping[str, Any]) -> None:
        """Append one line: `step`, and what was measured."""
        left = _line(figures).encode()
        with disk_faults_named(self._path):
            while left:  # a full disk takes a part first
                left = left[self._stream.write(left) :]

    def sync(self) -> None:
        """Flush the log to the disk: a checkpoint is about to claim its steps."""
        with disk_faults_named(self._path):
            os.fsync(self._stream.fileno())

    def __exit__(self, *_error: object) -> None:
        self._stream.close()


def _line(figures: Mapping[str, Any]) -> str:
    return f"{json.dumps(dict(figures))}\n"


_TRACKERS = "trackers"  # folder in the config's own, for trackers that keep files
_RUN = "medclip-dcl"
_PACKAGES = {"tensorboard": "tensorboardX", "comet_ml": "comet-ml"}


def tracker_options(settings: TrainConfig, work: Path | None) -> dict[str, Any]:
    """Return an `Accelerator`'s arguments about trackers; ConfigError where a package is absent."""
    if not settings.trackers or work is None:
        return {}
    present = {str(name) for name in get_available_trackers()}
    absent = [name for name in settings.trackers if name not in present]
    if absent:  # Accelerate would leave them out without a word
        packages = " ".join(_PACKAGES.get(name, name) for name in absent)
        raise ConfigError(
            f"train.trackers names {', '.join(absent)}, not installed here; pip install {packages}"
        )
    return {"log_with": list(settings.trackers), "project_dir": str(work / _TRACKERS)}


def open_trackers(accelerator: Accelerator, config: TrainingConfig, step: int) -> None:
    """Begin what trackers record of this start of a run, with its settings.

    `step` counts the steps done: TensorBoard drops what a killed run wrote later.
    """
    if not accelerator.log_with:
        return
    tree = config.model_dump(mode="json", include={"seed", "model", "objective", "train"})
    tensorboard = {"purge_step": step + 1}
    accelerator.init_trackers(_RUN, _plain(tree), {"tensorboard": tensorboard})


def _plain(tree: dict[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    # Flattened; paths of weights stay out: they name folders of this machine.
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _plain(value, f"{prefix}{name}.")
        elif name != "pretrained" and value is not None:
            is_plain = isinstance(value, int | float | str | bool)
            flat[prefix + name] = value if is_plain else str(value)
    return flat


@dataclass
class TrainState:
    """State of a run: steps done, and what the log has to go on from."""

    step: int = 0  # steps done
    skipped: int = 0  # steps whose loss or gradient was not finite
    in_a_row: int = 0  # such steps since the last good one
    clipped: int = 0
    """Steps whose gradient was longer than the largest that is allowed, and was cut to it."""
    best_step: int = 0  # steps done when the named metric was best; 0: not yet measured
    best_value: float | None = None  # the metric at that step
    launches: list[tuple[int, int]] = field(default_factory=list)
    """Steps done before, and processes: of the first launch, and of each with another number."""

    def resumed_with(self) -> dict[str, list[dict[str, int]]]:
        """Return `resumed_with`: each step from which there were other processes; empty: none."""
        changes = [{"from_step": step, "processes": count} for step, count in self.launches[1:]]
        return {"resumed_with": changes} if changes else {}


_FLOOR_ALARM = 0.2
_MOST_APART = 10  # steps between lines of the log
_LEAST_LINES = 100  # of a run: a short one has a line each step
_FLOOR_LINES = 5


class TrainLogger:
    """Writes figures, means over processes, and watches the share of anchors on the floor.

    `log` is None in all processes but the main one; `step` counts the steps done before, and
    `latest` is the last line of figures.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        encoder: DualEncoder,
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

    def note(self, state: TrainState, output: ObjectiveOutput, norm: float) -> dict[str, float]:
        """Write a line where one is due, and give figures to show next to the progress.

        `output` and `norm`, the length of the gradient, are of the last step.
        """
        step, steps = state.step, self._settings.total_steps
        if step % max(1, min(_MOST_APART, steps // _LEAST_LINES)) and step != steps:
            return {}
        figures = self._mean_of(output)
        self.latest = {
            "step": step,
            **{name: value if math.isfinite(value) else None for name, value in figures.items()},
            "gamma_squared": self._encoder.gamma.item() ** 2,
            "lr": self._optimizer.param_groups[0]["lr"],
            "gradient_norm": norm if math.isfinite(norm) else None,
            "clipped": state.clipped / step,
            "skipped": state.skipped,
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
        """Write a line of validation figures; None: not known."""
        self._write({"step": step, **figures})
        self._marked_s = time.monotonic()  # validation is not part of the training speed
        self._marked_step = step

    def sync(self) -> None:
        """Flush the log: a checkpoint is about to claim its steps."""
        if self._log is not None:
            self._log.sync()

    def _mean_of(self, output: ObjectiveOutput) -> dict[str, float]:
        tensors = {"loss": output.loss.detach(), **output.gauges}
        # Joined, as every reduction waits for all processes.
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
        measured = {name: value for name, value in line.items() if value is not None}
        self._accelerator.log(measured, step=line["step"])

    def _watch_floor(self, step: int, frac_floor: float) -> None:
        # A mean over lines: single batches touch the floor in any run.
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
