"""Sentences -> claims: which findings each sentence and each report asserts, denies or hedges."""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.tables import TableFormat, read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.text.labeler.labels import (
    FINDINGS,
    ReportLabels,
    read_report,
    reader_digest,
    report_labels_of,
)
from pipelines.job import Job, run_job

_COLUMNS = ("study_id", "text", "text_key")


def build(job: Job) -> None:
    """Read the claims of every sentence, and unite them per report.

    Args:
        job: the job's configuration and folder.
    """
    source = job.open(sentences.ARTIFACT)

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        rows = read_table(source.path, sentences.SENTENCES, _COLUMNS).to_pylist()
        by_key = {row["text_key"]: row["text"] for row in rows}
        readings = {key: read_report(text) for key, text in by_key.items()}
        said = {key: report_labels_of([reading]) for key, reading in readings.items()}
        reports = {
            study: report_labels_of(readings[row["text_key"]] for row in group)
            for study, group in groupby(rows, key=itemgetter("study_id"))
        }
        _write(writer, labels.SENTENCE_CLAIMS, "text_key", said)
        _write(writer, labels.REPORT_CLAIMS, "study_id", reports)
        return _summary([said[row["text_key"]] for row in rows], said, reports)

    job.make(labels.ARTIFACT, {"reader": reader_digest()}, {"sentences": source}, write)


def _write(
    writer: ArtifactWriter, form: TableFormat, name: str, said: Mapping[str, ReportLabels]
) -> None:
    rows = [{name: key, **said[key].to_row()} for key in sorted(said)]
    write_table(writer.directory, form, rows)


def _summary(
    occurrences: Sequence[ReportLabels],
    said: Mapping[str, ReportLabels],
    reports: Mapping[str, ReportLabels],
) -> dict[str, Any]:
    """Count what was read; shares are of sentences as they occur, repeats included."""
    per_finding = {
        kind: dict(Counter(name for claim in reports.values() for name in getattr(claim, kind)))
        for kind in ("asserted", "negated", "uncertain")
    }
    with_claims = sum(map(bool, occurrences)) / max(1, len(occurrences))
    return {
        "sentences": len(occurrences),
        "distinct_sentences": len(said),
        "reports": len(reports),
        "share_with_claims": round(with_claims, 4),
        "normal_reports": sum(claim.normal for claim in reports.values()),
        "reports_per_finding": {
            name: {kind: counts.get(name, 0) for kind, counts in per_finding.items()}
            for name in FINDINGS
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("read_claims", build, argv)


if __name__ == "__main__":
    sys.exit(main())
