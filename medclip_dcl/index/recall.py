"""Do an index's candidates hold the films that an exhaustive search would find?"""

from pathlib import Path

import numpy as np

from medclip_dcl.config.evaluation import IndexConfig
from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.index.nearest import highest
from medclip_dcl.index.shards import open_shards
from medclip_dcl.index.sketch import FILE, Sketch, score_at
from medclip_dcl.index.sketching import over_blocks, said_anchors, spread
from medclip_dcl.progress import Progress

HITS = 10

_QUESTIONS = 64


def measure_recall(
    directory: Path, counts: tuple[int, int], settings: IndexConfig, similarity: SimilarityConfig
) -> float | None:
    """Ask an index that is being built for films, by sentences that its sketch was not fitted on.

    Args:
        directory: the draft's folder, with all regions, sentence vectors and sketches.
        counts: films and sentences.
        settings: the index's settings.
        similarity: the exact score.

    Returns:
        Recall@10: the mean share of the ten films with the best exact scores that are among
        `candidates`; None where every sentence is an anchor.
    """
    films, texts = counts
    locate, dim, shard_rows = directory.joinpath, similarity.dim, settings.shard_rows
    unused = np.setdiff1d(np.arange(texts), said_anchors(texts, settings))
    if not len(unused):
        return None
    asked = open_shards(locate, "texts", texts, shard_rows, dim).gather(
        unused[spread(len(unused), _QUESTIONS)]
    )
    sketch = Sketch.read(locate(FILE), dim)
    sketches = open_shards(locate, "film_sketches", films, shard_rows, sketch.basis.shape[1])
    near = sketches.whole() @ sketch.of_vectors(asked).T
    parts = []
    with Progress("measure recall", films, "film") as progress:
        for shard in open_shards(locate, "regions", films, shard_rows, dim).arrays:
            parts.append(over_blocks(shard, lambda block: score_at(asked, block, similarity)))
            progress.advance(len(shard))
    exact = np.concatenate(parts)
    shares = [
        np.isin(
            highest(exact[:, column], HITS), highest(near[:, column], settings.candidates)
        ).mean()
        for column in range(len(asked))
    ]
    return float(np.mean(shares))
