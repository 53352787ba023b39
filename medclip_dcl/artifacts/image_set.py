"""Image set: small labelled images in one table, some classes thinned in the training split.

`train` is thinned; `validate` and `test` are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64, UInt8

from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.artifacts.tables import Column, TableFormat, read_table
from medclip_dcl.errors import ArtifactCorrupt

KIND = Kind("image_set", 1, "prepare_image_set")

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
            raise ArtifactCorrupt(f"an image of {KIND.name} is not whole; rerun {KIND.job}")
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
