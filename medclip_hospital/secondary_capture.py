"""Secondary capture: heat map, boxes and figures drawn into the picture, which any viewer shows.

Made with pydicom alone: highdicom's demands a PatientOrientation, which real images lack, and
copies no flag of de-identification.

Source: DICOM PS3.3, A.8.1, C.8.6 and C.7.6.1.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from pydicom.dataset import Dataset
from pydicom.uid import SecondaryCaptureImageStorage

from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.heatmaps import draw_heat
from medclip_dcl.schemas import FindingAnswer, HeadAnswer

from .instance import NAME, NOTICE, Answered, code_items, decision_of, label_of, plain, referenced

_FONT_PX, _LINE_PX, _MARGIN_PX = 16, 20, 8
_MOST_LINES = 10  # with a square picture the object stays below 4 MiB
_NARROWEST_PX = 420  # of the panel with the figures
_BOX, _TEXT = (240, 160, 75), (235, 235, 235)
_BANNER, _ON_BANNER = (150, 20, 20), (255, 255, 255)


def secondary_capture(answered: Answered, picture: GreyImage) -> Dataset:
    """Make the capture of an answer; `picture` is the decoded image."""
    image, pixels = answered.image, draw_answer(answered, picture)
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


def draw_answer(answered: Answered, picture: GreyImage) -> npt.NDArray[np.uint8]:
    """Draw what is present onto the image, and a line per finding below it.

    Of an image that is out of range a banner above it says so; one that was not analysed has
    neither heat nor lines.

    Returns:
        (height, width, 3); the picture's longer side is at most `heatmaps.LONGEST_PX`.
    """
    findings = [] if answered.is_refused else answered.answer.findings
    shown = [np.array(item.heatmap) for item in findings if item.decision and item.heatmap]
    heat = draw_heat(picture, shown)
    height, width = heat.shape[:2]
    lines = _lines(answered, findings)
    banner = answered.warning.split(": ") if answered.warning else []
    above = _LINE_PX * len(banner) + 2 * _MARGIN_PX if banner else 0
    panel = _LINE_PX * len(lines) + 2 * _MARGIN_PX
    canvas = Image.new("RGB", (max(width, _NARROWEST_PX), above + height + panel))
    canvas.paste(Image.fromarray(heat), (0, above))
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(_FONT_PX)
    if banner:
        draw.rectangle((0, 0, canvas.width, above - 1), _BANNER)
        _write(draw, banner, 0, _ON_BANNER, font)
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
    _write(draw, lines, above + height, _TEXT, font)
    return np.asarray(canvas)


def _write(
    draw: ImageDraw.ImageDraw,
    lines: Sequence[str],
    top: int,
    color: tuple[int, int, int],
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    for row, line in enumerate(lines):
        draw.text((_MARGIN_PX, top + _MARGIN_PX + row * _LINE_PX), line, color, font)


def _lines(answered: Answered, findings: Sequence[FindingAnswer]) -> list[str]:
    """Give a line per finding and head, those that are present first, and what the object is."""
    lines = []
    said: list[FindingAnswer | HeadAnswer] = [*findings, *answered.heads]
    for item in sorted(said, key=lambda item: not item.decision):
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
