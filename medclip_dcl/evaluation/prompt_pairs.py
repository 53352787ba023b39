"""Whether the two prompts of a finding decide: a pair that does not says nothing of an image.

A finding's score is the difference of two scores, of the sentence that asserts it and of the one
that denies it. A model that hardly tells the two apart scores them alike: they rise and fall
together over images, and the little that is left of the difference can have either sign.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from medclip_dcl.evaluation.bootstrap import Figure
from medclip_dcl.evaluation.metrics import pearson_correlation, value_of

CORRELATION_LIMIT = 0.97
"""Correlation of a finding's two scores over images above which the pair does not decide."""
# From first trials on real studies: models that inverted a finding had .98 to 1.00, others at most
# .94. With text pairs as close as .98 the AUC of one finding was .17 or .85, by the seed.

CHANCE_AUC = 0.5
"""AUC below which a finding is read upside down."""

LEAST_IMAGES = 10
"""Images below which no correlation is given: of two it is always 1 or -1."""

REMEDY = (
    "train with objective.relation: claims, or ask in other words in the prompts file "
    "(evaluate.prompts)"
)
"""What helps a finding that is warned of."""

CORRELATION_FIGURE = "prompt_correlation"
"""Name of the figure in the results of each finding."""


@dataclass(frozen=True)
class PairWarning:
    """A finding whose answer should not be read, and why."""

    finding: str
    """Name of the finding."""
    correlation: float | None
    """Of the two scores over the images; None: undefined."""
    auc: float | None
    """Of their difference; None: undefined, or of too few images."""
    is_undecided: bool
    """Whether the correlation is above `CORRELATION_LIMIT`."""
    is_inverted: bool
    """Whether the AUC is below `CHANCE_AUC`."""
    reason: str
    """The values and the rules that they break."""
    message: str
    """The finding, the reason and the remedy."""


def pair_correlation(
    positive: Float[np.ndarray, " images"], negative: Float[np.ndarray, " images"]
) -> float | None:
    """Correlate the scores of a finding's two prompts over images, in [-1, 1].

    None of fewer than `LEAST_IMAGES`, and where a prompt scores all images alike.
    """
    enough = len(positive) >= LEAST_IMAGES
    return value_of(pearson_correlation(positive, negative)) if enough else None


def check_pair(finding: str, correlation: float | None, auc: float | None) -> PairWarning | None:
    """Warn of a finding whose pair does not decide, or that is read upside down; None: neither."""
    is_undecided = correlation is not None and correlation > CORRELATION_LIMIT
    is_inverted = auc is not None and auc < CHANCE_AUC
    reasons = []
    if is_undecided:
        reasons.append(
            f"its two prompts do not decide: over images their scores have a correlation of "
            f"{correlation:.3f}, above {CORRELATION_LIMIT}, so which is higher is chance"
        )
    if is_inverted:
        reasons.append(
            f"it is read upside down: its AUC is {auc:.3f}, below {CHANCE_AUC}, so images with it "
            "score lower than images without it"
        )
    if not reasons:
        return None
    reason = "; ".join(reasons)
    message = f"{finding}: {reason}; {REMEDY}"
    return PairWarning(finding, correlation, auc, is_undecided, is_inverted, reason, message)


def check_pairs(groups: Mapping[str, Mapping[str, Figure]]) -> list[PairWarning]:
    """Check every finding by its figures `prompt_correlation` and `auc`."""
    checked = (
        check_pair(finding, figures[CORRELATION_FIGURE].value, figures["auc"].value)
        for finding, figures in groups.items()
    )
    return [warning for warning in checked if warning is not None]
