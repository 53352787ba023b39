"""Which labelled images train, validate and test, and which classes are made rare.

Only the training split is thinned. Everything is drawn class by class from the seed, so
that a smaller r keeps a part of what a larger one keeps, and test and validation images
are the same at every r.

Labelled images without text: scikit-learn's digits, Parquet tables, or folders by class.
"""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int64, UInt8
from sklearn.datasets import load_digits

from medclip_dcl.data.raster import read_picture, resize_picture
from medclip_dcl.data.tabular import read_any
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.files import path_under, sha256_file
from medclip_dcl.image_only.settings import ImageSetConfig

Rows = Int64[np.ndarray, " rows"]


@dataclass(frozen=True)
class Division:
    """Rows of the source's training images that each split takes, ascending."""

    train: Rows
    validate: Rows
    test: Rows
    """Empty where the source has test images of its own."""


def divide(
    labels: Int64[np.ndarray, " images"],
    thinned: Collection[int],
    r: float,
    *,
    per_class: int,
    validate_share: float,
    test_per_class: int,
    seed: int,
) -> Division:
    """Divide a source's training images.

    Args:
        labels: class of each image.
        thinned: classes that are thinned.
        r: share of a thinned class that stays, in (0, 1].
        per_class: most training images of a class, before thinning; 0: all.
        validate_share: share of a class that is kept back, at least one image.
        test_per_class: images of a class that are kept back before that; 0 where the source
            has test images of its own.
        seed: seed of the draw.

    Returns:
        The division. A thinned class keeps round(r n) of its n images, at least one.

    Source: Wang et al. 2023, Section 3.1 (CIFAR10-r); thinning in `train` alone is ours.
    """
    parts: dict[str, list[Rows]] = {"train": [], "validate": [], "test": []}
    for label in np.unique(labels).tolist():
        rows = draw_rows(labels, label, seed)
        test, rest = rows[:test_per_class], rows[test_per_class:]
        held_out = max(1, round(validate_share * len(rest)))
        pool = rest[held_out:][: per_class or None]
        kept = max(1, round(r * len(pool))) if label in thinned else len(pool)
        parts["test"].append(test)
        parts["validate"].append(rest[:held_out])
        parts["train"].append(pool[:kept])
    return Division(**{name: np.sort(np.concatenate(rows)) for name, rows in parts.items()})


def draw_rows(labels: Int64[np.ndarray, " images"], label: int, seed: int) -> Rows:
    """Put the images of one class into a random order.

    Args:
        labels: class of each image.
        label: the class.
        seed: seed of the draw.

    Returns:
        Their rows.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, label])))
    return generator.permutation(np.flatnonzero(labels == label).astype(np.int64))


_SUFFIXES = {".jpg", ".jpeg", ".png"}


@dataclass(frozen=True)
class LabelledImages:
    """Images of one split of a source, each decoded when it is asked for."""

    image_ids: Sequence[str]
    labels: Int64[np.ndarray, " images"]
    picture: Callable[[int], UInt8[np.ndarray, "channels size size"]]
    """Row -> image; raises ImageError."""

    def pixels(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[np.ndarray, "rows c size size"]:
        """Decode some images.

        Args:
            rows: which, at least one.

        Returns:
            The images.

        Raises:
            StudyError: one cannot be read.
        """
        pictures = []
        for row in rows.tolist():
            try:
                pictures.append(self.picture(row))
            except ImageError as error:
                raise StudyError(
                    f"image {self.image_ids[row]} of the set cannot be read ({error.code}); "
                    "repair or remove it"
                ) from error
        return np.stack(pictures)


@dataclass(frozen=True)
class ImageSource:
    """A source of labelled images."""

    names: tuple[str, ...]
    """Classes, by label."""
    train: LabelledImages
    test: LabelledImages | None
    """None where the source has no test split of its own."""
    digests: dict[str, str]
    """What the images are made from."""


def open_source(settings: ImageSetConfig, root: Path | None) -> ImageSource:
    """Open a source of labelled images.

    Args:
        settings: its kind, columns and size.
        root: folder of the tables or image folders; None for `digits`.

    Returns:
        The source.

    Raises:
        StudyError: it cannot be read as a whole, or its classes are not those thinned.
    """
    if settings.kind == "digits":
        source = _digits(settings)
    elif root is None:
        raise StudyError(f"image_set.kind {settings.kind!r} reads no files here; set its root")
    else:
        source = _tables(settings, root) if settings.kind == "parquet" else _folders(settings, root)
    if unknown := sorted(set(settings.thinned) - set(source.names)):
        raise StudyError(
            f"image_set.thinned names {unknown}, which are no classes of the source; its classes "
            f"are {list(source.names)[:40]}"
        )
    return source


def _digits(settings: ImageSetConfig) -> ImageSource:
    raw = load_digits()

    def picture(row: int) -> UInt8[np.ndarray, "channels size size"]:
        grey = np.rint(raw.images[row] * (255 / 16)).astype(np.uint8)
        whole = resize_picture(grey[None], settings.size_px)
        return np.repeat(whole, settings.channels, axis=0)

    images = LabelledImages(
        [f"digits/{row}" for row in range(len(raw.target))], raw.target.astype(np.int64), picture
    )
    names = tuple(str(name) for name in raw.target_names)
    return ImageSource(names, images, None, {"digits": f"scikit-learn {version('scikit-learn')}"})


def _tables(settings: ImageSetConfig, root: Path) -> ImageSource:
    splits: dict[str, LabelledImages] = {}
    digests: dict[str, str] = {}
    names: tuple[str, ...] | None = None
    for split in ("train", "test"):
        files = sorted(root.glob(f"{split}*.parquet"))
        if not files:
            raise StudyError(f"no {split}*.parquet in {root}; set image_set.root to their folder")
        digests |= {file.name: sha256_file(file) for file in files}
        table = pa.concat_tables([read_any(file) for file in files])
        splits[split] = _rows_of(table, split, settings)
        names = names or _names_in(table.schema, settings.label_column)
    highest = max(int(images.labels.max()) for images in splits.values())
    names = names or tuple(str(label) for label in range(highest + 1))
    if highest >= len(names):
        raise StudyError(f"a table names {len(names)} classes and holds label {highest}")
    return ImageSource(names, splits["train"], splits["test"], digests)


def _rows_of(table: pa.Table, split: str, settings: ImageSetConfig) -> LabelledImages:
    missing = {settings.image_column, settings.label_column} - set(table.column_names)
    if missing or not len(table):
        raise StudyError(
            f"table of {split} lacks rows or the columns {sorted(missing)}, it has "
            f"{table.column_names[:40]}; set image_set.image_column and image_set.label_column"
        )
    column, labels = table[settings.image_column], table[settings.label_column]
    if labels.null_count or column.null_count or not pa.types.is_integer(labels.type):
        raise StudyError(f"table of {split} has a label that is no whole number, or an empty cell")

    def picture(row: int) -> UInt8[np.ndarray, "channels size size"]:
        cell: Any = column[row].as_py()
        data = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(data, bytes):
            raise ImageError("unknown_format", "the cell holds no bytes")
        return read_picture(data, settings.channels, settings.size_px)

    ids = [f"{split}/{row}" for row in range(len(table))]
    return LabelledImages(ids, labels.to_numpy().astype(np.int64), picture)


def _names_in(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    """Class names, where the table says them as `datasets` does."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (KeyError, ValueError, TypeError):
        return None


def _folders(settings: ImageSetConfig, root: Path) -> ImageSource:
    names = _class_folders(root / "train")
    splits: dict[str, LabelledImages] = {}
    digests: dict[str, str] = {}
    for split in ("train", "test"):
        if strange := set(_class_folders(root / split)) - set(names):
            raise StudyError(f"{split}/ has {len(strange)} class folders that train/ has not")
        entries = [
            (f"{split}/{name}/{file.name}", label)
            for label, name in enumerate(names)
            for file in sorted((root / split / name).glob("*"))
            if file.suffix.lower() in _SUFFIXES
        ]
        if not entries:
            raise StudyError(f"no JPEG or PNG under {root / split}/CLASS; set image_set.root")
        digests |= {name: sha256_file(path_under(root, name)) for name, _ in entries}
        splits[split] = _files(root, entries, split, settings)
    return ImageSource(names, splits["train"], splits["test"], digests)


def _class_folders(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise StudyError(f"no folder {folder}; image_set.root must hold train/ and test/")
    return tuple(sorted(item.name for item in folder.iterdir() if item.is_dir()))


def _files(
    root: Path, entries: Sequence[tuple[str, int]], split: str, settings: ImageSetConfig
) -> LabelledImages:
    def picture(row: int) -> UInt8[np.ndarray, "channels size size"]:
        data = path_under(root, entries[row][0]).read_bytes()
        return read_picture(data, settings.channels, settings.size_px)

    ids = [f"{split}/{row}" for row in range(len(entries))]
    return LabelledImages(ids, np.array([label for _, label in entries], dtype=np.int64), picture)
