"""Answers of the service: what its routes return, what OpenAPI states, and what the client reads.

Fields that a newer service adds are ignored by an older client.
"""

from base64 import b64decode
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

if TYPE_CHECKING:  # a client installs pydantic and httpx alone
    from collections.abc import Mapping, Sequence

    import numpy as np

    from medclip_dcl.data.grayscale import SquareImage


_LOW_CONTRAST = 12.0
_ODD_SHAPE = 2.0

OUT_OF_RANGE = "out_of_range"  # flag of an image that is unlike those that the model was trained on
OUT_OF_RANGE_NOTE = "the image is unlike those that the model was trained on"
"""What the flag means: what the model says of such an image says nothing."""


class Schema(BaseModel):
    """Base of all answers."""

    # NaN and infinity are no JSON: they would be written as null, which nothing reads back.
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Answer(Schema):
    """An answer about one image, which prints as a table and shows as one in a notebook."""

    _picture: Any = PrivateAttr(None)

    def pictured(self, picture: Any) -> Self:
        """Keep a picture to be shown: its `html(grids)` is an element of a page."""
        self._picture = picture
        return self

    def rows(self) -> list[dict[str, Any]]:
        """Lines of its table, by column, such as a data frame takes them."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join([self._headline(), *text_table(self.rows())])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        pictures = self._pictures()
        return f"<p>{escape(self._headline())}</p>{pictures}{html_table(self.rows())}"

    def _pictures(self) -> str:
        return "" if self._picture is None else self._picture.html()

    def _headline(self) -> str:
        image: ImageFacts = getattr(self, "image")  # noqa: B009 (every answer about one has it)
        size = f"{image.width_px} x {image.height_px} {image.source}"
        flags = [flag for flag in image.flags if flag != OUT_OF_RANGE]
        beyond = [f"OUT OF RANGE: {OUT_OF_RANGE_NOTE}"] if image.is_out_of_range else []
        return ", ".join([size, *flags, *beyond])


class Answers(list[Any]):
    """Answers about several images, in their order; prints as one table."""

    def rows(self) -> list[dict[str, Any]]:
        """Rows of each answer after the number of its image and its flags, or its refusal."""
        rows: list[dict[str, Any]] = []
        for number, one in enumerate(self):
            if isinstance(one, RefusedImage):
                rows.append({"image": number, "flags": f"refused: {one.code}"})
            else:
                flags = ", ".join(one.image.flags)
                rows += [{"image": number, "flags": flags, **row} for row in one.rows()]
        return rows

    def __str__(self) -> str:
        return "\n".join(text_table(self.rows()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def text_table(rows: "Sequence[Mapping[str, Any]]") -> list[str]:
    """Lay rows out as lines of text; columns are those of all rows, in order."""
    names, cells = _cells(rows)
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in [names, *cells]
    ]
    return [line.rstrip() for line in lines]


def html_table(rows: "Sequence[Mapping[str, Any]]") -> str:
    """Lay rows out as a table of a page."""
    names, cells = _cells(rows)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in cells)
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table><tr>{head}</tr>{lines}</table>"


def _cells(rows: "Sequence[Mapping[str, Any]]") -> tuple[list[str], list[list[str]]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return names, [[_cell(row.get(name)) for name in names] for row in rows]


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.3f}" if isinstance(value, float) else str(value)


class ImageFacts(Schema):
    """Facts of the decoded image."""

    width_px: int
    """Width of the image, pixels."""
    height_px: int
    """Height of the image, pixels."""
    source: str
    """dicom, png or jpeg."""
    flags: list[str]
    """`inverted`: MONOCHROME1 was turned round; `constant`: all pixels are equal;
    `low_contrast`: greys are close together; `odd_shape`: more than twice as long as wide;
    `out_of_range`: unlike the images that the model was trained on, of which it says so of one
    in a hundred; the answer says nothing of such an image."""

    @property
    def is_out_of_range(self) -> bool:
        """Whether the image is unlike those that the model was trained on."""
        return OUT_OF_RANGE in self.flags

    @classmethod
    def of(cls, image: "SquareImage", *, out_of_range: bool) -> "ImageFacts":
        """Describe an image."""
        height, width = image.height_px, image.width_px
        flags = {
            "inverted": image.inverted,
            "constant": image.constant,
            "low_contrast": not image.constant and float(image.pixels.std()) < _LOW_CONTRAST,
            "odd_shape": max(height / width, width / height) > _ODD_SHAPE,
            OUT_OF_RANGE: out_of_range,
        }
        raised = [name for name, is_raised in flags.items() if is_raised]
        return cls(width_px=width, height_px=height, source=image.source, flags=raised)


class Point(Schema):
    """A point on the image."""

    x: float
    """Pixels of the image from its left edge."""
    y: float
    """Pixels of the image from its top edge."""
    score: float
    """Score there, -1 to 1."""


class Rectangle(Schema):
    """A rectangle on the image."""

    x: float
    """Left edge, pixels of the image."""
    y: float
    """Top edge, pixels of the image."""
    width: float
    """Width, pixels of the image."""
    height: float
    """Height, pixels of the image."""


class Location(Schema):
    """Location on an image: peak and box."""

    affine: tuple[float, float, float, float, float, float]
    """(a, b, c, d, e, f): the cell in `row` and `column` has its centre at
    x = a column + b row + c, y = d column + e row + f, pixels of the image."""
    peak: Point
    """Centre of the best cell."""
    threshold: float
    """Score from which the box is traced."""
    box: Rectangle | None
    """Rectangle around the peak at that threshold; null where the peak is below it."""


class PhraseAnswer(Location):
    """Answer to one phrase: heatmap, peak and box."""

    grid: list[list[float]]
    """Region-sentence cosines, rows of the grid from the top."""
    percentile: float | None = None
    """Share of the images in the model's bank that answer the phrase less, %; null: no bank."""


class Code(Schema):
    """Code of a finding in a coding scheme."""

    value: str
    """The code."""
    scheme: str
    """DICOM's designator of the scheme, such as SCT for SNOMED CT."""
    meaning: str
    """What the code means, in words."""


class FindingAnswer(Schema):
    """One finding."""

    name: str
    """Name of the finding."""
    score: float
    """Share of the positive prompt in a softmax over both scaled scores, 0 to 1; no probability."""
    margin: float
    """Score of the positive prompt minus that of the negative, -2 to 2; without a negative, minus
    the level of the positive over the model's bank of images."""
    decision: bool | None
    """Whether the positive prompt fits better: the margin is above the offset; null where the
    calibration refused the finding, whose answer should not be read."""
    offset: float | None = None
    """Level of the margin over the model's bank of images; null where the model has none for
    these prompts, and the decision is that at 0."""
    threshold: float = 0.5
    """Score at the offset, above which the decision is true."""
    percentile: float | None = None
    """Share of the images in the model's bank whose margin is lower, %; null: no bank."""
    probability: float | None
    """Calibrated probability, 0 to 1; null where the model has no calibration, and of an image
    that is out of range."""
    probability_note: str
    """Why the probability is null; empty where it is not."""
    heatmap: list[list[float]] | None = None
    """Region scores of the positive prompts, rows of the grid from the top, where asked for."""

    where: Location | None = None
    """Where the positive prompts are seen, where heatmaps were asked for; `heatmap` is its grid."""
    code: Code | None = None
    """What the finding is called in a coding scheme; null where the model has none for it."""

    def about(self, place: PhraseAnswer | None, *, out_of_range: bool) -> "FindingAnswer":
        """Add where the finding is seen, and take the probability of an image out of range away."""
        seen: dict[str, Any] = {}
        if place is not None:
            where = Location(**place.model_dump(include=set(Location.model_fields)))
            seen = {"heatmap": place.grid, "where": where}
        return self.model_copy(update=seen | (UNLIKE if out_of_range else {}))


# Fitted to images like those of training, a curve holds for no others.
UNLIKE = {"probability": None, "probability_note": OUT_OF_RANGE_NOTE}
"""What an answer about such an image has in place of a probability."""


class HeadAnswer(Schema):
    """One head: a classifier that was fitted to labels."""

    name: str
    """The label."""
    kind: Literal["linear"]
    """How it decides."""
    score: float
    """How much the image looks like those with the label, 0 to 1; no probability."""
    threshold: float
    """Score from which the decision is true."""
    decision: bool | None
    """Whether the score is at least the threshold; null where the head was refused when it was
    calibrated."""
    probability: float | None
    """Calibrated probability, 0 to 1; null where validation images were too few, and of an image
    that is out of range."""
    probability_note: str
    """Why the probability is null; empty where it is not."""


class ClassifyAnswer(Answer):
    """Answer of `/classify`."""

    model: str
    """Digest of the model."""
    image: ImageFacts
    """The image."""
    findings: list[FindingAnswer]
    """One per finding, in the order of asking."""
    heads: list[HeadAnswer] = []
    """One per head of the model, whatever findings are asked for."""
    engine: str = "unknown"
    """Who ran the encoders, as in `/model`; `unknown`: an earlier version's service answered."""
    precision: str = "unknown"
    """Of the encoders; likewise."""

    def __getitem__(self, name: str) -> FindingAnswer | HeadAnswer:
        """Find the answer to a finding, or of a head, by its name."""
        for item in self._items():
            if item.name == name:
                return item
        names = ", ".join(item.name for item in self._items())
        raise KeyError(f"{name} is not among the answers; choose of {names}")

    def _items(self) -> list[FindingAnswer | HeadAnswer]:
        return [*self.findings, *self.heads]

    def rows(self) -> list[dict[str, Any]]:
        """Row of each finding, then of each head."""
        columns = ("name", "decision", "score", "threshold", "percentile", "probability")
        rows = [
            {name: getattr(item, name, None) for name in columns} | {"note": item.probability_note}
            for item in self._items()
        ]
        if all(row["percentile"] is None for row in rows):
            rows = [{name: row[name] for name in row if name != "percentile"} for row in rows]
        return rows

    def _pictures(self) -> str:
        maps = [
            item.heatmap for item in self.findings if item.heatmap is not None and item.decision
        ]
        return "" if self._picture is None else self._picture.html(maps)


class RefusedImage(Schema):
    """An image of several that cannot be read, in its place among the answers."""

    code: str
    """Why, in one word."""
    message: str
    """Why, in one fixed line."""


class ClassifyAnswers(Schema):
    """Answer of `/classify` to several images."""

    model: str
    """Digest of the model."""
    answers: list[ClassifyAnswer | RefusedImage]
    """One per image, in the order of asking."""


class GroundAnswer(Answer):
    """Answer of `/ground`."""

    model: str
    """Digest of the model."""
    image: ImageFacts
    """The image."""
    phrases: list[PhraseAnswer]
    """One per phrase, in the order of asking."""

    _asked: tuple[str, ...] = PrivateAttr(())  # the service repeats nothing of what was sent

    def about(self, phrases: "Sequence[str]") -> Self:
        """Keep what was asked, to be shown."""
        self._asked = tuple(phrases)
        return self

    def rows(self) -> list[dict[str, Any]]:
        """Row of each phrase: score and pixel of its peak, and its box."""
        rows: list[dict[str, Any]] = []
        for number, item in enumerate(self.phrases):
            box = item.box and "{x:.0f}, {y:.0f}, {width:.0f} x {height:.0f}".format(
                **vars(item.box)
            )
            rows.append(
                {
                    "phrase": self._asked[number] if self._asked else f"phrase {number}",
                    "score": item.peak.score,
                    "x": round(item.peak.x),
                    "y": round(item.peak.y),
                    "box": box,
                    "percentile": item.percentile,
                }
            )
        return rows

    def _pictures(self) -> str:
        if self._picture is None:
            return ""
        return "".join(self._picture.html([item.grid]) for item in self.phrases)


class GroundAnswers(Schema):
    """Answer of `/ground` to several images."""

    model: str
    """Digest of the model."""
    answers: list[GroundAnswer | RefusedImage]
    """One per image, in the order of asking."""


class EmbedAnswer(Schema):
    """Answer of `/embed`."""

    model: str
    """Digest of the model; vectors of different models cannot be compared."""
    engine: str
    """Who ran the encoders, as in `/model`."""
    precision: str
    """Of the encoders."""
    what: Literal["global", "regions"]
    """Of which part of the images the vectors are."""
    dim: int
    """Numbers of a vector."""
    shape: list[int]
    """(inputs, dim), or (images, rows, columns, dim) for regions, rows from the top."""
    dtype: Literal["float32"] = "float32"
    """Of the numbers."""
    images: list[ImageFacts | RefusedImage]
    """One per image, in the order of asking; empty for sentences."""
    vectors: list[Any] | None = None
    """Nested lists of that shape, null in the place of a refused image; null where base64 was asked
    for."""
    base64: str | None = None
    """The bytes of the numbers, little endian, the last axis fastest, NaN for a refused image; null
    where JSON was asked for."""

    def to_numpy(self) -> "np.typing.NDArray[np.floating[Any]]":
        """Return the vectors as an array of `shape` and `dtype`, NaN for a refused image.

        Needs numpy.
        """
        import numpy as np

        if self.base64 is None:
            filled = np.full(self.shape, np.nan, self.dtype)
            for place, vector in enumerate(self.vectors or ()):
                if vector is not None:
                    filled[place] = vector
            return filled
        stored = np.dtype(self.dtype).newbyteorder("<")
        numbers = np.frombuffer(b64decode(self.base64), stored)
        return numbers.reshape(self.shape).astype(self.dtype)


class HitAnswer(Schema):
    """One hit."""

    id: str
    """Image id, or text key."""
    score: float
    """Exact score; higher is closer."""
    texts: list[str]
    """The sentence, or the sentences of the image's study."""
    studies: int = 1
    """Studies that say the sentence; 1 for an image."""
    thumbnail: str | None = None
    """Path of the image's picture, where the index has one."""
    study_id: str = ""
    """Study of the image; empty for a sentence."""
    subject_id: str = ""
    """Patient of the image; empty for a sentence."""
    split: str = ""
    """Split of the image; empty for a sentence."""
    view: str = ""
    """View position of the image; empty for a sentence."""
    findings: list[str] = []
    """What the image's report asserts, and labels of other findings; empty for a sentence."""


class RetrieveAnswer(Schema):
    """Answer of `/retrieve`."""

    model: str
    """Digest of the model."""
    index: str
    """Digest of the index."""
    hits: list[HitAnswer]
    """Best first; equal scores by id."""


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


class HeadFacts(Schema):
    """Facts of a head."""

    name: str
    """The label that it was fitted to."""
    kind: Literal["linear"]
    """How it decides."""
    features: Literal["space"]
    """What it reads: the mean region in the shared space."""
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
    device: str = ""
    """Device that runs the model, such as cpu or cuda:0; empty: an older service's."""
    engine: str = "torch"
    """Who runs the encoders: torch or openvino."""
    precision: str = "float32"
    """Of the encoders."""


class State(Schema):
    """Answer of `/health` and `/ready`."""

    status: str = Field(examples=["ok"])
    """ok."""
    needs_key: bool = False
    """Whether other routes ask for an API key."""


class FailureAnswer(Schema):
    """Answer to every request that fails; it repeats nothing of what was sent."""

    model_config = ConfigDict(extra="forbid")

    code: str
    """What went wrong, in one word."""
    message: str
    """What went wrong, in one fixed line."""
    request_id: str
    """Under which the log knows the request."""
