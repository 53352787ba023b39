"""Settings of the training objective."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

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
    sigmoid_bias: float = -10.0
    """Added to s by `sigmoid`; fixed, at the value that Zhai et al. 2023 start from."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.kind == "multipositive" and self.relation == "none":
            raise ValueError("multipositive needs a relation: claims, labels or truth")
        if self.kind in {"infonce", "sigmoid"} and self.relation != "none":
            raise ValueError(f"{self.kind} knows no relation; set relation to none")
        if self.kind in {"multipositive", "sigmoid"} and self.negatives != "all":
            raise ValueError(f"{self.kind} takes no weights on negatives; set negatives to all")
        return self
