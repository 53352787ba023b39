import numpy as np
import pytest

from medclip_dcl.retrieval.embeddings import InMemoryIndex, Shards, highest


def by_sorting(scores: np.ndarray, count: int) -> list[int]:
    return sorted(np.argsort(-scores, kind="stable")[:count].tolist())


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 20_011])
@pytest.mark.parametrize("count", [1, 7, 150])
def test_the_highest_scores_are_those_of_a_sort(size: int, count: int) -> None:
    scores = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    assert highest(scores, count).tolist() == by_sorting(scores, count)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_of_equal_scores_the_first_are_taken(levels: int) -> None:
    rng = np.random.default_rng(levels)
    scores = rng.integers(0, levels, 30_000).astype(np.float32)
    assert highest(scores, 100).tolist() == by_sorting(scores, 100)


def test_only_allowed_rows_are_found() -> None:
    vectors = np.eye(5, dtype=np.float32)
    direction = np.array([5, 4, 3, 2, 1], dtype=np.float32)
    allowed = np.array([False, True, False, True, True])
    nearest = InMemoryIndex(Shards([vectors], len(vectors)))
    assert nearest.rows(direction, allowed, 2).tolist() == [1, 3]
    assert nearest.rows(direction, allowed, 9).tolist() == [1, 3, 4]
    assert nearest.rows(direction, np.zeros(5, dtype=bool), 2).tolist() == []
    assert nearest.rows(direction, None, 2).tolist() == [0, 1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_nearest_of_many_are_those_of_a_product(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((20_000, 32)).astype(np.float32)
    nearest = InMemoryIndex(Shards([vectors], len(vectors)))
    direction = rng.standard_normal(32).astype(np.float32)
    assert nearest.rows(direction, None, 100).tolist() == by_sorting(vectors @ direction, 100)
