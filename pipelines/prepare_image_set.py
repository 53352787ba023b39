"""Decode a labelled image set, thin some classes, and keep its three splits in one table.

Reads `image_set.root`, or scikit-learn's digits; writes `image_set`. The image-only
experiment begins here; no study is read.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.errors import ConfigError
from medclip_dcl.image_only import artifacts
from medclip_dcl.image_only.artifacts import CLASSES, IMAGES, image_rows
from medclip_dcl.image_only.data import ImageSource, LabelledImages, divide, draw_rows, open_source
from medclip_dcl.progress import Progress
from medclip_dcl.tables import write_table
from pipelines.job import Job, run_job

_BLOCK = 2048


def build(job: Job) -> None:
    """Make the image set.

    Args:
        job: the job.

    Raises:
        ConfigError: the recipe names no image set, or digits without a test split.
    """
    settings = job.config.image_set
    if settings.kind == "none":
        raise ConfigError("image_set.kind is none; an image-only recipe names its images")
    if settings.kind == "digits" and not settings.test_per_class:
        raise ConfigError("scikit-learn's digits have no test split; set image_set.test_per_class")
    root = None if settings.kind == "digits" else resolve_path(settings.root, job.config)
    source = open_source(settings, root)
    plain = settings.model_dump(mode="json", exclude={"root"})  # the digests say what was read
    job.make(
        artifacts.IMAGE_SET,
        {"image_set": plain, "seed": job.config.seed},
        source.digests,
        lambda draft: _write(job.config, source, draft),
    )


def _write(config: Config, source: ImageSource, writer: ArtifactWriter) -> dict[str, Any]:
    settings = config.image_set
    thinned = {source.names.index(name) for name in settings.thinned}
    parts = divide(
        source.train.labels,
        thinned,
        settings.r,
        per_class=settings.per_class,
        validate_share=settings.validate_share,
        test_per_class=settings.test_per_class if source.test is None else 0,
        seed=config.seed,
    )
    test, test_rows = source.train, parts.test
    if source.test is not None:
        test, test_rows = source.test, _test_rows(source.test, settings.test_per_class, config.seed)
    chosen = {
        "train": (source.train, parts.train),
        "validate": (source.train, parts.validate),
        "test": (test, test_rows),
    }
    total = sum(len(rows) for _, rows in chosen.values())
    with Progress("images decoded", total, "image") as progress:
        tables = [
            table
            for split, (images, rows) in chosen.items()
            for table in _blocks(split, images, rows, progress)
        ]
    write_table(writer.directory, IMAGES, pa.concat_tables(tables))
    counts = {
        split: np.bincount(images.labels[rows], minlength=len(source.names)).tolist()
        for split, (images, rows) in chosen.items()
    }
    rows = [
        {"name": name, "is_thinned": label in thinned, **{s: counts[s][label] for s in counts}}
        for label, name in enumerate(source.names)
    ]
    write_table(writer.directory, CLASSES, rows)
    return {
        **{split: sum(of_class) for split, of_class in counts.items()},
        "classes": len(source.names),
        "thinned": len(thinned),
        "r": settings.r,
        "size_px": settings.size_px,
        "channels": settings.channels,
    }


def _blocks(
    split: str, images: LabelledImages, rows: np.ndarray, progress: Progress
) -> list[pa.Table]:
    tables = []
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        ids = [images.image_ids[row] for row in block.tolist()]
        tables.append(image_rows(split, ids, images.labels[block], images.pixels(block)))
        progress.advance(len(block))
    return tables


def _test_rows(images: LabelledImages, per_class: int, seed: int) -> np.ndarray:
    if not per_class:
        return np.arange(len(images.labels))
    drawn = [
        draw_rows(images.labels, label, seed)[:per_class]
        for label in np.unique(images.labels).tolist()
    ]
    return np.sort(np.concatenate(drawn))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("prepare_image_set", build, argv)


if __name__ == "__main__":
    sys.exit(main())
