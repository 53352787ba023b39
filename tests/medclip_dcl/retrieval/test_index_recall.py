from pathlib import Path

import numpy as np
import pytest
import torch

from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import IndexConfig
from medclip_dcl.retrieval.embeddings import SKETCH, Sketch, map_array, shard_name
from medclip_dcl.retrieval.index import measure_recall, write_index
from tests.support.embeddings import (
    SIMILARITY,
    HashedEncoder,
    NumberedImages,
    manifest_table,
    selection,
)

IMAGES, TEXTS = 48, 27


def built(folder: Path, landmarks: int, candidates: int) -> float | None:
    chosen = IndexConfig(shard_rows=20, candidates=candidates)
    images = NumberedImages(manifest_table(IMAGES).column("image_id").to_pylist())
    counts = write_index(
        folder, selection(), images, HashedEncoder(), chosen, SIMILARITY, landmarks=landmarks
    )
    return counts["candidate_recall_at_10"]


def test_recall_is_the_share_of_the_exact_best_among_the_candidates(tmp_path: Path) -> None:
    """Eight of 27 sentences are landmarks of random images: hardly better than chance, 20 of 48."""
    recall = built(tmp_path, landmarks=12, candidates=20)
    whole = {
        what: np.concatenate([map_array(tmp_path / shard_name(what, n), dtype) for n in range(3)])
        for what, dtype in (("regions", np.float16), ("image_sketches", np.float32))
    }
    texts = np.concatenate(
        [map_array(tmp_path / shard_name("texts", n), np.float32) for n in (0, 1)]
    )
    landmarks = {round(index) for index in np.linspace(0, TEXTS - 1, 8) // 1}
    asked = texts[[row for row in range(TEXTS) if row not in landmarks]]
    assert len(asked) == 19
    regions = torch.from_numpy(whole["regions"].astype(np.float32)).flatten(1, 2)
    exact = image_sentence_scores(regions, torch.from_numpy(asked), SIMILARITY).numpy()
    sketch = Sketch.read(tmp_path / SKETCH, SIMILARITY.dim)
    near = sketch.of_vectors(asked) @ whole["image_sketches"].T
    shares = [
        len(set(np.argsort(-one)[:10]) & set(np.argsort(-other)[:20])) / 10
        for one, other in zip(exact, near, strict=True)
    ]
    assert recall == pytest.approx(np.mean(shares), abs=1e-4)
    assert 0.2 < np.mean(shares) < 0.95


def test_where_every_sentence_is_an_anchor_nobody_is_left_to_ask(tmp_path: Path) -> None:
    assert built(tmp_path, landmarks=60, candidates=20) is None
    settings = IndexConfig(shard_rows=20)
    assert measure_recall(tmp_path, (IMAGES, TEXTS), settings, SIMILARITY, 60) is None
