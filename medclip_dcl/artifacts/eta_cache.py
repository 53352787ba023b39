"""Eta cache: the class probability of every distinct sentence, sealed."""

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("eta_cache", 1, "build_eta_cache")

ETA = TableFormat(
    "eta.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("eta", pa.float64(), "estimated chance that a random film shares its class, [0, 1)"),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, nats"),
        Column("tokens", pa.int32(), "word pieces"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)
"""One row per distinct sentence, in order of text_key."""
