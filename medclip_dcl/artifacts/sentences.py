"""Sentences: one row per usable sentence of a report, and the key that names its text."""

import hashlib

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("sentences", 1, "split_sentences")

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
