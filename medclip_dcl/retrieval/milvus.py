"""The candidate stage in Milvus: for an index that has outgrown one process.

A collection holds row numbers and vectors of one index, and nothing that names a patient, a
study or a text. Its name carries the digest of the index's fingerprint, so another index can never
answer. Filters stay here, where the tables are: the engine is asked for more rows than are
wanted, or given the few rows that may answer.

milvus-lite, the engine behind a path that ends in `.db`, opens a port on loopback that asks
for no key, and serves one process.

Source: ours; the calls are those of pymilvus 3.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from medclip_dcl.core.artifact import json_digest
from medclip_dcl.core.errors import ConfigError, EngineError
from medclip_dcl.core.files import read_keys
from medclip_dcl.core.progress import Progress
from medclip_dcl.retrieval import RetrievalConfig
from medclip_dcl.retrieval.embeddings import Floats, Mask, Nearest, Rows, Shards

MOST_HITS = 16_384  # most rows that Milvus gives in one answer

TIMEOUT_S = 10.0
"""Of one call: a search takes milliseconds, so a cluster that needs longer is not there."""

_ROWS_A_CALL = 4096
_SEARCH = {"metric_type": "IP"}


def collection_of(fingerprint: Mapping[str, Any], vectors: str) -> str:
    """Name the collection of an index's vectors of one sort."""
    return f"medclip_{json_digest(fingerprint)[:32]}_{vectors}"


def fill_collections(
    settings: RetrievalConfig, fingerprint: Mapping[str, Any], vectors: Mapping[str, Shards]
) -> None:
    """Bring all vectors that candidates are found by to the engine; raises as `Milvus` does."""
    with Milvus(settings) as engine:
        for name, shards in vectors.items():
            with Progress("fill engine", len(shards), "vector") as progress:
                engine.fill(collection_of(fingerprint, name), shards, progress.advance)


class Milvus:
    """A connection to Milvus, or to milvus-lite.

    Raises:
        ConfigError: pymilvus is not installed, or the key file cannot be used.
        EngineError: the engine does not answer, here and in every method.
    """

    def __init__(self, settings: RetrievalConfig) -> None:
        try:
            import pymilvus
        except ImportError as error:
            raise ConfigError(
                "retrieval.uri is set and pymilvus is not installed; "
                "run pip install '.[milvus]' in the checkout"
            ) from error
        # Its log repeats expressions and addresses; what fails is raised, in our words.
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
        logging.getLogger("milvus_lite").setLevel(logging.CRITICAL)
        self._settings = settings
        self._kinds = pymilvus.DataType
        token = read_keys(Path(settings.token_file))[0] if settings.token_file else ""
        self._refusals = (pymilvus.MilvusException,)
        with self._asked():
            self._client = pymilvus.MilvusClient(settings.uri, token=token, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def fill(self, collection: str, vectors: Shards, advance: Callable[[int], None]) -> None:
        """Bring all vectors of an index into a collection, which may have been begun.

        `advance` is called with how many rows each call brought.
        """
        with self._asked():
            if not self._client.has_collection(collection):
                self._create(collection, vectors.arrays[0].shape[-1])
            self._client.load_collection(collection)
            there = self._count(collection)
            # Calls are whole or not at all; the last one is repeated in case it was not.
            start = max(0, there - 1) // _ROWS_A_CALL * _ROWS_A_CALL
            advance(start)
            for first in range(start, len(vectors) if there < len(vectors) else 0, _ROWS_A_CALL):
                rows = np.arange(first, min(first + _ROWS_A_CALL, len(vectors)))
                part = vectors.gather(rows)
                data = [
                    {"row": row, "vector": vector}
                    for row, vector in zip(rows.tolist(), part, strict=True)
                ]
                self._client.upsert(collection, data, timeout=TIMEOUT_S)
                advance(len(rows))
            self._client.flush(collection)
        self._must_hold(collection, len(vectors))

    def nearest(self, collection: str, rows: int) -> Nearest:
        """Return what finds the nearest rows of a collection, which must have so many."""
        with self._asked():
            is_there = self._client.has_collection(collection)
            if is_there:
                self._client.load_collection(collection)
        if not is_there:
            raise EngineError(f"the engine has no collection {collection}; rerun build_index")
        self._must_hold(collection, rows)
        return _Collection(self, collection, rows)

    def search(self, collection: str, direction: Floats, count: int, expression: str = "") -> Rows:
        """Ask for at most `count` rows, best first, with the largest inner products.

        `expression`: Milvus's boolean expression on `row`; empty: all rows.
        """
        with self._asked():
            (hits,) = self._client.search(
                collection,
                data=[direction],
                filter=expression,
                limit=count,
                output_fields=[],
                search_params=_SEARCH,
                timeout=TIMEOUT_S,
            )
        return np.array([hit["row"] for hit in hits], dtype=np.int64)

    def _create(self, collection: str, dim: int) -> None:
        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", self._kinds.INT64, is_primary=True)
        schema.add_field("vector", self._kinds.FLOAT_VECTOR, dim=dim)
        index = self._client.prepare_index_params()
        index.add_index("vector", index_type="FLAT", **_SEARCH)  # exact: as in memory
        self._client.create_collection(
            collection, schema=schema, index_params=index, consistency_level="Strong"
        )

    def _count(self, collection: str) -> int:
        (answer,) = self._client.query(collection, filter="", output_fields=["count(*)"])
        return int(answer["count(*)"])

    def _must_hold(self, collection: str, rows: int) -> None:
        with self._asked():
            there = self._count(collection)
        if there != rows:
            raise EngineError(
                f"collection {collection} holds {there} of {rows} rows; rerun build_index"
            )

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except self._refusals as error:
            code = getattr(error, "code", "unknown")
            raise EngineError(
                f"retrieval.uri = {self._settings.uri!r} does not answer as it should "
                f"(Milvus's code {code}); start it, or unset retrieval.uri"
            ) from error


class _Collection:
    """The rows of one collection."""

    def __init__(self, engine: Milvus, name: str, rows: int) -> None:
        self._engine, self._name, self._rows = engine, name, rows

    def rows(self, direction: Floats, allowed: Mask | None, count: int) -> Rows:
        """Find rows as `Nearest.rows` says."""
        indices = np.arange(self._rows) if allowed is None else np.flatnonzero(allowed)
        count = min(count, len(indices), MOST_HITS)
        if count == 0:
            return indices[:0]
        if allowed is None:
            return np.sort(self._engine.search(self._name, direction, count))
        # Twice as many as should do, where that is not too many; else, or where hits cluster
        # among what is left out, the rows that may answer are named.
        wanted = min(math.ceil(2 * count * self._rows / len(indices)), self._rows)
        if wanted <= MOST_HITS:
            nearest = self._engine.search(self._name, direction, wanted)
            among = nearest[allowed[nearest]]
            if len(among) >= count:
                return np.sort(among[:count])
        return np.sort(self._engine.search(self._name, direction, count, _named(allowed)))


def _named(allowed: Mask) -> str:
    """Name the rows that may answer, or those that may not, whichever are fewer."""
    indices = np.flatnonzero(allowed)
    if 2 * len(indices) <= len(allowed):
        return f"row in {indices.tolist()}"
    return f"row not in {np.flatnonzero(~allowed).tolist()}"
