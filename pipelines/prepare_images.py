"""Decode every image of the manifest and keep it as a square 8-bit picture.

Reads the manifest and the images below `source.root`; writes `prepared`. Images are
written shard by shard, so a killed run goes on after the last whole shard.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_dcl.artifact import Artifact, ArtifactWriter
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.data.manifest import stamp_files
from medclip_dcl.data.prepared import ListedImage, PrepareResult, write_shards
from medclip_dcl.errors import StudyError
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table, write_table
from pipelines.job import Job, run_job

_SPEED_ALONE = {"workers", "dask_scheduler", "max_reject_share"}
"""Settings that change no pixel."""


def build(job: Job) -> None:
    """Prepare the images of a recipe.

    Args:
        job: the job.
    """
    config = job.config
    source = job.open(manifest.ARTIFACT)
    root = resolve_path(config.source.root, config)
    images = _images(source.path)

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        with Progress("prepare images", len(images), unit="image") as progress:
            outcome = write_shards(images, root, writer.directory, config.images, progress.advance)
        summary = _summary(outcome, len(images), config.images)
        rows = [
            {"id": image_id, "stage": job.name, "reason": reason}
            for image_id, reason in outcome.rejects
        ]
        write_table(writer.directory, manifest.REJECTS, rows)
        return summary

    settings = config.images.model_dump(mode="json", exclude=_SPEED_ALONE)
    inputs: dict[str, Artifact | str] = {"manifest": source}
    inputs["images"] = stamp_files(root, (image.path for image in images))
    job.make(prepared.ARTIFACT, {"images": settings}, inputs, write)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("prepare_images", build, argv)


def _images(folder: Path) -> list[ListedImage]:
    table = read_table(folder, manifest.IMAGES, ["image_id", "path"])
    return [ListedImage(*row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def _summary(outcome: PrepareResult, total: int, settings: ImagesConfig) -> dict[str, Any]:
    reasons = Counter(reason for _, reason in outcome.rejects)
    share = len(outcome.rejects) / total if total else 0.0
    if share > settings.max_reject_share:
        raise StudyError(
            f"{len(outcome.rejects)} of {total} images were refused ({dict(reasons)}), more than "
            f"images.max_reject_share {settings.max_reject_share}; mend them or raise the share"
        )
    return {
        "images": outcome.kept,
        "rejected": len(outcome.rejects),
        "reasons": dict(sorted(reasons.items())),
        "size_px": settings.size_px,
    }


if __name__ == "__main__":
    sys.exit(main())
