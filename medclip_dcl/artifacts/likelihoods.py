"""Likelihoods: the pseudo-log-likelihood of every distinct sentence, scored once."""

import io
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.artifacts import sentences
from medclip_dcl.artifacts.files import write_bytes
from medclip_dcl.artifacts.frame import Artifact, Kind, changed_parts
from medclip_dcl.artifacts.language_model import model_digest, tokenizer_digest
from medclip_dcl.artifacts.tables import Column, TableFormat, read_table
from medclip_dcl.config.text import LikelihoodConfig
from medclip_dcl.errors import ArtifactCorrupt, ArtifactStale

KIND = Kind("likelihoods", 1, "score_sentences", costly=True)

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

PARTS = "parts"
"""Folder, in the draft, of what has been acknowledged."""

_PART_COLUMNS = (
    Column("text_key", pa.string(), "`text_key` of the sentence"),
    Column("first", pa.int32(), "first word piece of the span that was scored, from 0"),
    Column("last", pa.int32(), "the word piece after the span"),
    Column("pll_nats", pa.float64(), "sum over the span, nats"),
)


def score_header(
    source: Artifact, model: Artifact | None, settings: LikelihoodConfig
) -> dict[str, str]:
    """List what scores depend on beside the sentences' texts.

    Args:
        source: the sentences.
        model: the language model; None: what depends on it is left out.
        settings: how sentences are scored.

    Returns:
        Names and values; part of the recipe of likelihoods.
    """
    header = {
        "variant": settings.variant,
        "dtype": settings.dtype,
        "splitter": str(source.recipe["settings"].get("splitter", "")),
        "normalisation": sentences.NORMALISATION,
    }
    if model is not None:
        header["model"] = model_digest(model)
        header["tokenizer"] = tokenizer_digest(model)
    return header


def refuse_other_scores(artifact: Artifact, header: Mapping[str, str]) -> None:
    """Refuse likelihoods that were scored otherwise than is asked now.

    Args:
        artifact: likelihoods.
        header: what is asked, from `score_header`.

    Raises:
        ArtifactStale: a value differs; the message names each.
    """
    said = artifact.recipe["settings"]
    found = {name: said[name] for name in header if name in said}
    differences = changed_parts(found, {name: header[name] for name in found})
    if differences:
        raise ArtifactStale(
            f"the likelihoods were scored otherwise ({'; '.join(differences)}); rerun "
            "score_sentences, or set these back"
        )


class ScoreJournal:
    """Acknowledges scores: after a kill a part is there whole or not at all.

    Several processes may keep journals in one folder.

    Args:
        folder: folder of the parts.
        flush_every_s: seconds that a score may wait to be written, as far as the next one
            can be foreseen.
        clock: gives the time, seconds.
    """

    def __init__(
        self, folder: Path, flush_every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._every_s, self._clock = folder, flush_every_s, clock
        self._waiting: list[pa.Table] = []
        self._name = _new_name()
        self._flushed = self._added = clock()

    def add(self, rows: pa.Table) -> None:
        """Take scores, and write them and those that wait when the next would come too late.

        Args:
            rows: columns text_key, first, last and pll_nats.
        """
        self._waiting.append(rows)
        now = self._clock()
        next_s = now - self._added  # the next scores will take as long as these did
        self._added = now
        if now - self._flushed + next_s >= self._every_s:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            form = TableFormat(f"{self._name}.parquet", _PART_COLUMNS)
            table = pa.concat_tables(self._waiting).cast(form.schema)
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
            write_bytes(self._folder / form.file, buffer.getvalue())
            self._waiting, self._name = [], _new_name()
        self._flushed = self._clock()


def read_parts(folder: Path) -> tuple[pa.Table, int]:
    """Read what has been acknowledged.

    Args:
        folder: folder of the parts.

    Returns:
        Columns text_key, first, last and pll_nats; and the number of parts that are
        damaged and were left out.
    """
    tables = [TableFormat("", _PART_COLUMNS).schema.empty_table()]
    damaged = 0
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            tables.append(read_table(folder, TableFormat(path.name, _PART_COLUMNS)))
        except ArtifactCorrupt:
            damaged += 1
    return pa.concat_tables(tables), damaged


def _new_name() -> str:
    return f"part-{secrets.token_hex(8)}"
