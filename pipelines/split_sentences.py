"""Split the reports' findings and impressions into sentences.

Reads the manifest, writes sentences. Minutes for all of MIMIC-CXR on one core.
"""

import sys
from collections.abc import Mapping
from typing import Any

from medclip_dcl.artifact_writer import ArtifactWriter
from medclip_dcl.data import manifest
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import SPLITTER

from .job import Job, job_main


def build(job: Job) -> None:
    """Make the sentences of every report."""
    source = job.open(manifest.ARTIFACT)
    settings = job.config.sentences

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        reports = read_table(source.path, manifest.REPORTS).to_pylist()
        table, summary = sentences.split_reports(reports, settings)
        write_table(writer.directory, sentences.SENTENCES, table)
        return summary

    inputs = {"manifest": source}
    job.make(sentences.ARTIFACT, {"sentences": settings, "splitter": SPLITTER}, inputs, write)


main = job_main("split_sentences", build)

if __name__ == "__main__":
    sys.exit(main())
