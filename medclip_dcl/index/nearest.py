"""The nearest vectors to a direction: the candidate stage, in memory."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from medclip_dcl.index.shards import Shards

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_GROUPS = 64
_SPARE, _SPARE_ROWS = 2, 64  # what is compared once more: so many times the count, and so many


class Nearest(Protocol):
    """Who finds the nearest rows: this process, or an engine that holds the same vectors."""

    def rows(self, direction: Floats, allowed: Mask | None, count: int) -> Rows:
        """Find the rows with the largest inner products.

        Args:
            direction: vector (dim,).
            allowed: (rows,) which rows may be found; None: all.
            count: how many rows at most.

        Returns:
            Row numbers, ascending.
        """


class Resident:
    """All vectors in memory, at half precision: one matrix product, then a selection.

    A product takes as long as its vectors take to be read, so half the bytes are half the time.
    Rows near the selection's edge are compared once more, at the precision they are stored in.

    Args:
        vectors: float32 (rows, dim), of magnitudes below 65,504; they stay mapped.
    """

    def __init__(self, vectors: Shards) -> None:
        self.vectors = vectors
        self._half = torch.cat([torch.from_numpy(np.array(part)).half() for part in vectors.arrays])

    def rows(self, direction: Floats, allowed: Mask | None, count: int) -> Rows:
        """Find the rows with the largest inner products; of equal ones the lowest numbers.

        Args:
            direction: vector (dim,).
            allowed: (rows,) which rows may be found; None: all.
            count: how many rows at most.

        Returns:
            Row numbers, ascending.
        """
        products = torch.mv(self._half, torch.from_numpy(direction).half()).float().numpy()
        if allowed is None:
            near = highest(products, _SPARE * count + _SPARE_ROWS)
        else:
            places = np.flatnonzero(allowed)
            near = places[highest(products[places], _SPARE * count + _SPARE_ROWS)]
        return near[highest(self.vectors.gather(near) @ direction, count)]


def highest(scores: Floats, count: int) -> Rows:
    """Find the highest scores; of equal ones those that stand first.

    Args:
        scores: finite numbers.
        count: how many at most.

    Returns:
        Their places, ascending.
    """
    if count >= len(scores):
        return np.arange(len(scores))
    places = _worth_a_look(scores, count)
    if places is not None:
        return places[highest(scores[places], count)]
    rest = len(scores) - count
    least = np.partition(scores, rest)[rest]
    above = np.flatnonzero(scores > least)
    level = np.flatnonzero(scores == least)[: count - len(above)]
    return np.sort(np.concatenate([above, level]))


def _worth_a_look(scores: Floats, count: int) -> Rows | None:
    """Leave out scores that cannot be among the highest; None where that would not pay.

    The count-th highest of the groups' maxima bounds the count-th highest score from below:
    a pass at the speed of memory instead of a selection among all.
    """
    columns = len(scores) // _GROUPS
    if columns < 2 * count:
        return None
    maxima = scores[: _GROUPS * columns].reshape(_GROUPS, columns).max(axis=0)
    bound = np.partition(maxima, columns - count)[columns - count]
    places = np.flatnonzero(scores >= bound)
    return places if len(places) < len(scores) // 2 else None
