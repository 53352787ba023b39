"""The same questions to the index in memory and to milvus-lite in its own server process."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from benchmarks.fixtures.milvus import milvus_server
from benchmarks.speed.retrieve.timing import interleaved, wall_ms
from medclip_dcl.retrieval.index import open_vectors
from medclip_dcl.retrieval.milvus import fill_collections
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from medclip_dcl.retrieval.settings import RetrievalConfig


def compare_engine(
    index: RetrievalIndex, vectors: Sequence[Tensor], filters: Filters
) -> dict[str, float]:
    """Fill an engine with the vectors of an index in memory and ask both, half the time filtered.

    Gives seconds of filling, share of questions with equal ids and scores, times of a query.
    """
    with tempfile.TemporaryDirectory() as folder, milvus_server(Path(folder)) as uri:
        retrieval = RetrievalConfig(uri=uri, timeout_s=60)
        counts = len(index.pooled), len(index.sentences)
        held = open_vectors(index.artifact.file, index.artifact.fingerprint, counts)
        begun = time.monotonic()
        fill_collections(retrieval, index.artifact.fingerprint, held)
        filled = time.monotonic() - begun
        engine = RetrievalIndex.open(
            index.artifact.path, index.artifact.fingerprint["inputs"]["model"], retrieval
        )
        engine = RetrievalIndex(**{**vars(engine), "settings": index.settings})
        queries = [
            Query(target, 10, vector=vector, filters=filters if number % 2 else Filters())
            for number, vector in enumerate(vectors)
            for target in ("image", "text")
        ]
        equal = sum(engine.search(query) == index.search(query) for query in queries)
        asked = [query for query in queries if query.target == "image"]
        times = interleaved({"milvus": lambda i: engine.search(asked[i % len(asked)])}, 20)
    print(f"    milvus-lite: filled in {filled:.0f} s, ", end="")
    print(f"{equal} of {len(queries)} answers equal, p50 {wall_ms(times, 'milvus', 50):.1f} ms")
    return {
        "engine_fill_s": filled,
        "engine_equal_share": equal / len(queries),
        "engine_query_p50_ms": wall_ms(times, "milvus", 50),
        "engine_query_p99_ms": wall_ms(times, "milvus", 99),
    }
