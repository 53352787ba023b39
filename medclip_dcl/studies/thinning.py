"""Which labelled images train, validate and test, and which classes are made rare.

Only the training split is thinned. Everything is drawn class by class from the seed, so
that a smaller r keeps a part of what a larger one keeps, and test and validation images
are the same at every r.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

Rows = Int64[np.ndarray, " rows"]


@dataclass(frozen=True)
class Division:
    """Rows of the source's training images that each split takes, ascending."""

    train: Rows
    validate: Rows
    test: Rows
    """Empty where the source has test images of its own."""


def divide(
    labels: Int64[np.ndarray, " images"],
    thinned: Collection[int],
    r: float,
    *,
    per_class: int,
    validate_share: float,
    test_per_class: int,
    seed: int,
) -> Division:
    """Divide a source's training images.

    Args:
        labels: class of each image.
        thinned: classes that are thinned.
        r: share of a thinned class that stays, in (0, 1].
        per_class: most training images of a class, before thinning; 0: all.
        validate_share: share of a class that is kept back, at least one image.
        test_per_class: images of a class that are kept back before that; 0 where the source
            has test images of its own.
        seed: seed of the draw.

    Returns:
        The division. A thinned class keeps round(r n) of its n images, at least one.

    Source: Wang et al. 2023, Section 3.1 (CIFAR10-r); thinning in `train` alone is ours.
    """
    parts: dict[str, list[Rows]] = {"train": [], "validate": [], "test": []}
    for label in np.unique(labels).tolist():
        rows = draw_rows(labels, label, seed)
        test, rest = rows[:test_per_class], rows[test_per_class:]
        held_out = max(1, round(validate_share * len(rest)))
        pool = rest[held_out:][: per_class or None]
        kept = max(1, round(r * len(pool))) if label in thinned else len(pool)
        parts["test"].append(test)
        parts["validate"].append(rest[:held_out])
        parts["train"].append(pool[:kept])
    return Division(**{name: np.sort(np.concatenate(rows)) for name, rows in parts.items()})


def draw_rows(labels: Int64[np.ndarray, " images"], label: int, seed: int) -> Rows:
    """Put the images of one class into a random order.

    Args:
        labels: class of each image.
        label: the class.
        seed: seed of the draw.

    Returns:
        Their rows.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, label])))
    return generator.permutation(np.flatnonzero(labels == label).astype(np.int64))
