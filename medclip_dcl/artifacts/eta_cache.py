"""Eta cache: the class probability of every distinct sentence, sealed, read by memory map."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.artifacts.sentences import text_key
from medclip_dcl.artifacts.tables import Column, TableFormat, read_table
from medclip_dcl.errors import ConfigError, ScoreError

KIND = Kind("eta_cache", 2, "build_eta_cache")

ETA = TableFormat(
    "eta.arrow",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column("eta", pa.float64(), "estimated chance that a random film shares its class, [0, 1)"),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, nats; null unless eta needs it"),
        Column("tokens", pa.int32(), "word pieces; null unless eta needs the likelihood"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)
"""One row per distinct sentence, in order of text_key."""

_KEY_BYTES = 32


class EtaCache:
    """Gives the eta of a sentence by its key; keys and values stay in the mapped file.

    Args:
        artifact: a sealed eta cache.

    Raises:
        ArtifactCorrupt: the file cannot be read.
        ScoreError: the keys are out of order, or an eta is not in [0, 1).
    """

    def __init__(self, artifact: Artifact) -> None:
        table = read_table(artifact.path, ETA, ["text_key", "eta"])
        self.digest = artifact.digest
        self._keys = _mapped_keys(table["text_key"])
        self._eta = table["eta"].to_numpy()
        if (self._keys[1:] <= self._keys[:-1]).any():
            raise ScoreError("the eta cache is not in order of text_key; rerun build_eta_cache")
        wrong = np.flatnonzero(~((self._eta >= 0) & (self._eta < 1)))
        if len(wrong):
            raise ScoreError(
                f"{len(wrong)} etas are not in [0, 1), the first of the sentence with key "
                f"{self._keys[wrong[0]].decode()}; rerun build_eta_cache"
            )

    def __len__(self) -> int:
        return len(self._keys)

    def eta_of(self, keys: Sequence[str]) -> np.ndarray:
        """Look sentences up.

        Args:
            keys: text keys, repeats allowed.

        Returns:
            Their etas in order, float64.

        Raises:
            ScoreError: a key is not in the cache.
        """
        asked = np.asarray(keys, dtype="S32")
        place = np.searchsorted(self._keys, asked)
        found = place < len(self._keys)
        found[found] = self._keys[place[found]] == asked[found]
        if not found.all():
            first = keys[int(np.argmin(found))]
            raise ScoreError(
                f"{int((~found).sum())} sentences have no eta, the first with key {first}; "
                "rerun split_sentences, score_sentences and build_eta_cache"
            )
        eta: np.ndarray = self._eta[place]
        return eta


def _mapped_keys(column: pa.ChunkedArray) -> np.ndarray:
    """View 32-byte keys as one array without a copy."""
    keys = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    _, offsets, data = keys.buffers()
    count = len(keys)
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + count + 1]
    if keys.null_count or (np.diff(ends) != _KEY_BYTES).any():
        raise ScoreError("the eta cache holds a malformed text_key; rerun build_eta_cache")
    if not count:
        return np.empty(0, f"S{_KEY_BYTES}")
    return np.frombuffer(data, f"S{_KEY_BYTES}", count, int(ends[0]))


def read_given_table(path: Path, form: Callable[[str], str]) -> dict[str, float]:
    """Read class probabilities that someone gives for sentences.

    Args:
        path: CSV with a column `text` and a column `eta` or `rho`.
        form: brings a text into the form in which the corpus keeps sentences.

    Returns:
        Text key -> value.

    Raises:
        ConfigError: the file cannot be read, lacks a column, holds a value outside
            [0, 1], or two different values for one sentence.
    """
    options = pa_csv.ConvertOptions(
        column_types={"text": pa.string(), "eta": pa.float64(), "rho": pa.float64()}
    )
    try:
        table = pa_csv.read_csv(path, convert_options=options)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError("eta.table cannot be read as CSV with columns text and eta") from error
    values = next((name for name in ("eta", "rho") if name in table.column_names), None)
    if values is None or "text" not in table.column_names:
        raise ConfigError("eta.table has no columns text and eta (or rho); add them")
    given: dict[str, float] = {}
    for text, value in zip(table["text"].to_pylist(), table[values].to_pylist(), strict=True):
        if text is None or value is None or not 0 <= value <= 1:
            raise ConfigError("eta.table has a row without text or a value in [0, 1]; mend it")
        if given.setdefault(text_key(form(text)), value) != value:
            raise ConfigError("eta.table gives one sentence two values; keep one row of each")
    return given
