"""The manifest: the images of a source that can be used, and what was rejected."""

import sys

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.manifest import write_manifest
from medclip_dcl.data.records import Source
from medclip_dcl.data.sources import readers

from .config import Config
from .job import Job, job_main


def source_of(config: Config) -> Source:
    """Read the source that a config names, as `read_source`; no image is decoded."""
    return readers.read_source(config.source, lambda text: resolve_path(text, config.work))


def build_manifest(job: Job) -> None:
    """List the usable images with their reports, labels and boxes, and what was rejected.

    Reads a MIMIC-CXR(-JPG) tree, Open-i, any mapped table or a folder of DICOM files; writes
    `manifest`. A run takes seconds to minutes and starts from the beginning when killed.
    """
    settings = job.config.source
    source = source_of(job.config)
    listed = job.make(
        manifest.ARTIFACT,
        {"source": settings.result_settings()},
        source.inputs,
        lambda writer: write_manifest(writer.directory, source, settings),
    )
    refuse_missing_labels(job.config, listed)


def refuse_missing_labels(config: Config, listed: Artifact) -> None:
    """Refuse a config that trains by labels, where a manifest has none: now and not hours later.

    Raises:
        ConfigError: a setting reads labels, and no study has any.
    """
    readers = {
        "objective.negatives: remove_labels": config.objective.negatives == "remove_labels",
        "objective.relation: labels": config.objective.relation == "labels",
    }
    wanting = [name for name, reads in readers.items() if reads]
    if wanting and not manifest.read_labels(listed).num_rows:
        raise ConfigError(
            f"{' and '.join(wanting)}: no study of the source has labels; name them in "
            "source.columns.labels or source.labels, or choose another value"
        )


main = job_main("build_manifest", build_manifest)

if __name__ == "__main__":
    sys.exit(main())
