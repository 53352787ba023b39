"""What an examination is given, and what comes of each of its questions.

Tables of held-out studies -> what the questions need: truth, boxed sentences, reports.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from medclip_dcl.evaluation.bootstrap import Figure
from medclip_dcl.evaluation.summary import UNKNOWN
from medclip_dcl.inference.heatmap import Geometry, Window, window_of
from medclip_dcl.inference.zero_shot import Finding

LENGTHS = (1, 5, 10, 50, 100)
"""The K of recall at K; the paper reports 10, 50 and 100."""


@dataclass(frozen=True)
class EncodedImages:
    """Images under examination, encoded."""

    image_ids: tuple[str, ...]
    subject_ids: tuple[str, ...]
    sizes_px: tuple[tuple[int, int], ...]
    """Height and width of each original image."""
    regions: Float[Tensor, "images rows columns dim"]
    geometry: Geometry = "paper"
    """Which part of each image the model sees, and how heatmaps are spread over it."""

    def window(self, image: int) -> Window:
        """Give the part of an image that the grid of its regions covers.

        Args:
            image: its number.

        Returns:
            The window, pixels of the original image.
        """
        return window_of(self.geometry, *self.sizes_px[image])

    def select(self, chosen: Sequence[int]) -> "EncodedImages":
        """Give some of the images.

        Args:
            chosen: their numbers.

        Returns:
            Those images, in that order.
        """
        return EncodedImages(
            tuple(self.image_ids[image] for image in chosen),
            tuple(self.subject_ids[image] for image in chosen),
            tuple(self.sizes_px[image] for image in chosen),
            self.regions[torch.tensor(chosen, dtype=torch.long, device=self.regions.device)],
            self.geometry,
        )


@dataclass(frozen=True)
class BoxedSentence:
    """A sentence with the boxes that it has on one image; `image` is the image's number."""

    image: int
    category: str
    text: str
    key: str
    boxes: Float[np.ndarray, "boxes 4"]
    """x, y, width, height, pixels of the original image."""


@dataclass(frozen=True)
class BootstrapOptions:
    """How intervals are drawn."""

    samples: int
    seed: int

    def generator(self) -> np.random.Generator:
        """Start the stream of resamples; every question starts it anew."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True)
class EvalResult:
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


Row = Mapping[str, Any]


def exact_truth(
    findings: Sequence[Finding],
    image_ids: Sequence[str],
    types_of: Mapping[str, Collection[str]],
    types: Collection[str],
) -> Int8[np.ndarray, "findings images"]:
    """Read off which findings images show, where a generator knows it.

    Args:
        findings: the prompt pairs; a finding whose name is no type stays unknown.
        image_ids: the images.
        types_of: image -> types of finding that it shows.
        types: every type there is.

    Returns:
        1 shown, 0 not shown, `UNKNOWN` where the generator knows nothing.
    """
    truth = np.full((len(findings), len(image_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, image_id in enumerate(image_ids):
            if finding.name in types and image_id in types_of:
                truth[index, image] = finding.name in types_of[image_id]
    return truth


def labelled_truth(
    findings: Sequence[Finding], study_ids: Sequence[str], labels: Sequence[Row]
) -> Int8[np.ndarray, "findings images"]:
    """Read off which findings images show from the labels of their studies.

    Args:
        findings: the prompt pairs; one without a label column stays unknown.
        study_ids: study of each image.
        labels: rows of the manifest's label table.

    Returns:
        1 where the label is 1, 0 where it is 0; uncertain and blank are `UNKNOWN`.

    Source: Wang et al. 2023 leave open what becomes of uncertain and blank; ours: dropped.
    """
    of_study = {row["study_id"]: row for row in labels}
    truth = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    for index, finding in enumerate(findings):
        for image, study_id in enumerate(study_ids):
            row = of_study.get(study_id)
            if row is not None and finding.label in row and row[finding.label] in {0, 1}:
                truth[index, image] = row[finding.label]
    return truth


def balance(
    truth: Int8[np.ndarray, "findings images"], most: int, generator: np.random.Generator
) -> Int8[np.ndarray, "findings images"]:
    """Draw as many images with each finding as without it.

    Args:
        truth: 1 present, 0 absent, `UNKNOWN` not known.
        most: most images of a finding, half of them with it; 0: all images stay.
        generator: draws them.

    Returns:
        The truth of the drawn images; that of the others is `UNKNOWN`.

    Source: Wang et al. 2023 evaluate on about 1000 images per finding; ours: half and half.
    """
    if not most:
        return truth
    kept = np.full_like(truth, UNKNOWN)
    for state, drawn in zip(truth, kept, strict=True):
        sides = [np.flatnonzero(state == value) for value in (0, 1)]
        count = min(most // 2, *(len(side) for side in sides))
        for side in sides:
            images = generator.choice(side, count, replace=False)
            drawn[images] = state[images]
    return kept


def boxed_sentences(
    boxes: Sequence[Row], images: EncodedImages, keys: Sequence[str]
) -> list[BoxedSentence]:
    """Gather the boxes of each sentence on each image.

    Args:
        boxes: rows of the manifest's box table; those of other images are left out.
        images: the images.
        keys: `text_key` of each row's phrase.

    Returns:
        One entry per image and sentence, in order of first appearance; boxes are scaled
        from the size that the table states to the image's own.
    """
    number = {image_id: index for index, image_id in enumerate(images.image_ids)}
    found: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row, key in zip(boxes, keys, strict=True):
        if row["image_id"] in number and row["phrase"].strip():
            found[number[row["image_id"]], key].append(row)
    return [
        BoxedSentence(
            image=image,
            category=rows[0]["category"],
            text=rows[0]["phrase"],
            key=key,
            boxes=np.array([_scaled(row, images.sizes_px[image]) for row in rows]),
        )
        for (image, key), rows in found.items()
    ]


def reports_of_images(
    study_ids: Sequence[str], sentences: Sequence[Row], pool: int, generator: np.random.Generator
) -> tuple[list[int], list[list[str]]]:
    """Draw the images of the image-report pool, one per study, with their reports.

    Args:
        study_ids: study of each image.
        sentences: rows of the sentences table, in the report's order.
        pool: most images.
        generator: draws them where there are more.

    Returns:
        Numbers of the images, ascending, and the sentences of each one's report.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for row in sentences:
        said[row["study_id"]].append(row["text"])
    first = {study_id: image for image, study_id in reversed(list(enumerate(study_ids)))}
    images = sorted(image for study_id, image in first.items() if study_id in said)
    if len(images) > pool:
        images = sorted(generator.choice(images, pool, replace=False).tolist())
    return images, [said[study_ids[image]] for image in images]


def _scaled(row: Row, size_px: tuple[int, int]) -> list[float]:
    height, width = size_px
    across, down = width / row["image_width"], height / row["image_height"]
    return [row["x"] * across, row["y"] * down, row["width"] * across, row["height"] * down]
