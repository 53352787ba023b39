"""Ranked retrieval: recall at K, median rank, and what chance would give."""

import math

import numpy as np
from jaxtyping import Bool, Float, Int

from medclip_dcl.errors import MetricError


def best_ranks(
    scores: Float[np.ndarray, "queries items"], correct: Bool[np.ndarray, "queries items"]
) -> Int[np.ndarray, " queries"]:
    """Rank of each query's best correct item, ties resolved against it.

    Args:
        scores: of every item for every query; higher is better.
        correct: whether the item answers the query; at least one per query does.

    Returns:
        1 + the number of wrong items that score at least as high as the best correct one.

    Raises:
        MetricError: shapes differ, a score is not finite, or a query has no correct item.

    Source: ours; pessimistic, so a model that scores everything alike ranks last.
    """
    if scores.shape != correct.shape:
        raise MetricError(f"scores {scores.shape} and truth {correct.shape} differ in shape")
    if not np.isfinite(scores).all():
        raise MetricError("a retrieval score is not finite; repair the model")
    orphans = int((~correct.any(axis=1)).sum()) if len(scores) else 0
    if orphans:
        raise MetricError(f"{orphans} queries have no correct item; leave them out of the pool")
    best = np.where(correct, scores, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    wrong_above: np.ndarray = ((scores >= best) & ~correct).sum(axis=1)
    return 1 + wrong_above


def recall_at(ranks: Int[np.ndarray, " queries"], k: int) -> float | None:
    """Share of queries whose best correct item is among the first k.

    Args:
        ranks: from `best_ranks`, from 1.
        k: length of the list, at least 1.

    Returns:
        A share in [0, 1]; None where there are no queries.
    """
    return float((ranks <= k).mean()) if len(ranks) else None


def median_rank(ranks: Int[np.ndarray, " queries"]) -> float | None:
    """Median of the ranks.

    Args:
        ranks: from `best_ranks`, from 1.

    Returns:
        The median, at least 1; None where there are no queries.
    """
    return float(np.median(ranks)) if len(ranks) else None


def chance_recall(correct: Bool[np.ndarray, "queries items"], k: int) -> float | None:
    """Expected recall at k of a random order.

    Args:
        correct: whether the item answers the query.
        k: length of the list, at least 1.

    Returns:
        Mean over queries of 1 - C(n - c, k) / C(n, k), with c of n items correct; None
        where there are no queries.
    """
    queries, items = correct.shape
    if queries == 0:
        return None
    length = min(k, items)
    counts, repeats = np.unique(correct.sum(axis=1), return_counts=True)
    whole = math.comb(items, length)
    misses = [math.comb(items - int(count), length) / whole for count in counts]
    return float(1 - np.average(misses, weights=repeats))
