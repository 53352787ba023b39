"""Sentences: one row per usable sentence of a report, and the key that names its text."""

import hashlib

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.artifacts.tables import Column, TableFormat, read_table

KIND = Kind("sentences", 1, "split_sentences")

NORMALISATION = "whitespace collapsed, case and marks kept"
"""Names what `normalise_text` does; part of the recipe of everything that is keyed by text."""

SENTENCES = TableFormat(
    "sentences.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test"),
        Column("section", pa.string(), "findings, impression or last_paragraph"),
        Column("position", pa.int32(), "place of the sentence in its section, from 0"),
        Column("text", pa.string(), "the sentence, whitespace collapsed, case and full stop kept"),
        Column("text_key", pa.string(), "`text_key` of the text"),
    ),
)
"""In order of study_id, section and position."""


def normalise_text(text: str) -> str:
    """Bring a sentence into the form that is keyed, scored and trained on.

    Args:
        text: any text.

    Returns:
        The text with every run of whitespace replaced by one space, and none at the ends.
    """
    return " ".join(text.split())


def text_key(text: str) -> str:
    """Name a sentence by its text.

    Args:
        text: the sentence; it is normalised first.

    Returns:
        32 hexadecimal digits: half of the SHA-256 of the normalised text.
    """
    return hashlib.sha256(normalise_text(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def distinct_sentences(artifact: Artifact) -> pa.Table:
    """List every distinct sentence with how often the training split says it.

    Args:
        artifact: sentences.

    Returns:
        Columns text_key, text, count (occurrences in the training split, int32) and
        reports (training reports that contain it, int32), in order of text_key.
    """
    table = read_table(artifact.path, SENTENCES, ["study_id", "split", "text", "text_key"])
    texts = table.group_by("text_key").aggregate([("text", "min")])
    training = table.filter(pc.equal(table["split"], "train"))
    counts = training.group_by("text_key").aggregate(
        [("study_id", "count"), ("study_id", "count_distinct")]
    )
    joined = texts.join(counts, "text_key").sort_by("text_key")
    return pa.table(
        {
            "text_key": joined["text_key"],
            "text": joined["text_min"],
            "count": pc.fill_null(joined["study_id_count"], 0).cast(pa.int32()),
            "reports": pc.fill_null(joined["study_id_count_distinct"], 0).cast(pa.int32()),
        }
    )


def training_reports(artifact: Artifact) -> int:
    """Count the reports of the training split that have a sentence.

    Args:
        artifact: sentences.

    Returns:
        Distinct studies.
    """
    table = read_table(artifact.path, SENTENCES, ["study_id", "split"])
    return len(table.filter(pc.equal(table["split"], "train"))["study_id"].unique())
