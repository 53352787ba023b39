"""What two-stage retrieval finds of an exhaustive search, and what a query costs.

    make demo && python -m benchmarks.retrieve [--quick]

The demo's index is asked by sentences of patients that no config drew, one thread. The truth is the
exact score of every image; K is the least number of candidates whose recall@10 reaches the bar.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.record import finish, is_quick, judge
from benchmarks.speed.timing import cpu_ms, interleaved, show, wall_ms
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.inference import model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval.embeddings import ARTIFACT
from medclip_dcl.retrieval.search import Filters, Query, RetrievalIndex
from medclip_dcl.synthetic.patients import NATURAL, draw_patient
from pipelines.config import load_config

CONFIG = Path("configs/demo.yaml")
BARS = {"recall_at_10": ">= 0.99"}
CANDIDATES = (10, 20, 50, 100, 200, 300, 500, 1000)
K_HITS = 10
SEED = 20_002
"""Of patients that no config has drawn: they ask."""
_IMAGES_AT_ONCE = 256
_FILTERS = Filters(splits=frozenset({"test"}), findings=frozenset({"Pneumonia"}))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 where the demo has not been run."""
    quick = is_quick(argv)
    config = load_config(CONFIG)
    work = resolve_path(config.work, config.work)
    if not (ARTIFACT.at(work).is_dir() and model_package.ARTIFACT.at(work).is_dir()):
        print("no model and index of the demo; run `make demo` first", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    with threadpool_limits(1):
        figures = of_demo(work, 100 if quick else 300)
    return finish("retrieve", figures, judge(figures, BARS))


def of_demo(work: Path, asked: int) -> dict[str, float]:
    """Measure the recall of the demo's index by number of candidates."""
    predictor = load(model_package.ARTIFACT.at(work), "cpu")
    index = RetrievalIndex.open(ARTIFACT.at(work), predictor.digest)
    sentences = predictor.embed_sentences(questions(asked))
    best = exhaustive(index, sentences)
    recall = {k: recall_at_10(index, sentences, best, k) for k in CANDIDATES}
    least = next((k for k in recall if recall[k] >= 0.99), max(recall))
    figures = {"images": float(len(index.pooled)), "K": float(least)}
    figures["recall_at_10"] = recall_at_10(index, sentences, best, index.settings.candidates)
    figures |= {f"recall_at_10_K{k}": value for k, value in recall.items()}
    filters = {"query": Filters(), "filtered": _FILTERS}
    rivals = {name: partial(_ask, index, sentences, chosen) for name, chosen in filters.items()}
    times = interleaved(rivals, len(sentences))
    show(times)
    figures |= {f"{name}_cpu_ms": cpu_ms(times, name) for name in filters}
    return figures | {f"query_p{at}_ms": wall_ms(times, "query", at) for at in (50, 99)}


def _ask(index: RetrievalIndex, sentences: Tensor, filters: Filters, number: int) -> object:
    return index.search(Query("image", K_HITS, vector=sentences[number], filters=filters))


def questions(count: int) -> list[str]:
    """Draw different sentences of patients that the index does not hold."""
    texts: dict[str, None] = {}
    number = 0
    while len(texts) < count:
        for study in draw_patient(NATURAL, number, SEED).studies:
            report = study.report
            texts.update((item.text, None) for item in (*report.findings, *report.impression))
        number += 1
    return list(texts)[:count]


def exhaustive(index: RetrievalIndex, sentences: Tensor) -> npt.NDArray[np.int64]:
    """Score every image by unit vectors (queries, dim); rows (queries, 10) of the best."""
    parts = []
    for first in range(0, len(index.regions), _IMAGES_AT_ONCE):
        rows = np.arange(first, min(first + _IMAGES_AT_ONCE, len(index.regions)))
        regions = torch.from_numpy(index.regions.gather(rows)).float().flatten(1, 2)
        parts.append(image_sentence_scores(regions, sentences, index.similarity))
    scores = torch.cat(parts, dim=1).numpy()
    return np.argsort(-scores, axis=1, kind="stable")[:, :K_HITS]


def recall_at_10(
    index: RetrievalIndex, sentences: Tensor, best: npt.NDArray[np.int64], candidates: int
) -> float:
    """Measure the index itself, its whole road from query to hits."""
    settings = index.settings.model_copy(update={"candidates": candidates})
    narrow = RetrievalIndex(**{**vars(index), "settings": settings})
    ids = index.studies.images.column("image_id").to_pylist()
    shares = [
        len({hit.id for hit in narrow.search(Query("image", K_HITS, vector=vector))}
            & {ids[row] for row in rows}) / K_HITS
        for vector, rows in zip(sentences, best, strict=True)
    ]  # fmt: skip
    return float(np.mean(shares))


if __name__ == "__main__":
    sys.exit(main())
