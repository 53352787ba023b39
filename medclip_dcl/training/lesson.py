"""What the loop asks of batches, of losses and of a run; it knows neither texts nor views.

The loop, the step, the validation loss and the journal are the same for an image-text
model and for an image-only one. What differs stands behind these names: the model, the
batch of a step, and how the two become the matrix s and a loss.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from medclip_dcl.model.dual_encoder import DualEncoder
from medclip_dcl.model.view_encoder import ViewEncoder
from medclip_dcl.objective.build import ObjectiveOutput

Model = TypeVar("Model", DualEncoder, ViewEncoder)
"""A model that can be trained: films and sentences, or views of images."""


class Batch(Protocol):
    """What a process needs for one step."""

    @property
    def step(self) -> int:
        """The step, from 0."""

    @property
    def item_ids(self) -> Sequence[str]:
        """Id of each place, for messages."""

    def to(self, device: torch.device) -> Self:
        """Move the tensors."""


BatchT = TypeVar("BatchT", bound=Batch)
_Taught = TypeVar("_Taught", DualEncoder, ViewEncoder, contravariant=True)
_Read = TypeVar("_Read", bound=Batch, contravariant=True)


class Lesson(Protocol[_Taught, _Read]):
    """The configured loss over a global batch."""

    def to(self, device: torch.device) -> object:
        """Move what the loss holds."""

    def read(self, network: nn.Module, encoder: _Taught, batch: _Read) -> ObjectiveOutput:
        """Run the model on a batch and compute the loss of this process's anchors.

        Args:
            network: the model as it is called: itself, or in its distributed wrapper.
            encoder: the model itself, for its similarity and gamma.
            batch: the batch, on the model's device.

        Returns:
            Mean loss of the local anchors, and gauges.
        """


@dataclass(frozen=True)
class Course(Generic[Model, BatchT]):
    """A run before its first step, as one process sees it."""

    encoder: Model
    """The model before its first step."""
    contrast: Lesson[Model, BatchT]
    """The loss."""
    batch: Callable[[int], BatchT]
    """Makes the batch of any step, by whichever thread asks."""
    validation: Sequence[BatchT]
    """Validation batches; empty: no validation loss."""
    steps_per_epoch: int
    """Steps in one pass over the data."""
    facts: Mapping[str, int]
    """Counts that are told at the start."""
    checkup: Callable[[Model, torch.device], dict[str, float | None]] | None = None
    """Questions asked beside the validation loss, of a model in eval mode; None: none."""


@dataclass
class Place:
    """Where a run stands."""

    step: int = 0
    """Steps done."""
    skipped: int = 0
    """Steps whose loss or gradient was not finite."""
    in_a_row: int = 0
    """Such steps since the last good one."""
    best_step: int = 0
    """Steps done when the named metric was best; 0: not yet measured."""
    best_value: float | None = None
    """The metric at that step."""


@dataclass(frozen=True)
class Ending:
    """A run whose steps are all done, or that was stopped."""

    finished: bool
    place: Place
    figures: dict[str, float | None]
    """The last line of the metrics log."""
    weights: dict[str, Tensor]
    """Parameters and buffers of the model that is to be published."""
    published_step: int
    """Steps that it has done: all, or those of the best checkpoint."""
