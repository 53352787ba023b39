"""Image set: small labelled images in one table, some classes thinned in the training split.

`train` is thinned; `validate` and `test` are not.

Image-only model: what the probes load.

model.safetensors   weights of image encoder, head and gamma
config.json         the whole configuration, `work` left out
model.json          the card: what it was made from, and how training ended

Probe: what an image-only model has learned, by share of labels, and a map of its features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64, UInt8
from torch import Tensor

from medclip_dcl.artifact import Artifact, ArtifactType, open_artifact
from medclip_dcl.config import Config
from medclip_dcl.errors import ArtifactCorrupt
from medclip_dcl.model_package import (
    CARD,
    finite_weights,
    read_facts,
    write_config_and_card,
    write_weights,
)
from medclip_dcl.tables import Column, TableFormat, read_table

IMAGE_SET = ArtifactType("image_set", 1, "prepare_image_set")

IMAGES = TableFormat(
    "set_images.parquet",
    (
        Column("image_id", pa.string(), "split of the source and place in it"),
        Column("split", pa.string(), "train, validate or test"),
        Column("label", pa.int64(), "class, from 0"),
        Column("pixels", pa.large_binary(), "channels x size x size bytes, 0 to 255"),
    ),
)
"""One row per image."""

CLASSES = TableFormat(
    "classes.parquet",
    (
        Column("name", pa.string(), "name of the class; its row is the label"),
        Column("is_thinned", pa.bool_(), "whether it was thinned in the training split"),
        Column("train", pa.int64(), "training images, after thinning"),
        Column("validate", pa.int64(), "validation images"),
        Column("test", pa.int64(), "test images"),
    ),
)
"""One row per class."""


@dataclass(frozen=True)
class ImageClass:
    """A class and how many images it has."""

    name: str
    is_thinned: bool
    train: int
    validate: int
    test: int


@dataclass(frozen=True)
class ImageSplit:
    """The images of one split."""

    image_ids: tuple[str, ...]
    labels: Int64[np.ndarray, " images"]
    pixels: UInt8[np.ndarray, "images channels size size"]


class ImageSet:
    """An opened image set.

    Args:
        artifact: an opened artifact of kind `image_set`.

    Attributes:
        size_px: height and width of an image, pixels.
        channels: 1 or 3.
        r: share of a thinned class that was kept.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.size_px = int(artifact.summary["size_px"])
        self.channels = int(artifact.summary["channels"])
        self.r = float(artifact.summary["r"])

    @cached_property
    def classes(self) -> tuple[ImageClass, ...]:
        """The classes, by label."""
        rows = read_table(self._artifact.path, CLASSES).to_pylist()
        return tuple(ImageClass(**row) for row in rows)

    def split(self, name: str) -> ImageSplit:
        """Read the images of a split.

        Args:
            name: train, validate or test.

        Returns:
            The images; there may be none.

        Raises:
            ArtifactCorrupt: an image has another size than the set.
        """
        table = read_table(self._artifact.path, IMAGES)
        table = table.filter(pc.equal(table["split"], name))
        area = self.channels * self.size_px**2
        if not pc.all(pc.equal(pc.binary_length(table["pixels"]), area), min_count=0).as_py():
            raise ArtifactCorrupt(
                f"an image of {IMAGE_SET.name} is not whole; rerun {IMAGE_SET.job}"
            )
        shape = (len(table), self.channels, self.size_px, self.size_px)
        joined = b"".join(table["pixels"].to_pylist())
        return ImageSplit(
            image_ids=tuple(table["image_id"].to_pylist()),
            labels=table["label"].to_numpy().astype(np.int64),
            pixels=np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(shape),
        )


def image_rows(
    split: str,
    image_ids: Sequence[str],
    labels: Int64[np.ndarray, " images"],
    pixels: UInt8[np.ndarray, "images channels size size"],
) -> pa.Table:
    """Lay images out as rows of `IMAGES`.

    Args:
        split: train, validate or test.
        image_ids: ids.
        labels: classes.
        pixels: the images.

    Returns:
        A table with the columns of `IMAGES`.
    """
    return pa.table(
        [
            pa.array(list(image_ids), pa.string()),
            pa.array([split] * len(labels), pa.string()),
            pa.array(labels, pa.int64()),
            pa.array([image.tobytes() for image in pixels], pa.large_binary()),
        ],
        schema=IMAGES.schema,
    )


IMAGE_MODEL = ArtifactType("image_model", 1, "train")


@dataclass(frozen=True)
class ImageModel:
    """An image-only model whose bytes have been checked."""

    path: Path
    """Its folder."""
    digest: str
    """Digest of all its files."""
    config: Config
    """The configuration that it was trained with; `work` is the model's own folder."""
    card: Mapping[str, Any]
    """Facts about it."""

    def weights(self) -> dict[str, Tensor]:
        """Read the weights.

        Returns:
            Parameters and buffers by name, on the CPU.

        Raises:
            CheckpointError: they cannot be read, or one is not finite.
        """
        return finite_weights(self.path)


def write_image_model(
    folder: Path, weights: Mapping[str, Tensor], config: Config, card: Mapping[str, Any]
) -> None:
    """Write the files of an image-only model.

    Args:
        folder: the draft's directory.
        weights: parameters and buffers by name.
        config: the configuration.
        card: facts about the model, JSON-serialisable.
    """
    write_weights(folder, weights)
    write_config_and_card(folder, config, card)


def read_image_model(path: Path) -> ImageModel:
    """Open an image-only model after checking every byte.

    Args:
        path: its folder.

    Returns:
        The model's facts; `weights()` reads the rest.

    Raises:
        ArtifactError: it is missing, damaged or of another version.
        CheckpointError: its configuration or card cannot be read by this version.
    """
    artifact = open_artifact(path, IMAGE_MODEL)
    config, (card,) = read_facts(artifact, CARD)
    return ImageModel(path, artifact.digest, config, card)


PROBE = ArtifactType("probe", 1, "probe_images")

PROBES = TableFormat(
    "probes.parquet",
    (
        Column("encoder", pa.string(), "trained, or untrained: the same before its first step"),
        Column("fraction", pa.float64(), "share of the labels that the probe was given"),
        Column("draw", pa.int32(), "which random draw of them"),
        Column("labels", pa.int64(), "how many labels that is"),
        Column("penalty", pa.float64(), "L2 penalty that the validation images chose"),
        Column("converged", pa.bool_(), "whether the fit ended by itself"),
        Column("validation_accuracy", pa.float64(), "mean recall on the validation images"),
        Column("accuracy", pa.float64(), "mean recall over all classes, on the test images"),
        Column("accuracy_whole", pa.float64(), "the same over classes that were not thinned"),
        Column("accuracy_thinned", pa.float64(), "the same over thinned classes"),
        Column("recalls", pa.list_(pa.float64()), "recall of each class, by label"),
    ),
)
"""One row per encoder, fraction and draw."""

MAP = TableFormat(
    "map.parquet",
    (
        Column("image_id", pa.string(), "id of the test image"),
        Column("label", pa.int64(), "its class"),
        Column("x", pa.float64(), "place in the t-SNE map of the trained encoder's features"),
        Column("y", pa.float64(), "place in the t-SNE map"),
    ),
)
"""One row per mapped test image."""
