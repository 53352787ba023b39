"""What an examination is given, and what comes of each of its questions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from medclip_dcl.metrics.bootstrap import Figure
from medclip_dcl.tasks.geometry import Geometry, Window, window_of

LENGTHS = (1, 5, 10, 50, 100)
"""The K of recall at K; the paper reports 10, 50 and 100."""


@dataclass(frozen=True)
class Films:
    """Films under examination, encoded."""

    image_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each original film."""
    regions: Float[Tensor, "films rows columns dim"]
    geometry: Geometry = "paper"
    """Which part of each film the model sees, and how heatmaps are spread over it."""

    def window(self, film: int) -> Window:
        """Give the part of a film that the grid of its regions covers.

        Args:
            film: its number.

        Returns:
            The window, pixels of the original film.
        """
        return window_of(self.geometry, *self.sizes_px[film])

    def select(self, chosen: Sequence[int]) -> "Films":
        """Give some of the films.

        Args:
            chosen: their numbers.

        Returns:
            Those films, in that order.
        """
        return Films(
            tuple(self.image_ids[film] for film in chosen),
            tuple(self.subject_ids[film] for film in chosen),
            tuple(self.sizes_px[film] for film in chosen),
            self.regions[torch.tensor(chosen, dtype=torch.long, device=self.regions.device)],
            self.geometry,
        )


@dataclass(frozen=True)
class BoxedSentence:
    """A sentence with the boxes that it has on one film; `film` is the film's number."""

    film: int
    category: str
    text: str
    key: str
    boxes: Float[np.ndarray, "boxes 4"]
    """x, y, width, height, pixels of the original film."""


@dataclass(frozen=True)
class Sampling:
    """How intervals are drawn."""

    samples: int
    seed: int

    def generator(self) -> np.random.Generator:
        """Start the stream of resamples; every question starts it anew."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True)
class Outcome:
    """What came of one question.

    Attributes:
        absent: why it could not be put, else empty.
        pool: how many things it was put to, or chosen from.
        chance: figure -> its value by chance; `group.figure` where groups differ.
        figures: the question's own figures.
        groups: figures by finding, category or direction.
    """

    absent: str = ""
    pool: Mapping[str, int] = field(default_factory=dict)
    chance: Mapping[str, float | None] = field(default_factory=dict)
    figures: Mapping[str, Figure] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Give the fields as plain values.

        Returns:
            A JSON-serialisable tree.
        """
        return {
            "absent": self.absent,
            "pool": dict(self.pool),
            "chance": dict(self.chance),
            "figures": _plain(self.figures),
            "groups": {name: _plain(figures) for name, figures in self.groups.items()},
        }


def _plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    return {name: figure.as_json() for name, figure in figures.items()}
