"""Settings of the training objective."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class ObjectiveConfig(Section):
    """The loss and what it is told about negatives."""

    kind: Literal["infonce", "debiased", "multipositive", "sigmoid"] = "debiased"
    """`debiased` with `eta.source: pll` is the paper's."""
    directions: Literal["t2i", "i2t", "both"] = "t2i"
    """Anchors: texts (the paper), images, or both."""
    floor: Literal["floor", "zero", "fallback"] = "floor"
    """What stands in for Eq. 8 where it falls to its minimum; `floor` is the paper's."""
    negatives: Literal[
        "all",
        "remove_labels",
        "remove_similar",
        "resample_similar",
        "reweight_similar",
        "hard",
    ] = "all"
    """Weights on negatives: the rivals of the paper's Table 1, and Robinson et al. 2021."""
    similarity_threshold: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """Text cosine above which `remove_similar` drops a negative."""
    beta: Annotated[float, Field(ge=0)] = 1.0
    """Sharpness of `resample_similar`, `reweight_similar` and `hard`."""
    keep_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of negatives that `resample_similar` keeps."""
    relation: Literal["none", "claims", "labels", "truth"] = "none"
    """Source of the relation matrix for `multipositive` and for known positives."""
