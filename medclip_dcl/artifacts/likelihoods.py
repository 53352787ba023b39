"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once."""

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.artifacts.files import write_bytes
from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat, read_table
from medclip_dcl.errors import ArtifactCorrupt

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

_UNIT_COLUMNS = LIKELIHOODS.columns[:3]


def write_unit(folder: Path, name: str, scores: pa.Table) -> None:
    """Acknowledge one unit of work: after a kill the file is there whole or not at all.

    Args:
        folder: folder of the units.
        name: name of the unit.
        scores: columns text_key, pll_nats and tokens.
    """
    buffer = io.BytesIO()
    table = scores.cast(_unit(name).schema)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    write_bytes(folder / _unit(name).file, buffer.getvalue())


def read_unit(folder: Path, name: str, keys: Sequence[str]) -> pa.Table | None:
    """Read a unit that an earlier run acknowledged.

    Args:
        folder: folder of the units.
        name: name of the unit.
        keys: the text keys that it must hold, in order.

    Returns:
        Its scores, or None where the unit is missing, damaged or holds other keys.
    """
    try:
        table = read_table(folder, _unit(name))
    except ArtifactCorrupt:
        return None
    return table if table["text_key"].to_pylist() == list(keys) else None


def _unit(name: str) -> TableFormat:
    return TableFormat(f"{name}.parquet", _UNIT_COLUMNS)
