"""Split the reports' findings and impressions into sentences.

Reads the manifest, writes sentences. Minutes for all of MIMIC-CXR on one core.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.tables import TableWriter, read_in_parts
from medclip_dcl.data import manifest
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import SPLITTER

from .job import Job, job_main

_REPORTS_AT_ONCE = 2000  # as Python's objects: they take ten times what a table takes


def build(job: Job) -> None:
    """Make the sentences of every report."""
    inputs, settings = job.open_inputs(), job.config.sentences
    source = inputs.values["manifest"]

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        with TableWriter(writer.directory, sentences.SENTENCES) as table:
            return sentences.split_reports(_reports(source), settings, table.add)

    made_by = {"sentences": settings, "splitter": SPLITTER}
    job.make(sentences.ARTIFACT, made_by, inputs.digests, write)


def _reports(source: Artifact) -> Iterator[list[dict[str, Any]]]:
    parts = read_in_parts(source.path, manifest.REPORTS, manifest.REPORTS.schema.names)
    some = chain.from_iterable(part.to_batches(_REPORTS_AT_ONCE) for part in parts)
    with Progress("split reports", source.summary.get("reports", 0), "report") as progress:
        for batch in some:
            yield batch.to_pylist()
            progress.advance(len(batch))


main = job_main("split_sentences", build)

if __name__ == "__main__":
    sys.exit(main())
