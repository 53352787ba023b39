"""One answer -> the DICOM objects that show it; `structured_report` makes the reports."""

import datetime as dt
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage, SecondaryCaptureImageStorage

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImageHeader
from medclip_dcl.inference.grounding import draw_heat
from medclip_dcl.schemas import ClassifyAnswer, FindingAnswer, HeadAnswer

from .instance import (
    NAME,
    NOTICE,
    Answered,
    EncodedObject,
    ResultsConfig,
    code_items,
    decision_of,
    label_of,
    plain,
    referenced,
)

_DEFAULTS = ResultsConfig()
_LAYER = "FINDINGS"
_WINDOW = ("VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction")

_FONT_PX, _LINE_PX, _MARGIN_PX = 16, 20, 8
_MOST_LINES = 10  # with a square picture the object stays below 4 MiB
_NARROWEST_PX = 420  # of the panel with the figures
_BOX, _TEXT = (240, 160, 75), (235, 235, 235)
_BANNER, _ON_BANNER = (150, 20, 20), (255, 255, 255)


def encode_results(
    header: ImageHeader,
    answer: ClassifyAnswer,
    picture: GreyImage,
    answered_at: dt.datetime,
    settings: ResultsConfig = _DEFAULTS,
) -> tuple[EncodedObject, ...]:
    """Turn an answer into DICOM objects: a pure function, the same arguments give the same bytes.

    Args:
        header: of the image, from `Decoder.separate`.
        answer: of `/classify` with `explain`, as it was given or read back from a journal.
        picture: the image, decoded.
        answered_at: when the model answered; dates and times of the objects, as they stand.
        settings: which objects.

    Returns:
        The objects in the order of `settings.objects`; a presentation state where there is a box.
        Of an image that is refused as out of range they say that it was not analysed.

    ImageError where answer, picture and header are of images of different size.
    """
    answered = Answered(header, answer, answered_at, settings)
    size = int(answered.image.Rows), int(answered.image.Columns)
    if size != picture.pixels.shape or size != (answer.image.height_px, answer.image.width_px):
        raise ImageError("size_mismatch", "answer, picture and header differ in size")
    made = []
    for kind in settings.objects:
        if kind == "sr":
            from .structured_report import structured_report  # a second of highdicom

            made.append(answered.encode(structured_report(answered), kind))
        elif kind == "sc":
            made.append(answered.encode(_secondary_capture(answered, picture), kind))
        elif answered.boxes() and not answered.is_refused:
            made.append(answered.encode(_presentation_state(answered), kind))
    return tuple(made)


def _presentation_state(answered: Answered) -> Dataset:
    """Make the grayscale softcopy presentation state: the boxes, and the image as it looked before.

    Made with pydicom alone: highdicom's says PresentationLUTShape IDENTITY of a MONOCHROME1 image,
    which is then shown as its negative.

    Source: DICOM PS3.3, A.33.1, C.10.4, C.10.5, C.10.7 and C.11.
    """
    image = answered.image
    made = Dataset()
    made.SOPClassUID = GrayscaleSoftcopyPresentationStateStorage
    made.Modality = "PR"
    made.ContentLabel = "MEDCLIP"
    made.ContentDescription = NOTICE
    made.ContentCreatorName = None
    made.PresentationCreationDate = f"{answered.answered_at:%Y%m%d}"
    made.PresentationCreationTime = f"{answered.answered_at:%H%M%S}"
    series = Dataset()
    series.SeriesInstanceUID = image.SeriesInstanceUID
    series.ReferencedImageSequence = [referenced(image)]
    made.ReferencedSeriesSequence = [series]
    made.DisplayedAreaSelectionSequence = [_whole(image)]
    made.GraphicAnnotationSequence = [_annotation(answered)]
    layer = Dataset()
    layer.GraphicLayer, layer.GraphicLayerOrder = _LAYER, 1
    made.GraphicLayerSequence = [layer]
    _copy_look(made, image)
    return made


def _whole(image: Dataset) -> Dataset:
    area = Dataset()
    # Unlike coordinates of graphics, those of the displayed area count pixels from 1\1.
    area.DisplayedAreaTopLeftHandCorner = [1, 1]
    area.DisplayedAreaBottomRightHandCorner = [image.Columns, image.Rows]
    area.PresentationSizeMode = "SCALE TO FIT"
    spacing = image.get("PixelSpacing") or image.get("ImagerPixelSpacing")
    if spacing:
        area.PresentationPixelSpacing = spacing
    else:
        area.PresentationPixelAspectRatio = [1, 1]
    return area


def _annotation(answered: Answered) -> Dataset:
    annotation = Dataset()
    annotation.ReferencedImageSequence = [referenced(answered.image)]
    annotation.GraphicLayer = _LAYER
    annotation.GraphicObjectSequence, annotation.TextObjectSequence = [], []
    for finding, box in answered.boxes():
        corners = answered.corners(box)
        shape = Dataset()
        shape.GraphicAnnotationUnits = "PIXEL"
        shape.GraphicDimensions = 2
        shape.NumberOfGraphicPoints = len(corners)
        shape.GraphicData = [value for corner in corners for value in corner]
        shape.GraphicType = "POLYLINE"
        shape.GraphicFilled = "N"
        annotation.GraphicObjectSequence.append(shape)
        text = Dataset()
        text.AnchorPointAnnotationUnits = "PIXEL"
        figure = f"score {finding.score:.2f}"
        if finding.probability is not None:
            figure = f"{finding.probability:.0%}"
        note = "(research, OUT OF RANGE)" if answered.warning else "(research)"
        text.UnformattedTextValue = f"{label_of(finding)} {figure} {note}"
        text.AnchorPoint = list(corners[0])
        text.AnchorPointVisibility = "N"
        annotation.TextObjectSequence.append(text)
    return annotation


def _copy_look(made: Dataset, image: Dataset) -> None:
    """Copy modality table and window, so that the image looks as it did."""
    if "ModalityLUTSequence" in image:
        made.ModalityLUTSequence = image.ModalityLUTSequence
    elif "RescaleSlope" in image:
        made.RescaleSlope, made.RescaleIntercept = image.RescaleSlope, image.RescaleIntercept
        made.RescaleType = image.get("RescaleType", "US")
    window = Dataset()
    for name in _WINDOW if "WindowCenter" in image else _WINDOW[:1]:
        if name in image:
            window[Tag(name)] = image[name]
    if len(window):
        made.SoftcopyVOILUTSequence = [window]
    inverted = image.get("PhotometricInterpretation") == "MONOCHROME1"
    made.PresentationLUTShape = "INVERSE" if inverted else "IDENTITY"


def _secondary_capture(answered: Answered, picture: GreyImage) -> Dataset:
    """Make the secondary capture of an answer: heat, boxes and figures drawn into the picture.

    Made with pydicom alone: highdicom's demands a PatientOrientation, which real images lack, and
    copies no flag of de-identification.

    Source: DICOM PS3.3, A.8.1, C.8.6 and C.7.6.1.
    """
    image, pixels = answered.image, _draw_answer(answered, picture)
    made = Dataset()
    made.SOPClassUID = SecondaryCaptureImageStorage
    made.Modality = "OT"
    made.ConversionType = "WSD"
    made.ImageType = ["DERIVED", "SECONDARY"]
    made.DerivationDescription = f"Findings of {NAME} drawn into the image. {NOTICE}."
    source = referenced(image)
    source.PurposeOfReferenceCodeSequence = code_items(
        "121322", "DCM", "Source of Image Processing Operation"
    )
    made.SourceImageSequence = [source]
    made.PatientOrientation = image.get("PatientOrientation")
    made.BurnedInAnnotation = "NO"  # scores are drawn in, not who it is
    made.RecognizableVisualFeatures = "NO"
    made.Rows, made.Columns = pixels.shape[:2]
    made.SamplesPerPixel, made.PhotometricInterpretation = 3, "RGB"
    made.PlanarConfiguration = made.PixelRepresentation = 0
    made.BitsAllocated = made.BitsStored = 8
    made.HighBit = 7
    made.add_new("PixelData", "OB", pixels.tobytes() + bytes(pixels.size % 2))
    return made


def _draw_answer(answered: Answered, picture: GreyImage) -> npt.NDArray[np.uint8]:
    """Draw what is present onto the image, and a line per finding below it.

    Of an image that is out of range a banner above it says so; one that was not analysed has
    neither heat nor lines.

    Returns:
        (height, width, 3); the picture's longer side is at most `grounding.LONGEST_PX`.
    """
    findings = [] if answered.is_refused else answered.answer.findings
    shown = [np.array(item.heatmap) for item in findings if item.decision and item.heatmap]
    heat = draw_heat(picture, shown, next((f.where.affine for f in findings if f.where), ()))
    height, width = heat.shape[:2]
    lines = _lines(answered, findings)
    banner = answered.warning.split(": ") if answered.warning else []
    above = _LINE_PX * len(banner) + 2 * _MARGIN_PX if banner else 0
    panel = _LINE_PX * len(lines) + 2 * _MARGIN_PX
    canvas = Image.new("RGB", (max(width, _NARROWEST_PX), above + height + panel))
    canvas.paste(Image.fromarray(heat), (0, above))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(_FONT_PX)

    def write(written: Sequence[str], top: int, colour: tuple[int, int, int]) -> None:
        for row, line in enumerate(written):
            draw.text((_MARGIN_PX, top + _MARGIN_PX + row * _LINE_PX), line, colour, font)

    if banner:
        draw.rectangle((0, 0, canvas.width, above - 1), _BANNER)
        write(banner, 0, _ON_BANNER)
    scale = width / picture.pixels.shape[1]
    taken: list[tuple[float, float]] = []  # corners of labels, which must not cover each other
    for finding, box in answered.boxes() if findings else ():
        corners = [(scale * x, above + scale * y) for x, y in answered.corners(box)]
        draw.line(corners, fill=_BOX, width=3, joint="curve")
        x, y = corners[0][0] + 5, max(corners[0][1] - _LINE_PX, above + 2)
        while any(abs(x - left) < 8 * _LINE_PX and abs(y - top) < _LINE_PX for left, top in taken):
            y += _LINE_PX
        taken.append((x, y))
        draw.text((x, y), label_of(finding), _BOX, font, stroke_width=2, stroke_fill=0)
    write(lines, above + height, _TEXT)
    return np.asarray(canvas)


def _lines(answered: Answered, findings: Sequence[FindingAnswer]) -> list[str]:
    """Return a line per finding and head, those that are present first, and what the object is."""
    lines = []
    answers: list[FindingAnswer | HeadAnswer] = [*findings, *answered.heads]
    for item in sorted(answers, key=lambda item: not item.decision):
        figure = f"score {item.score:.3f}, no probability"
        if item.probability is not None:
            figure = f"probability {item.probability:.1%}"
        what = ", head" if isinstance(item, HeadAnswer) else ""
        lines.append(f"{label_of(item)}{what}: {decision_of(item)}, {figure}")
    if len(lines) > _MOST_LINES:
        more = len(lines) - _MOST_LINES + 1
        lines = [*lines[: _MOST_LINES - 1], f"and {more} more in the report"]
    answer = answered.answer
    made_by = f"{NAME}, model {answer.model[:12]}, {plain(answer.engine)} {plain(answer.precision)}"
    return [*lines, NOTICE, made_by]
