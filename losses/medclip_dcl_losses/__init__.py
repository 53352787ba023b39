"""The losses of medclip-dcl alone: they need torch and jaxtyping.

The modules are those of `medclip_dcl`, linked here in the checkout and copied into the wheel.
"""

from .errors import ObjectiveError
from .losses.debiased import debiased_contrastive_loss, debiasing_gauges
from .losses.gather import gather_with_grad, positive_columns
from .losses.info_nce import info_nce_loss
from .losses.multi_positive import multi_positive_loss

__all__ = [
    "ObjectiveError",
    "debiased_contrastive_loss",
    "debiasing_gauges",
    "gather_with_grad",
    "info_nce_loss",
    "multi_positive_loss",
    "positive_columns",
]
