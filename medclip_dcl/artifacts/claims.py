"""Claims: what each sentence, and each report as a whole, says of the 13 findings."""

from collections.abc import Iterable, Mapping, Set

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("claims", 1, "read_claims")

_FINDINGS = pa.list_(pa.string())

SENTENCE_CLAIMS = TableFormat(
    "sentence_claims.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column(
            "asserted", _FINDINGS, "findings asserted, each `Finding`, `Finding|left` or `|right`"
        ),
        Column("negated", _FINDINGS, "findings negated"),
        Column("uncertain", _FINDINGS, "findings hedged"),
        Column("normal", pa.bool_(), "whether it calls the film or the lungs normal"),
    ),
)
"""One row per distinct sentence, in order of text_key."""

REPORT_CLAIMS = TableFormat(
    "report_claims.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("asserted", _FINDINGS, "findings asserted anywhere in the report, with sides"),
        Column("negated", _FINDINGS, "findings negated and nowhere asserted or hedged"),
        Column("uncertain", _FINDINGS, "findings hedged and nowhere asserted"),
        Column("normal", pa.bool_(), "whether it calls the film normal and asserts nothing"),
    ),
)
"""One row per study, in order of study_id."""


def join_sides(asserted: Mapping[str, Set[str]]) -> list[str]:
    """Write asserted findings as the tables keep them.

    Args:
        asserted: finding -> sides; an empty set where none is named.

    Returns:
        Sorted `Finding` (no side) and `Finding|side` entries.
    """
    return sorted(
        entry
        for name, sides in asserted.items()
        for entry in ([f"{name}|{side}" for side in sides] or [name])
    )


def split_sides(entries: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read asserted findings back from a table's entries.

    Args:
        entries: what `join_sides` wrote.

    Returns:
        Finding -> sides.
    """
    found: dict[str, frozenset[str]] = {}
    for entry in entries:
        name, _, side = entry.partition("|")
        found[name] = found.get(name, frozenset()) | ({side} if side else frozenset())
    return found
