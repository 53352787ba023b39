"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once."""

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("likelihoods", 1, "score_sentences")

LIKELIHOODS = TableFormat(
    "likelihoods.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, sum over word pieces, nats, <= 0"),
        Column("tokens", pa.int32(), "word pieces, [CLS] and [SEP] left out"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)
"""One row per distinct sentence, in order of text_key."""
