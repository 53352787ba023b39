"""Heads: classifiers on a model's image vectors, fitted to labels by `fit_head`.

    heads.json          what each head is, how it decides, and what it reached
    heads.safetensors   its arrays; nothing in a package can run code

A margin is above 0 where an image looks more like those with the finding than like those without
it, as if both were equally common; a score is its logistic function.

    margin = w . x + b
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.numpy import load, save

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.core.settings import Section
from medclip_dcl.inference.model_package import (
    HEAD_ARRAYS_FILE,
    HEADS_FILE,
    FindingCalibration,
    read_part,
)
from medclip_dcl.schemas import HeadAnswer


class HeadFigure(Section):
    """A figure on test images, with its 95 % interval over patients."""

    value: float | None
    """None where the images do not define it."""
    low: float | None = None
    """Lower end of the interval."""
    high: float | None = None
    """Upper end."""
    n: int
    """Images."""
    subjects: int
    """Their patients."""
    reason: str = ""
    """Why there is no value."""


class HeadCard(Section):
    """Card of a head: an entry of `heads.json`."""

    name: str
    """The label that it was fitted to."""
    kind: Literal["linear"]
    """How it decides."""
    features: Literal["space"]
    """What it reads: the mean region in the shared space."""
    chosen: float | None
    """Penalty, by the validation images."""
    threshold: float
    """Margin from which the finding is decided to be present, chosen on the validation images."""
    calibration: FindingCalibration
    """How a margin becomes a probability."""
    images_with: int
    """Training images with the finding."""
    images_without: int
    """Training images without it."""
    patients: int
    """Patients of these images."""
    figures: dict[str, HeadFigure]
    """On the test images, at the threshold."""
    inputs: dict[str, str]
    """Digests of what it was made from, by name."""
    settings: dict[str, str | float | int]
    """How it was fitted."""


class _Heads(Section):
    format_version: Literal[2] = 2
    heads: tuple[HeadCard, ...]


@dataclass(frozen=True)
class Head:
    """A fitted head: its card, and `weight` and `bias`."""

    card: HeadCard
    arrays: Mapping[str, np.ndarray]

    def margins(
        self, features: Float[np.ndarray, "images features"]
    ) -> Float[np.ndarray, " images"]:
        """Return the margin of every image: `head_margins`."""
        return head_margins(self.arrays, features)

    def answer(self, features: Float[np.ndarray, "images features"]) -> list[HeadAnswer]:
        """Answer for every image; CheckpointError where the features are of another width."""
        card, margins = self.card, self.margins(features)
        curve, is_refused = card.calibration.curve, card.calibration.is_refused
        threshold = float(_logistic(np.array(card.threshold)))
        probabilities = [None] * len(margins)
        if curve is not None:
            probabilities = curve.probabilities(margins).tolist()
        return [
            HeadAnswer(
                name=card.name,
                kind=card.kind,
                score=score,
                threshold=threshold,
                decision=None if is_refused else margin >= card.threshold,
                probability=probability,
                probability_note=card.calibration.reason,
            )
            for score, margin, probability in zip(
                _logistic(margins).tolist(), margins.tolist(), probabilities, strict=True
            )
        ]


def head_margins(
    arrays: Mapping[str, np.ndarray], features: Float[np.ndarray, "images features"]
) -> Float[np.ndarray, " images"]:
    """Compute the margins of a head from its arrays.

    Raises:
        CheckpointError: the arrays are not those of features of this width.
    """
    try:
        margins: np.ndarray = features.astype(np.float64) @ arrays["weight"] + arrays["bias"][0]
    except (KeyError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"a head does not fit features of width {features.shape[1]}; rerun fit_head"
        ) from error
    return margins


def _logistic(margins: np.ndarray) -> np.ndarray:
    score: np.ndarray = (1 + np.tanh(margins / 2)) / 2
    return score


def write_heads(folder: Path, heads: Sequence[Head]) -> None:
    """Write heads into the draft of a model."""
    cards = _Heads(heads=tuple(head.card for head in heads))
    arrays = {
        f"{number}.{name}": np.ascontiguousarray(array)
        for number, head in enumerate(heads)
        for name, array in head.arrays.items()
    }
    write_text(folder / HEADS_FILE, cards.model_dump_json(indent=1) + "\n")
    write_bytes(folder / HEAD_ARRAYS_FILE, save(arrays))


def read_heads(source: Path | Artifact) -> tuple[Head, ...]:
    """Read the heads of a model whose bytes have been checked; none where it has none.

    Raises:
        CheckpointError: they cannot be read by this version, or are not finite.
    """
    folder, content = getattr(source, "path", source), read_part(source, HEADS_FILE)
    if content is None:
        return ()
    try:
        cards = _Heads.model_validate_json(content).heads
        arrays = load(read_part(source, HEAD_ARRAYS_FILE) or b"")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{HEADS_FILE} of {folder} cannot be read by this version; delete it and run "
            "fit_head again"
        ) from error
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise CheckpointError(f"a head of {folder} is not finite; rerun fit_head")
    own: list[dict[str, np.ndarray]] = [{} for _ in cards]
    for name, array in arrays.items():
        number, _, key = name.partition(".")
        if number.isdecimal() and int(number) < len(own):
            own[int(number)][key] = array
    return tuple(Head(card, stored) for card, stored in zip(cards, own, strict=True))
