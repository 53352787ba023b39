"""Sentences -> claims: which findings each sentence and each report asserts, denies or hedges.

Our labeler reads them, or `claims.table` says what others have read.
"""

import sys
from collections.abc import Mapping
from typing import Any

from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.tables import read_in_parts
from medclip_dcl.data.sources.claims_table import read_claims_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.language import language_warning

from .job import Job, job_main


def build(job: Job) -> None:
    """Read the claims of every sentence, and unite them per report."""
    inputs, config = job.open_inputs(), job.config
    source, table = inputs.values["sentences"], inputs.values.get("claims_table")
    given = None if table is None else read_claims_table(table, config.source.fallback_encoding)

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        distinct = sentences.distinct_sentences(source)
        columns = ("study_id", "text_key")
        rows = read_in_parts(source.path, sentences.SENTENCES, columns, whole="study_id")
        return labels.write_claims(writer.directory, distinct, rows, given)

    artifact = job.make(labels.ARTIFACT, {"reader": labels.reader_digest()}, inputs.digests, write)
    if not job.config.claims.table and (warning := language_warning(artifact.summary["languages"])):
        job.say(warning=warning)


main = job_main("read_claims", build)

if __name__ == "__main__":
    sys.exit(main())
