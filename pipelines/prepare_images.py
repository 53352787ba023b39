"""Decode every film of the manifest and keep it as a square 8-bit picture.

Reads the manifest and the films below `source.root`; writes `prepared`. Films are
written shard by shard, so a killed run goes on after the last whole shard.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_dcl.artifact import Artifact, Draft
from medclip_dcl.config import resolve_path
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.data.manifest import stamp_files
from medclip_dcl.data.prepared import Film, Outcome, write_shards
from medclip_dcl.errors import StudyError
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table, write_table
from pipelines.job import Job, run_job

_SPEED_ALONE = {"workers", "dask_scheduler", "max_reject_share"}
"""Settings that change no pixel."""


def build(job: Job) -> None:
    """Prepare the films of a recipe.

    Args:
        job: the job.
    """
    config = job.config
    source = job.open(manifest.KIND)
    root = resolve_path(config.source.root, config)
    films = _films(source.path)

    def write(draft: Draft) -> Mapping[str, Any]:
        with Progress("prepare images", len(films), unit="film") as progress:
            outcome = write_shards(films, root, draft.directory, config.images, progress.advance)
        summary = _summary(outcome, len(films), config.images)
        rows = [
            {"id": image_id, "stage": job.name, "reason": reason}
            for image_id, reason in outcome.rejects
        ]
        write_table(draft.directory, manifest.REJECTS, rows)
        return summary

    settings = config.images.model_dump(mode="json", exclude=_SPEED_ALONE)
    inputs: dict[str, Artifact | str] = {"manifest": source}
    inputs["films"] = stamp_files(root, (film.path for film in films))
    job.make(prepared.KIND, {"images": settings}, inputs, write)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("prepare_images", build, argv)


def _films(folder: Path) -> list[Film]:
    table = read_table(folder, manifest.IMAGES, ["image_id", "path"])
    return [Film(*row) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def _summary(outcome: Outcome, total: int, settings: ImagesConfig) -> dict[str, Any]:
    reasons = Counter(reason for _, reason in outcome.rejects)
    share = len(outcome.rejects) / total if total else 0.0
    if share > settings.max_reject_share:
        raise StudyError(
            f"{len(outcome.rejects)} of {total} films were refused ({dict(reasons)}), more than "
            f"images.max_reject_share {settings.max_reject_share}; mend them or raise the share"
        )
    return {
        "films": outcome.kept,
        "rejected": len(outcome.rejects),
        "reasons": dict(sorted(reasons.items())),
        "size_px": settings.size_px,
    }


if __name__ == "__main__":
    sys.exit(main())
