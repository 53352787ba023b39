"""Shards, many of them where few files may be open, the nearest rows, and sketches."""

import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from medclip_dcl.core.errors import ArtifactCorrupt, TooManyOpenFiles
from medclip_dcl.core.files import raise_open_file_limit
from medclip_dcl.core.tables import map_array, read_table, write_array, write_table
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import embeddings
from medclip_dcl.retrieval.embeddings import InMemoryIndex, Layout, Shards, Sketch, fit_sketch

ROWS, SHARD_ROWS = 10, 4


def written(folder: Path, rows: int = ROWS) -> np.ndarray:
    regions = np.random.default_rng(0).standard_normal((rows, 2, 3, 5)).astype(np.float16)
    for shard in range(-(-rows // SHARD_ROWS)):
        part = regions[shard * SHARD_ROWS : (shard + 1) * SHARD_ROWS]
        write_array(folder / embeddings.shard_name("regions", shard), part)
    return regions


def opened(folder: Path, rows: int = ROWS, dim: int = 5) -> Shards:
    return Layout(folder.joinpath, rows, 0, SHARD_ROWS, dim).open("regions")


def test_rows_are_read_across_shards_as_stored_and_of_their_size_alone(tmp_path: Path) -> None:
    regions, shards = written(tmp_path), opened(tmp_path)
    rows = np.array([9, 0, 3, 4, 4])
    np.testing.assert_array_equal(shards.gather(rows), regions[rows])
    np.testing.assert_array_equal(shards.whole(), regions)
    for size in ((9, 5), (12, 5), (ROWS, 4)):
        with pytest.raises(ArtifactCorrupt, match="rebuild it"):
            opened(tmp_path, *size)


SHARDS = 300


def test_no_mapped_file_stays_open_and_a_full_table_of_files_is_not_called_damage(tmp_path):
    path = tmp_path / embeddings.shard_name("texts", 0)
    write_array(path, np.ones((2, 3), dtype=np.float32))
    for shard in range(1, SHARDS):
        (tmp_path / embeddings.shard_name("texts", shard)).hardlink_to(path)
    embeddings.write_pictures(tmp_path / "pictures.arrow", [b"x"])
    write_table(tmp_path, embeddings.TEXTS, [{"text_key": "k", "text": "t", "studies": 1}])
    read_table(tmp_path, embeddings.TEXTS)  # what it imports is loaded
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with path.open("rb") as stream:
        lowest = stream.fileno()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + SHARDS // 2, hard))
        shards = Layout(tmp_path.joinpath, 0, 2 * SHARDS, 2, 3).open("texts")
        pictures = [embeddings.map_pictures(tmp_path / "pictures.arrow") for _ in range(SHARDS)]
        assert (shards.whole().sum(), len(pictures)) == (6 * SHARDS, SHARDS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        with pytest.raises(TooManyOpenFiles, match=rf"may open {lowest} files .*ulimit -n"):
            map_array(path, np.float32)
        with pytest.raises(TooManyOpenFiles, match=r"texts\.parquet"):
            read_table(tmp_path, embeddings.TEXTS)
        raise_open_file_limit()
        assert map_array(path, np.float32).sum() == 6
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("size", [40, 140])
def test_an_array_that_is_cut_is_damaged(tmp_path: Path, size: int) -> None:
    path = tmp_path / "texts-00000.npy"
    write_array(path, np.ones((2, 3), dtype=np.float32))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ArtifactCorrupt, match="cannot be read; rerun the job that made it"):
        map_array(path, np.float32)


def by_sorting(scores: np.ndarray, count: int) -> list[int]:
    return sorted(np.argsort(-scores, kind="stable")[:count].tolist())


@pytest.mark.parametrize("count", [1, 7, 150])
def test_the_highest_scores_are_those_of_a_sort_and_of_equal_ones_the_first(count: int) -> None:
    rng = np.random.default_rng(0)
    differing = [rng.standard_normal(size) for size in (1, 63, 64, 1000, 20_011)]
    equal = [rng.integers(0, levels, 30_000) for levels in (1, 2, 5)]
    for scores in (item.astype(np.float32) for item in (*differing, *equal)):
        assert embeddings.highest(scores, count).tolist() == by_sorting(scores, count)


def test_only_allowed_rows_are_found_and_of_many_those_of_a_product():
    nearest = InMemoryIndex(Shards([np.eye(5, dtype=np.float32)], 5))
    direction = np.array([5, 4, 3, 2, 1], dtype=np.float32)
    allowed = np.array([False, True, False, True, True])
    assert nearest.rows(direction, allowed, 2).tolist() == [1, 3]
    assert nearest.rows(direction, allowed, 9).tolist() == [1, 3, 4]
    assert nearest.rows(direction, np.zeros(5, dtype=bool), 2).tolist() == []
    assert nearest.rows(direction, None, 2).tolist() == [0, 1]
    vectors = np.random.default_rng(0).standard_normal((20_000, 32)).astype(np.float32)
    nearest = InMemoryIndex(Shards([vectors], len(vectors)))
    expected = by_sorting(vectors @ vectors[7], 100)
    assert nearest.rows(vectors[7], None, 100).tolist() == expected


SIMILARITY = SimilarityConfig(dim=8)


def unit(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(*shape, generator=generator), dim=-1)


def test_sketches_give_the_exact_scores_at_their_anchors(tmp_path) -> None:
    """With fewer landmarks than the width nothing is left out but the ridge."""
    landmarks, images = unit(40, 8, seed=0).numpy(), unit(60, 9, 8, seed=1)
    sketch = fit_sketch(landmarks, embeddings.score_at(landmarks, images, SIMILARITY))
    exact = image_sentence_scores(images, torch.from_numpy(landmarks), SIMILARITY).numpy()
    near = sketch.of_vectors(landmarks) @ sketch.of_images(images, SIMILARITY).T
    np.testing.assert_allclose(near, exact, atol=0.02)
    sketch.write(tmp_path / embeddings.SKETCH)
    again = Sketch.read(tmp_path / embeddings.SKETCH, 8)
    for name in ("landmarks", "basis", "lift"):
        np.testing.assert_array_equal(getattr(again, name), getattr(sketch, name))
    assert sketch.of_vectors(np.empty((0, 8), dtype=np.float32)).shape == (0, 40)


def test_the_best_of_a_sketch_hold_more_of_the_best_than_mean_regions_do() -> None:
    """Small findings: of 225 regions, one answers; the mean of all hardly tells."""
    topics = unit(30, 8, seed=2)
    images = unit(400, 25, 8, seed=3)
    images[:, 7] = topics[torch.arange(400) % 30]
    asked = functional.normalize(topics + 0.1 * unit(30, 8, seed=4), dim=-1)
    landmarks = functional.normalize(topics.repeat(4, 1) + 0.1 * unit(120, 8, seed=5), dim=-1)
    anchors = landmarks.numpy()
    sketch = fit_sketch(anchors, embeddings.score_at(anchors, images[:200], SIMILARITY))
    exact = image_sentence_scores(images, asked, SIMILARITY).numpy()

    def recall(near: np.ndarray) -> float:
        best, kept = np.argsort(-exact, axis=1)[:, :10], np.argsort(-near, axis=1)[:, :40]
        return np.mean([np.isin(*pair).mean() for pair in zip(best, kept, strict=True)])

    by_sketch = recall(sketch.of_vectors(asked.numpy()) @ sketch.of_images(images, SIMILARITY).T)
    by_mean = recall(asked.numpy() @ functional.normalize(images.mean(1), dim=-1).numpy().T)
    assert by_sketch > 0.9
    assert by_sketch > by_mean + 0.1
