"""Class shares of a thinned image set -> eta of each class."""

from collections.abc import Sequence

import torch
from jaxtyping import Float32
from torch import Tensor

from medclip_dcl.config.views import ViewsConfig


def class_eta(
    settings: ViewsConfig,
    counts: Sequence[int],
    is_thinned: Sequence[bool],
    r: float,
    constant: float,
) -> Float32[Tensor, " classes"]:
    """Give the eta of an anchor by its class.

    Args:
        settings: which eta.
        counts: training images of each class.
        is_thinned: whether each class was thinned.
        r: share of a thinned class that was kept.
        constant: the value where eta is `constant`.

    Returns:
        Chance that a random image is of the anchor's class, in [0, 1): the same for all
        classes unless eta is `class_share`.

    Source: Wang et al. 2023, Section 3.1: with five of ten classes thinned
        eta_Low = .2 r / (1 + r) and eta_High = .2 / (1 + r).
    """
    if settings.eta == "class_share":
        present = torch.tensor(list(counts), dtype=torch.float64)
        return (present / present.sum()).float()
    thinned = sum(is_thinned)
    classes = len(is_thinned) - thinned + r * thinned
    value = {"low": r / classes, "high": 1 / classes, "constant": constant}[settings.eta]
    return torch.full((len(is_thinned),), value)
