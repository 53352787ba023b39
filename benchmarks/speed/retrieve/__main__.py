"""Recall of two-stage retrieval against exhaustive exact scores, and the cost of a query.

    make demo && python -m benchmarks.retrieve [--quick] [--made-up N] [--keep FOLDER]

Recall: the demo's images in nine augmented views each (about 22,000; --quick: one view) are
embedded by the demo's model and asked for by sentences of patients that no config drew, and
sentences by images of theirs. The truth is the exact score of every image. K is the least number of
candidates whose recall@10 reaches the bar, for both directions.

Cost: an index of 100,000 made-up images (--quick: 10,000) with 15 x 15 regions of width 128, the
paper's, is asked at that K, one thread. The candidate stage and one bare matrix-vector product are
timed in turn on 100,000 vectors. The same questions then go to milvus-lite in its own server
process.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.record import finish, judge
from benchmarks.speed.retrieve import indexes
from benchmarks.speed.retrieve.recall import (
    K_HITS,
    image_curve,
    text_curve,
    with_candidates,
)
from benchmarks.speed.timing import cpu_ms, cpu_ratio, interleaved, show, wall_ms
from medclip_dcl import model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.retrieval.embeddings import InMemoryIndex, Shards
from medclip_dcl.retrieval.milvus import fill_collections
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from medclip_dcl.retrieval.settings import IndexConfig, RetrievalConfig
from medclip_dcl.retrieval.sketch import open_vectors
from medclip_dcl.settings import resolve_path
from pipelines.config import load_config
from testing.milvus import milvus_server

CONFIG = Path("configs/demo.yaml")
BARS = {
    "recall_at_10": ">= 0.99",
    "sentence_recall_at_10": ">= 0.99",
    "candidates_over_product": "<= 1.5",
    "query_cpu_ms": "<= 7.0",
    "gib_per_100k": "<= 3.0",
}

_VECTORS, _WIDTH = 100_000, 256
_VIEW_SETTINGS = IndexConfig(pictures=False, candidates=200)  # the curve says what it asks
_FILTERS = Filters(splits=frozenset({"test"}), findings=frozenset({"Pneumonia"}))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where the demo has not been run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieve")
    parser.add_argument("--quick", action="store_true", help="fewer images and questions")
    parser.add_argument("--made-up", type=int, help="images of the made-up index")
    parser.add_argument("--keep", type=Path, help="folder that keeps both indexes")
    parser.add_argument("--config", type=Path, default=CONFIG, help="the demo's")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    config = load_config(arguments.config)
    model = model_package.ARTIFACT.at(resolve_path(config.work, config.work))
    if not model.is_dir():
        print("no model of the demo; run `make demo` first", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="retrieve-"))
    try:
        with threadpool_limits(1):
            figures = _recall(arguments.keep or folder, model, quick=quick)
            made = arguments.made_up or (10_000 if quick else 100_000)
            figures |= _candidates(int(figures["K"]))
            rounds = 40 if quick else 100
            figures |= _cost(arguments.keep or folder, int(figures["K"]), made, rounds)
    finally:
        shutil.rmtree(folder)
    return finish("retrieve", figures, judge(figures, BARS))


def _recall(folder: Path, model: Path, *, quick: bool) -> dict[str, float]:
    predictor = load(model, "cpu")
    count, asked = (1, 100) if quick else (9, 300)
    begun = time.monotonic()
    path = indexes.build_views(folder, model.parent, predictor, count, _VIEW_SETTINGS)
    index = RetrievalIndex.open(path, predictor.digest)
    print(f"{len(index.pooled)} images, {len(index.sentences)} sentences, ", end="")
    print(f"embedded and opened in {time.monotonic() - begun:.0f} s")
    sentences = predictor.embed_sentences(indexes.questions(asked))
    pixels = indexes.asking_images(predictor, asked // 2)
    parts = [predictor.embed_images(part) for part in np.array_split(pixels, asked // 50)]
    of_images = image_curve(index, sentences)
    of_texts = text_curve(index, torch.cat(parts))
    wanted = max(of_images.least(0.99), of_texts.least(0.99))
    figures = {
        "images": float(len(index.pooled)),
        "sentences": float(len(index.sentences)),
        "K": float(wanted),
        "recall_at_10": of_images.found(index, wanted),
        "sentence_recall_at_10": of_texts.found(index, wanted),
    }
    figures |= {f"recall_at_10_K{k}": value for k, value in of_images.recall.items()}
    figures |= {f"sentence_recall_at_10_K{k}": value for k, value in of_texts.recall.items()}
    return figures


def _candidates(count: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((_VECTORS, _WIDTH), dtype=np.float32)
    asked = rng.standard_normal((62, _WIDTH), dtype=np.float32)
    nearest = InMemoryIndex(Shards([vectors], _VECTORS))
    times = interleaved(
        {
            "product": lambda i: vectors @ asked[i],
            "candidates": lambda i: nearest.rows(asked[i], None, count),
        },
        60,
    )
    print(f"{_VECTORS} vectors of width {_WIDTH}, {count} candidates")
    show(times)
    return {
        "product_cpu_ms": cpu_ms(times, "product"),
        "candidates_cpu_ms": cpu_ms(times, "candidates"),
        "candidates_over_product": cpu_ratio(times, "candidates", "product"),
    }


def _cost(folder: Path, candidates: int, images: int, rounds: int) -> dict[str, float]:
    encoder = indexes.MadeUpEncoder()
    artifact = indexes.build_made_up(folder / "made_up", images, encoder)
    built = float(artifact.origin["seconds"])
    size = sum(entry["bytes"] for entry in artifact.files.values())
    begun = time.monotonic()
    index = RetrievalIndex.open(artifact.path, indexes.MODEL)
    opened = time.monotonic() - begun
    index = with_candidates(index, candidates)
    vectors = [encoder.sentence(images + number) for number in range(rounds + 2)]
    times = interleaved(
        {
            "query": lambda i: index.search(Query("image", K_HITS, vector=vectors[i])),
            "filtered": lambda i: index.search(
                Query("image", K_HITS, vector=vectors[i], filters=_FILTERS)
            ),
        },
        rounds,
    )
    of_images = image_curve(index, torch.stack(vectors[:20]))
    print(f"{images} made-up images: built in {built:.0f} s, ", end="")
    print(f"{size / 2**30:.2f} GiB, opened and checked in {opened:.1f} s")
    show(times)
    return {
        "made_up_images": float(images),
        "build_s": built,
        "bytes": float(size),
        "gib_per_100k": size / 2**30 * 100_000 / images,
        "open_s": opened,
        "made_up_recall_at_10": of_images.found(index, candidates),
        "query_cpu_ms": cpu_ms(times, "query"),
        "query_p50_ms": wall_ms(times, "query"),
        "query_p99_ms": wall_ms(times, "query", 99),
        "filtered_query_cpu_ms": cpu_ms(times, "filtered"),
        **_engine(index, vectors[: rounds // 2]),
    }


def _engine(index: RetrievalIndex, vectors: Sequence[Tensor]) -> dict[str, float]:
    """Fill milvus-lite with the vectors of an index and ask both, half the time filtered."""
    with tempfile.TemporaryDirectory() as folder, milvus_server(Path(folder)) as uri:
        retrieval, fingerprint = RetrievalConfig(uri=uri, timeout_s=60), index.artifact.fingerprint
        counts = len(index.pooled), len(index.sentences)
        begun = time.monotonic()
        fill_collections(
            retrieval, fingerprint, open_vectors(index.artifact.file, fingerprint, counts)
        )
        filled = time.monotonic() - begun
        model = fingerprint["inputs"]["model"]
        engine = RetrievalIndex.open(index.artifact.path, model, retrieval)
        engine = with_candidates(engine, index.settings.candidates)
        queries = [
            Query(target, 10, vector=vector, filters=_FILTERS if number % 2 else Filters())
            for number, vector in enumerate(vectors)
            for target in ("image", "text")
        ]
        equal = sum(engine.search(query) == index.search(query) for query in queries)
        asked = [query for query in queries if query.target == "image"]
        times = interleaved({"milvus": lambda i: engine.search(asked[i % len(asked)])}, 20)
    return {
        "engine_fill_s": filled,
        "engine_equal_share": equal / len(queries),
        "engine_query_p50_ms": wall_ms(times, "milvus"),
        "engine_query_p99_ms": wall_ms(times, "milvus", 99),
    }


if __name__ == "__main__":
    sys.exit(main())
