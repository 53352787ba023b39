"""Decode every image of the manifest and keep it as a square 8-bit picture.

Reads the manifest and the images below `source.root`; writes `prepared`. Images are
written shard by shard, so a killed run resumes after the last whole shard.
"""

import sys
from contextlib import suppress

from medclip_dcl.artifact import Artifact, ArtifactType, make_fingerprint
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.row_images import stamp_files
from medclip_dcl.data.shard_cache import open_stored, upload
from medclip_dcl.errors import ArtifactMissing, ArtifactStale
from medclip_dcl.files import cache_root
from medclip_dcl.settings import resolve_path
from medclip_sources import readers
from medclip_sources.object_store import open_bucket

from .config import Config
from .job import Job, job_main


def build(job: Job) -> None:
    """Prepare the images, and copy them to `images.store`."""
    config = job.config
    source = job.open(manifest.ARTIFACT)
    root = readers.images_root(config.source, lambda text: resolve_path(text, config.work))
    images = prepared.list_images(source)
    stamp = stamp_files(root, (image.path for image in images))
    most, workers = config.source.max_reject_share, config.workers
    settings = {"images": config.images.result_settings()}
    inputs: dict[str, Artifact | str] = {"manifest": source, "images": stamp}
    if config.images.store and not job.force:
        with suppress(ArtifactMissing, ArtifactStale):
            stored = job.open(prepared.ARTIFACT)
            if stored.fingerprint == make_fingerprint(prepared.ARTIFACT, settings, inputs):
                job.say(
                    artifact=prepared.ARTIFACT.name, state="reused", images=stored.summary["images"]
                )
                return
    made = job.make(
        prepared.ARTIFACT,
        settings,
        inputs,
        lambda writer: prepared.prepare_images(
            writer.directory, images, root, config.images, most, workers
        ),
    )
    if config.images.store:
        upload(made, open_bucket(config.images.store, "images.store"))
        job.say(copied_to="images.store")


def open_store(config: Config, kind: ArtifactType) -> Artifact:
    """Open the prepared images in `images.store`, by way of the cache of this machine."""
    bucket = open_bucket(config.images.store, "images.store")
    return open_stored(bucket, kind, cache_root() / kind.name, int(1e9 * config.images.cache_gb))


main = job_main("prepare_images", build)

if __name__ == "__main__":
    sys.exit(main())
