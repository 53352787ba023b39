"""Claims: what each sentence, and each report as a whole, says of the 14 findings."""

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
            "asserted", _FINDINGS, "findings asserted, each `Finding` or `Finding|left` / `|right`"
        ),
        Column("negated", _FINDINGS, "findings negated"),
        Column("uncertain", _FINDINGS, "findings hedged"),
        Column("normal", pa.bool_(), "whether it calls the film normal"),
    ),
)
"""One row per distinct sentence, in order of text_key."""

REPORT_CLAIMS = TableFormat(
    "report_claims.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("asserted", _FINDINGS, "findings asserted anywhere in the report, with sides"),
        Column("negated", _FINDINGS, "findings negated and nowhere asserted"),
        Column("uncertain", _FINDINGS, "findings hedged and nowhere asserted"),
        Column("normal", pa.bool_(), "whether it calls the film normal and asserts nothing"),
    ),
)
"""One row per study, in order of study_id."""
