"""Split the reports' findings and impressions into sentences.

Reads the manifest, writes sentences. Minutes for all of MIMIC-CXR on one core.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from medclip_dcl.artifact import Artifact, ArtifactWriter
from medclip_dcl.data import manifest
from medclip_dcl.progress import Progress
from medclip_dcl.tables import read_table, write_table
from medclip_dcl.text import sentences
from medclip_dcl.text.sentences import MASK, RULES, SPLITTER, SentencesConfig, Split, split_sections
from pipelines.job import Job, run_job

_CHUNK = 2000


def build(job: Job) -> None:
    """Make the sentences of every report.

    Args:
        job: the job's frame.
    """
    source = job.open(manifest.ARTIFACT)
    settings = job.config.sentences
    job.make(
        sentences.ARTIFACT,
        {"sentences": settings, "splitter": SPLITTER},
        {"manifest": source},
        lambda draft: _write(draft, source, settings),
    )


def _write(
    writer: ArtifactWriter, source: Artifact, settings: SentencesConfig
) -> Mapping[str, Any]:
    reports = read_table(source.path, manifest.REPORTS).to_pylist()
    parts = [(report, name) for report in reports for name in used_sections(report, settings)]
    splits = _split(sorted({report[name] for report, name in parts}), settings)
    rows = [
        {
            "study_id": report["study_id"],
            "subject_id": report["subject_id"],
            "split": report["split"],
            "section": name,
            "position": index,
            "text": text,
            "text_key": sentences.text_key(text),
        }
        for report, name in parts
        for index, text in splits[report[name]].sentences
    ]
    rows.sort(key=lambda row: (row["study_id"], row["section"], row["position"]))
    write_table(writer.directory, sentences.SENTENCES, rows)
    return {
        "reports": len(reports),
        "sections": len(parts),
        "distinct_sections": len(splits),
        **_counts(rows),
        **_losses([splits[report[name]] for report, name in parts]),
    }


def used_sections(report: Mapping[str, str], settings: SentencesConfig) -> list[str]:
    """Name the sections of a report that are used: those asked for, or what stands in for them.

    Args:
        report: name of a section -> its text, empty where there is none.
        settings: the sections asked for.

    Returns:
        Names of sections with text.
    """
    present = [name for name in settings.sections if report[name]]
    return present or (["last_paragraph"] if report["last_paragraph"] else [])


def _split(texts: Sequence[str], settings: SentencesConfig) -> dict[str, Split]:
    splits: dict[str, Split] = {}
    with Progress("split sections", len(texts), "section") as progress:
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            splits.update(split_sections(chunk, settings))
            progress.advance(len(chunk))
    return splits


def _counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    total = len(rows)
    masked = sum(bool(MASK.search(row["text"])) for row in rows)
    return {
        "reports_with_sentences": len({row["study_id"] for row in rows}),
        "sentences": total,
        "unique": len({row["text_key"] for row in rows}),
        "training_sentences": sum(row["split"] == "train" for row in rows),
        "masked_share": round(masked / total, 6) if total else 0.0,
    }


def _losses(splits: Sequence[Split]) -> dict[str, Any]:
    """Count so that plain_sentences + separated - all that was dropped = sentences."""
    dropped: Counter[str] = Counter()
    for split in splits:
        dropped.update(split.dropped)
    return {
        "plain_sentences": sum(split.plain for split in splits),
        "separated": sum(split.separated for split in splits),
        **{f"dropped_{rule}": dropped[rule] for rule in RULES},
        "truncated_sentences": sum(split.truncated_sentences for split in splits),
        "truncated_sections": sum(split.truncated_sections for split in splits),
        "unsegmented_sections": sum(split.unsegmented for split in splits),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job."""
    return run_job("split_sentences", build, argv)


if __name__ == "__main__":
    sys.exit(main())
