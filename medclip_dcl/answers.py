"""What the service answers, as its client reads it."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base of all answers; fields that a newer service adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class ImageFacts(Answer):
    """What the service decoded."""

    width_px: int
    """Width of the image, pixels."""
    height_px: int
    """Height of the image, pixels."""
    flags: tuple[str, ...]
    """What is odd about the image, such as `inverted`."""


class FindingScore(Answer):
    """One finding."""

    name: str
    """Name of the finding."""
    score: float
    """Share of the positive prompt, 0 to 1; no probability."""
    margin: float
    """Score of the positive prompt minus that of the negative, -2 to 2."""
    decision: bool
    """Whether the positive prompt fits better."""
    probability: float | None
    """Calibrated probability; None where the model has none."""
    heatmap: tuple[tuple[float, ...], ...] | None
    """Region scores, rows from the top, where they were asked for."""


class Classified(Answer):
    """Answer of `classify`."""

    model: str
    """Digest of the model."""
    image: ImageFacts
    """The image."""
    findings: tuple[FindingScore, ...]
    """One per finding."""


class Point(Answer):
    """A point of the image."""

    x: float
    """Pixels from the left edge."""
    y: float
    """Pixels from the top edge."""
    score: float
    """Score there, -1 to 1."""


class Rectangle(Answer):
    """A rectangle of the image, pixels."""

    x: float
    """Left edge."""
    y: float
    """Top edge."""
    width: float
    """Width."""
    height: float
    """Height."""


class Located(Answer):
    """Where one phrase is answered."""

    grid: tuple[tuple[float, ...], ...]
    """Region scores, rows from the top."""
    affine: tuple[float, float, float, float, float, float]
    """(a, b, c, d, e, f): cell (row, column) has its centre at x = a column + b row + c,
    y = d column + e row + f, pixels."""
    peak: Point
    """Centre of the best cell."""
    box: Rectangle | None
    """Rectangle around the peak, above the threshold."""


class Grounded(Answer):
    """Answer of `ground`."""

    model: str
    """Digest of the model."""
    image: ImageFacts
    """The image."""
    phrases: tuple[Located, ...]
    """One per phrase."""


class Hit(Answer):
    """An indexed image, or a sentence."""

    id: str
    """Image id, or text key."""
    score: float
    """Exact score; higher is closer."""
    texts: tuple[str, ...]
    """The sentence, or those of the image's study."""
    study_id: str
    """Study of the image; empty for a sentence."""
    split: str
    """Split of the image; empty for a sentence."""
    view: str
    """View of the image; empty for a sentence."""


class Retrieved(Answer):
    """Answer of `retrieve`."""

    model: str
    """Digest of the model."""
    index: str
    """Digest of the index."""
    hits: tuple[Hit, ...]
    """Best first."""
