"""Decode every image of the manifest and keep it as a square 8-bit picture.

Reads the manifest and the images below `source.root`; writes `prepared`. Images are
written shard by shard, so a killed run resumes after the last whole shard.
"""

import sys

from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import prepared
from medclip_dcl.data.records import stamp_files
from medclip_dcl.data.sources import readers

from .job import Job, job_main


def build(job: Job) -> None:
    """Prepare the images."""
    config, inputs = job.config, job.open_inputs()
    root = readers.images_root(config.source, lambda text: resolve_path(text, config.work))
    images = prepared.list_images(inputs.values["manifest"])
    job.make(
        prepared.ARTIFACT,
        {"images": config.images.result_settings()},
        {**inputs.digests, "images": stamp_files(root, (image.path for image in images))},
        lambda writer: prepared.prepare_images(
            writer.directory,
            images,
            root,
            config.images,
            config.source.max_reject_share,
            config.workers,
        ),
    )


main = job_main("prepare_images", build)

if __name__ == "__main__":
    sys.exit(main())
