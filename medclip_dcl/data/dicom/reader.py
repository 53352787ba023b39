"""DICOM bytes -> grey picture: one image, one frame, grey, in a listed transfer syntax.

Everything that can be refused from headers is refused before a decoder or a large
allocation. Only the elements named here are ever parsed, so names and other
identifiers do not enter memory as values.
"""

import io
import math
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom.config
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut
from pydicom.tag import BaseTag, Tag

from medclip_dcl.data.dicom.metadata import (
    DEFLATED,
    SYNTAXES,
    UNDEFINED,
    find_values,
    read_file_meta,
)
from medclip_dcl.data.dicom.pixels import Size, decode_pixels
from medclip_dcl.data.grayscale import (
    TOP,
    DecodedImage,
    Layout,
    Meaning,
    Shades,
    Values,
    padding_mask,
    shade,
    stored_values,
)
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import ImageError

# Archives hold values that break their VR; only the elements below are looked at, and checked here.
pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE

PUBLIC_TAGS = (
    "Modality",
    "ViewPosition",
    "BodyPartExamined",
    "PhotometricInterpretation",
    "PresentationIntentType",
)
"""The only tags whose values leave the reader; all are code strings."""

PIXEL_TAGS = (
    *("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "BurnedInAnnotation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "RescaleType"),
    *("VOILUTSequence", "VOILUTFunction", "WindowCenter", "WindowWidth"),
    *("PixelSpacing", "ImagerPixelSpacing"),
)
"""Tags that say what the pixels mean; their values stay in the reader."""

_WANTED = [Tag(keyword) for keyword in (*PUBLIC_TAGS, *PIXEL_TAGS)]
_PIXEL_DATA = Tag("PixelData")
_ANNOTATION = Tag("BurnedInAnnotation")
_BURNED_IN = (_ANNOTATION.group, _ANNOTATION.element)
_CODE_STRING = re.compile(r"[A-Z0-9 _]{1,16}")
# Images have some hundred elements, those within sequences included. pydicom reads one to three
# times for each, which costs it some microseconds.
_MAX_READS = 25_000
_LONGEST_VALUE = 2**16
_LONGEST_SEQUENCE = 2**20  # of stated length: it is parsed only where it is used; of lookup tables


def read_dicom(data: bytes, settings: ImagesConfig) -> DecodedImage:
    """Read one image: modality table or rescale applied, the VOI table or window where asked for.

    Raises:
        ImageError: the file is refused; the code says why.

    Source: DICOM PS3.3, C.7.6.3, C.11.1 and C.11.2; PS3.5, Annex A; PS3.10, 7.1.
    """
    tags, syntax, body, at = read_elements(data, settings, _WANTED)
    require_no_text(raw_value(tags, "BurnedInAnnotation"), settings)
    inverted = require_grey(tags)
    size, layout = image_size(tags, settings), _layout(tags)
    words, end = decode_pixels(body, at, SYNTAXES[syntax], size, layout.bits_allocated)
    require_no_text(annotation_behind(body, end, syntax), settings)
    picture = shade(words, _meaning(tags, layout, voi=settings.voi == "dicom"), inverted=inverted)
    return DecodedImage(
        shades=picture,
        bits_stored=layout.bits_stored,
        source="dicom",
        inverted=inverted,
        spacing_mm=_spacing(tags),
        window=None if settings.voi == "dicom" else _window(tags, picture, inverted=inverted),
        tags={name: code for name in PUBLIC_TAGS if (code := code_string(tags, name))},
    )


class _CountedReads(io.BytesIO):
    """A stream that ends a parser that reads too often: the one bound on all that it parses."""

    left = _MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ImageError("too_many_elements", f"more than {_MAX_READS} reads of elements")
        return super().read(size)


def read_elements(
    data: bytes, settings: ImagesConfig, wanted: list[BaseTag]
) -> tuple[Dataset, str, bytes, int]:
    """Give the wanted elements, the syntax, the data set's bytes and where its pixels start.

    The data set is inflated where the syntax is `DEFLATED`. ImageError where it cannot be read.
    """
    syntax, start = read_file_meta(data)
    if syntax not in SYNTAXES:
        raise ImageError("transfer_syntax", "the transfer syntax is not decoded; convert the file")
    body = data
    if syntax == DEFLATED:
        # A decompressor object stops at a length; `zlib.decompress` would inflate a bomb whole.
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        body, start = inflater.decompress(data[start:], settings.max_bytes), 0
        if not inflater.eof:
            code = "too_many_bytes" if len(body) >= settings.max_bytes else "truncated"
            raise ImageError(code, "the deflated data set is cut, or too large once inflated")
    form = SYNTAXES[syntax]
    stream = _CountedReads(body)
    stream.seek(start)

    annotations: list[bytes] = []

    def stop(tag: BaseTag, _vr: str | None, length: int) -> bool:
        if tag == _ANNOTATION:
            annotations.append(body[stream.tell() : stream.tell() + min(length, _LONGEST_VALUE)])
        if tag in wanted and length != UNDEFINED:
            is_sequence = dictionary_VR(tag) == "SQ"
            if length > (_LONGEST_SEQUENCE if is_sequence else _LONGEST_VALUE):
                raise ImageError("too_many_elements", "the value of a tag is longer than any is")
        return bool(tag >= _PIXEL_DATA)

    try:
        tags = read_dataset(
            stream, form.implicit, form.order == "little", stop_when=stop, specific_tags=[*wanted]
        )
    except OSError as error:  # pydicom makes one of whatever is raised within a sequence
        if stream.left < 0:
            raise ImageError("too_many_elements", "sequences hold too many elements") from error
        raise
    if any(_says_text(annotation) for annotation in annotations[:-1]):  # pydicom keeps the last
        tags.BurnedInAnnotation = "YES"
    return tags, syntax, body, stream.tell()


def require_no_text(annotation: bytes, settings: ImagesConfig) -> bool:
    """Refuse an image whose BurnedInAnnotation is neither NO nor blank.

    Where `settings.reject_burned_in` is off, say whether it is such an image.
    """
    is_burned_in = _says_text(annotation)
    if is_burned_in and settings.reject_burned_in:
        raise ImageError("burned_in", "BurnedInAnnotation is not NO; de-identify the pixels first")
    return is_burned_in


def _says_text(annotation: bytes) -> bool:
    return annotation.strip(b"\0 ").upper() not in {b"", b"NO"}


def annotation_behind(body: bytes, end: int, syntax: str) -> bytes:
    """Give a BurnedInAnnotation that stands behind the pixels, where `read_elements` has ended.

    Of several one that is neither NO nor blank. ImageError where too many elements follow.
    """
    form = SYNTAXES[syntax]
    values = find_values(body, end, _BURNED_IN, implicit=form.implicit, order=form.order)
    return next(filter(_says_text, values), b"")


def require_grey(tags: Dataset) -> bool:
    """Refuse colour and several frames; say whether the image is MONOCHROME1."""
    kind = code_string(tags, "PhotometricInterpretation")
    if whole_number(tags, "SamplesPerPixel", 1) != 1 or kind in {"RGB", "PALETTE COLOR"}:
        raise ImageError("not_greyscale", "the image has colours; send a MONOCHROME one")
    if kind not in {"MONOCHROME1", "MONOCHROME2"}:
        raise ImageError("bad_tags", "PhotometricInterpretation is not MONOCHROME1 or MONOCHROME2")
    if whole_number(tags, "NumberOfFrames", 1) not in {0, 1}:
        raise ImageError("not_single_frame", "the file has several frames; send one image")
    return kind == "MONOCHROME1"


def require_slope(tags: Dataset) -> None:
    """Refuse a rescale that leaves no difference between intensities, or none that is finite."""
    slope = _real(tags, "RescaleSlope")
    if slope is not None and (not math.isfinite(slope) or slope == 0):
        raise ImageError("bad_intensities", "RescaleSlope is zero or not finite; correct the tag")


def image_size(tags: Dataset, settings: ImagesConfig) -> Size:
    """Give rows and columns; ImageError where they are missing, none or too many."""
    rows, columns = _required(tags, "Rows"), _required(tags, "Columns")
    if rows < 1 or columns < 1:
        raise ImageError("bad_tags", f"the image has {rows} x {columns} pixels")
    if rows * columns > settings.max_pixels:
        raise ImageError("too_many_pixels", f"{rows} x {columns} exceeds images.max_megapixels")
    return rows, columns


def _layout(tags: Dataset) -> Layout:
    allocated = _required(tags, "BitsAllocated")
    stored = whole_number(tags, "BitsStored", allocated) or allocated
    high = whole_number(tags, "HighBit", stored - 1)
    signed = whole_number(tags, "PixelRepresentation", 0)
    if allocated not in {8, 16} or not 1 <= stored <= allocated or signed not in {0, 1}:
        raise ImageError("bad_tags", "BitsAllocated is not 8 or 16, or BitsStored does not fit it")
    if high is None or not stored - 1 <= high < allocated:
        raise ImageError("bad_tags", "HighBit does not fit BitsStored and BitsAllocated")
    return Layout(allocated, stored, high, signed == 1)


def _meaning(tags: Dataset, layout: Layout, *, voi: bool) -> Meaning:
    # Words become intensities by the modality table or rescale, then by the VOI table or window if
    # asked for. Padding is recognised by the stored value: after a rescale it looks like tissue.
    require_slope(tags)
    for keyword in ("RescaleSlope", "RescaleIntercept"):  # pydicom would raise on a blank one
        if keyword in tags and _get(tags, keyword) in {None, ""}:
            delattr(tags, keyword)
    padding = whole_number(tags, "PixelPaddingValue", None)
    limit = whole_number(tags, "PixelPaddingRangeLimit", None)

    def meaning(words: Values) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        values = stored_values(words, layout)
        table = apply_modality_lut(values, tags)
        if voi:
            table = apply_voi_lut(table, tags)
        valid = padding_mask(values, layout, padding, limit)
        return np.asarray(table, dtype=np.float64), valid

    return meaning


def _window(tags: Dataset, picture: Shades, *, inverted: bool) -> tuple[float, float] | None:
    # The window is given in intensities (after the rescale), the picture spans 0 to TOP between its
    # own lowest and highest one, upside down for MONOCHROME1.
    centre, width = _real(tags, "WindowCenter"), _real(tags, "WindowWidth")
    if picture.constant or centre is None or width is None or width <= 0:
        return None
    scale = TOP / (picture.high - picture.low)
    level = (picture.high - centre if inverted else centre - picture.low) * scale
    return (level, width * scale) if math.isfinite(level) and math.isfinite(width) else None


def _spacing(tags: Dataset) -> tuple[float, float] | None:
    # At the detector where it is given; PixelSpacing may be calibrated to the patient, or copied.
    for keyword in ("ImagerPixelSpacing", "PixelSpacing"):
        pair = _get(tags, keyword)
        try:
            down, across = (float(item) for item in pair or ())
        except (TypeError, ValueError):
            continue
        if 0 < down < math.inf and 0 < across < math.inf:
            return down, across
    return None


def _get(tags: Dataset, keyword: str) -> Any:
    try:
        return tags.get(keyword)
    except Exception:  # noqa: BLE001 (pydicom raises anything on a malformed value: it is absent)
        return None


def raw_value(tags: Dataset, keyword: str) -> bytes:
    """Give the bytes of a value as they are written; of one that was read already its text."""
    element = tags.get_item(Tag(keyword)) if keyword in tags else None
    value = element.value if element is not None else None
    return value if isinstance(value, bytes) else str("" if value is None else value).encode()


def code_string(tags: Dataset, keyword: str) -> str:
    """Give a code in capitals, as a code string may be; empty where the value is none."""
    value = str(_get(tags, keyword) or "").strip().upper()
    return value if _CODE_STRING.fullmatch(value) else ""


def _real(tags: Dataset, keyword: str) -> float | None:
    value = _get(tags, keyword)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = next(iter(value), None)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def whole_number(tags: Dataset, keyword: str, default: int | None) -> int | None:
    """Give a whole number; ImageError where the value is something else."""
    if keyword not in tags:
        return default
    value = _get(tags, keyword)
    if value == "" or (value is None and not raw_value(tags, keyword).strip()):
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ImageError("bad_tags", f"{keyword} is not a single whole number")
    return int(value)


def _required(tags: Dataset, keyword: str) -> int:
    value = whole_number(tags, keyword, None)
    if value is None:
        raise ImageError("bad_tags", f"{keyword} is missing")
    return value
