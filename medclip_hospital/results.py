"""One answer -> the DICOM objects that show it; the presentation state is made here."""

import datetime as dt

from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImageHeader
from medclip_dcl.errors import ConfigError, ImageError
from medclip_dcl.schemas import ClassifyAnswer

from .instance import NOTICE, Answered, EncodedObject, label_of, referenced
from .secondary_capture import secondary_capture
from .settings import ResultsConfig

_DEFAULTS = ResultsConfig()
_LAYER = "FINDINGS"
_WINDOW = ("VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction")


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

    Raises:
        ImageError: answer, picture and header are of images of different size.
        ConfigError: highdicom is not installed.
    """
    answered = Answered(header, answer, answered_at, settings)
    size = int(answered.image.Rows), int(answered.image.Columns)
    if size != picture.pixels.shape or size != (answer.image.height_px, answer.image.width_px):
        raise ImageError("size_mismatch", "answer, picture and header differ in size")
    made = []
    for kind in settings.objects:
        if kind == "sr":
            made.append(answered.encode(_report(answered), kind))
        elif kind == "sc":
            made.append(answered.encode(secondary_capture(answered, picture), kind))
        elif answered.boxes() and not answered.is_refused:
            made.append(answered.encode(_presentation_state(answered), kind))
    return tuple(made)


def _report(answered: Answered) -> Dataset:
    try:
        from .structured_report import structured_report
    except ImportError as error:
        raise ConfigError(
            "a structured report needs highdicom; run pip install '.[dicom]' in the checkout"
        ) from error
    return structured_report(answered)


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
