"""Answer of `/model`: what is known of the model that a service answers by."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from .schemas import Schema

if TYPE_CHECKING:  # a client installs pydantic and httpx alone
    from medclip_dcl.inference.heads import Head
    from medclip_dcl.model_package import FindingCalibration


class RefusedFinding(Schema):
    """A finding that was not calibrated because its answer should not be read."""

    name: str
    """Name of the finding."""
    reason: str
    """Why: its two prompts do not decide, or it is read upside down."""
    correlation: float | None
    """Of the scores of its two prompts over the validation images; null where undefined."""
    auc: float | None
    """Of its score on the validation images; null where they are too few."""

    @classmethod
    def of(cls, fitted: "FindingCalibration") -> "RefusedFinding":
        """Put a calibration without a curve into words."""
        return cls(
            name=fitted.finding,
            reason=fitted.reason,
            correlation=fitted.correlation,
            auc=fitted.auc,
        )


class HeadFacts(Schema):
    """Facts of a head."""

    name: str
    """The label that it was fitted to."""
    kind: Literal["linear"]
    """How it decides."""
    features: Literal["space", "encoder"]
    """What it reads: the mean region in the shared space, or the encoder's features."""
    images_with: int
    """Training images with the label."""
    images_without: int
    """Training images without it."""
    calibrated: bool
    """Whether its answers have a probability."""
    note: str
    """Why they have none; empty where they have."""
    figures: dict[str, dict[str, Any]]
    """On test images, each with its 95 % interval over patients."""

    @classmethod
    def of(cls, head: "Head") -> "HeadFacts":
        """Put a head into words."""
        card = head.card
        return cls(
            name=card.name,
            kind=card.kind,
            features=card.features,
            images_with=card.images_with,
            images_without=card.images_without,
            calibrated=card.calibration.curve is not None,
            note=card.calibration.reason,
            figures={name: figure.model_dump() for name, figure in card.figures.items()},
        )


class ModelAnswer(Schema):
    """Answer of `/model`."""

    digest: str
    """Digest of the model."""
    notice: str = "Research use only, not a medical device."
    """What the service is not."""
    card: dict[str, Any]
    """The card that the model was published with."""
    refused: list[RefusedFinding] = Field(default_factory=list)
    """Findings of the card whose answers should not be read, as `calibrate_scores` saw on the
    validation images; empty too where no calibration was fitted."""
    heads: list[HeadFacts] = Field(default_factory=list)
    """Classifiers that were fitted to labels, in the order of the answers."""
    index: dict[str, Any] | None
    """Digest and counts of the retrieval index, and the findings that hits can be filtered by; null
    without one."""
    limits: dict[str, float]
    """Limits on what may be asked."""
    engine: str = "torch"
    """Who runs the encoders: torch or openvino."""
    precision: str = "float32"
    """Of the encoders."""
