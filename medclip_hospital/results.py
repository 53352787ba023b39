"""One answer -> the DICOM objects that show it."""

import datetime as dt

from pydicom.dataset import Dataset

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImageHeader
from medclip_dcl.errors import ConfigError, ImageError
from medclip_dcl.schemas import ClassifyAnswer

from .instance import Answered, EncodedObject
from .presentation_state import presentation_state
from .secondary_capture import secondary_capture
from .settings import ResultsConfig

_DEFAULTS = ResultsConfig()


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
            made.append(answered.encode(presentation_state(answered), kind))
    return tuple(made)


def _report(answered: Answered) -> Dataset:
    try:
        from .structured_report import structured_report
    except ImportError as error:
        raise ConfigError(
            "a structured report needs highdicom; run pip install '.[dicom]' in the checkout"
        ) from error
    return structured_report(answered)
