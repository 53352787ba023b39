"""Sentences -> claims: which findings each sentence and each report asserts, denies or hedges."""

import sys
from collections.abc import Mapping
from typing import Any

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

from .job import Job, job_main


def build(job: Job) -> None:
    """Read the claims of every sentence, and unite them per report."""
    source = job.open(sentences.ARTIFACT)

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        columns = ("study_id", "text", "text_key")
        rows = read_table(source.path, sentences.SENTENCES, columns).to_pylist()
        return labels.write_claims(writer.directory, rows)

    job.make(labels.ARTIFACT, {"reader": labels.reader_digest()}, {"sentences": source}, write)


main = job_main("read_claims", build)

if __name__ == "__main__":
    sys.exit(main())
