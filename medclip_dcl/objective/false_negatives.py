"""What a class probability comes to in a batch: false negatives, and where Eq. 8 ends.

Symbols
    N      negatives of an anchor: the global batch less one
    eta    chance that a random negative is of the anchor's class
    N eta  false negatives to expect among them
"""

import math
from typing import NamedTuple


class Correction(NamedTuple):
    """One eta in a batch of one size."""

    expected: float
    """False negatives to expect: N eta."""
    edge: float
    """Uncorrected loss below which Eq. 8 is not positive and its floor stands, nats."""
    reach: float
    """`edge` as a share of log(N + 1), the loss of a model that knows nothing."""
    largest_weight: float
    """How much more than uncorrected the gradient of an anchor can weigh, at the edge."""


def correction(eta: float, global_batch: int) -> Correction:
    """Say what a class probability comes to in a batch.

    Args:
        eta: class probability, in [0, 1).
        global_batch: pairs in a batch, over all processes; at least 2.

    Returns:
        Expected false negatives and where the correction ends, for M = 1 and v = x+.

    Source: Wang et al. 2023, Eq. 8 with M = 1: g > 0 is L > log(1 + N eta), for L the
        uncorrected loss of the anchor. The gradient is that of L times
        e**L / (e**L - eta (N + 1)); ours.
    """
    negatives = global_batch - 1
    expected = negatives * eta
    edge = math.log1p(expected)
    return Correction(expected, edge, edge / math.log(global_batch), (1 + expected) / (1 - eta))


def same_correction(eta: float, from_batch: int, to_batch: int) -> float:
    """Give the eta that expects as many false negatives in a batch of another size.

    Args:
        eta: class probability, in [0, 1).
        from_batch: pairs in the batch that it was chosen for; at least 2.
        to_batch: pairs in the other batch; at least 2.

    Returns:
        eta * (from_batch - 1) / (to_batch - 1). It may be 1 or more, where no smaller
        batch can be corrected as much. For a and the cap together it keeps N eta of every
        sentence, since eta = min(a p**k, cap) is scaled as a whole; k stays.

    Source: ours. An eta that is a true class probability is right at every size; one that
        was chosen for its results at one size is not.
    """
    return eta * (from_batch - 1) / (to_batch - 1)
