"""Grayscale softcopy presentation state: the boxes, and the image as it looked before.

Made with pydicom alone: highdicom's says PresentationLUTShape IDENTITY of a MONOCHROME1 image,
which is then shown as its negative.

Source: DICOM PS3.3, A.33.1, C.10.4, C.10.5, C.10.7 and C.11.
"""

from pydicom.dataset import Dataset
from pydicom.tag import Tag
from pydicom.uid import GrayscaleSoftcopyPresentationStateStorage

from .identifiers import label_of
from .instance import NOTICE, Answered, referenced

_LAYER = "FINDINGS"
_WINDOW = ("VOILUTSequence", "WindowCenter", "WindowWidth", "VOILUTFunction")


def presentation_state(answered: Answered) -> Dataset:
    """Make the presentation state of an answer with a box or more."""
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
