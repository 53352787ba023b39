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
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pydicom.config
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut
from pydicom.tag import BaseTag, Tag

from medclip_dcl.data.dicom import pixel_data
from medclip_dcl.data.dicom.metadata import DEFLATED, read_file_meta
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
from medclip_dcl.data.ipc import Limits
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
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "NumberOfFrames",
    "BitsAllocated",
    "BitsStored",
    "HighBit",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "ModalityLUTSequence",
    "RescaleSlope",
    "RescaleIntercept",
    "RescaleType",
    "VOILUTSequence",
    "VOILUTFunction",
    "WindowCenter",
    "WindowWidth",
    "PixelSpacing",
    "ImagerPixelSpacing",
    "BurnedInAnnotation",
)
"""Tags that say what the pixels mean; their values stay in the reader."""
_WANTED = [Tag(keyword) for keyword in (*PUBLIC_TAGS, *PIXEL_TAGS)]
_PIXEL_DATA = Tag("PixelData")
_CODE_STRING = re.compile(r"[A-Z0-9 _]{1,16}")
_MAX_ELEMENTS = 20_000  # images have some hundred; each costs pydicom some microseconds


@dataclass(frozen=True)
class _Header:
    """The parsed elements, and where the pixel element starts in `body`."""

    tags: Dataset
    syntax: str
    body: bytes
    at: int


def read_dicom(data: bytes, limits: Limits) -> DecodedImage:
    """Read one image.

    Returns:
        The picture: modality table or rescale applied, the VOI table or window only
        where asked for, MONOCHROME1 turned round.

    Raises:
        ImageError: the file is refused; the code says why.

    Source: DICOM PS3.3, C.7.6.3, C.11.1 and C.11.2; PS3.5, Annex A; PS3.10, 7.1.
    """
    header = _read_header(data, limits)
    tags = header.tags
    if limits.reject_burned_in and _code(tags, "BurnedInAnnotation") == "YES":
        raise ImageError("burned_in", "BurnedInAnnotation is YES; de-identify the pixels first")
    inverted = _require_grey(tags)
    rows, columns = _size(tags, limits)
    layout = _layout(tags)
    words = pixel_data.decode(
        header.body, header.at, header.syntax, (rows, columns), layout.bits_allocated
    )
    picture = shade(words, _meaning(tags, layout, voi=limits.voi), inverted=inverted)
    return DecodedImage(
        shades=picture,
        bits_stored=layout.bits_stored,
        source="dicom",
        inverted=inverted,
        spacing_mm=_spacing(tags),
        window=None if limits.voi else _window(tags, picture, inverted=inverted),
        tags={name: code for name in PUBLIC_TAGS if (code := _code(tags, name))},
    )


def _read_header(data: bytes, limits: Limits) -> _Header:
    syntax, start = read_file_meta(data)
    if syntax not in pixel_data.SYNTAXES:
        raise ImageError("transfer_syntax", "the transfer syntax is not decoded; convert the file")
    body = data
    if syntax == DEFLATED:
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        body, start = inflater.decompress(data[start:], limits.max_bytes), 0
        if not inflater.eof:
            code = "too_many_bytes" if len(body) >= limits.max_bytes else "truncated"
            raise ImageError(code, "the deflated data set is cut, or too large once inflated")
    form = pixel_data.SYNTAXES[syntax]
    stream = io.BytesIO(body)
    stream.seek(start)
    seen = 0

    def stop(tag: BaseTag, _vr: str | None, _length: int) -> bool:
        nonlocal seen
        seen += 1
        if seen > _MAX_ELEMENTS:
            raise ImageError("too_many_elements", f"more than {_MAX_ELEMENTS} elements")
        return bool(tag >= _PIXEL_DATA)

    tags = read_dataset(
        stream, form.implicit, form.little_endian, stop_when=stop, specific_tags=[*_WANTED]
    )
    return _Header(tags, syntax, body, stream.tell())


def _require_grey(tags: Dataset) -> bool:
    """Refuse colour and several frames; say whether the image is MONOCHROME1."""
    kind = _code(tags, "PhotometricInterpretation")
    if _whole(tags, "SamplesPerPixel", 1) != 1 or kind in {"RGB", "PALETTE COLOR"}:
        raise ImageError("not_greyscale", "the image has colours; send a MONOCHROME one")
    if kind not in {"MONOCHROME1", "MONOCHROME2"}:
        raise ImageError("bad_tags", "PhotometricInterpretation is not MONOCHROME1 or MONOCHROME2")
    if _whole(tags, "NumberOfFrames", 1) not in {0, 1}:
        raise ImageError("not_single_frame", "the file has several frames; send one image")
    return kind == "MONOCHROME1"


def _size(tags: Dataset, limits: Limits) -> tuple[int, int]:
    rows, columns = _required(tags, "Rows"), _required(tags, "Columns")
    if rows < 1 or columns < 1:
        raise ImageError("bad_tags", f"the image has {rows} x {columns} pixels")
    if rows * columns > limits.max_pixels:
        raise ImageError("too_many_pixels", f"{rows} x {columns} exceeds images.max_megapixels")
    return rows, columns


def _layout(tags: Dataset) -> Layout:
    allocated = _required(tags, "BitsAllocated")
    stored = _whole(tags, "BitsStored", allocated) or allocated
    high = _whole(tags, "HighBit", stored - 1)
    signed = _whole(tags, "PixelRepresentation", 0)
    if allocated not in {8, 16} or not 1 <= stored <= allocated or signed not in {0, 1}:
        raise ImageError("bad_tags", "BitsAllocated is not 8 or 16, or BitsStored does not fit it")
    if high is None or not stored - 1 <= high < allocated:
        raise ImageError("bad_tags", "HighBit does not fit BitsStored and BitsAllocated")
    return Layout(allocated, stored, high, signed == 1)


def _meaning(tags: Dataset, layout: Layout, *, voi: bool) -> Meaning:
    """Say what words mean: modality table or rescale, then VOI if asked for; padding aside."""
    slope = _real(tags, "RescaleSlope")
    if slope is not None and (not math.isfinite(slope) or slope == 0):
        raise ImageError("bad_intensities", "RescaleSlope is zero or not finite; correct the tag")
    for keyword in ("RescaleSlope", "RescaleIntercept"):  # pydicom would raise on a blank one
        if keyword in tags and _get(tags, keyword) in {None, ""}:
            delattr(tags, keyword)
    padding = _whole(tags, "PixelPaddingValue", None)
    limit = _whole(tags, "PixelPaddingRangeLimit", None)

    def meaning(words: Values) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        values = stored_values(words, layout)
        table = apply_modality_lut(values, tags)
        if voi:
            table = apply_voi_lut(table, tags)
        valid = padding_mask(values, layout, padding, limit)
        return np.asarray(table, dtype=np.float64), valid

    return meaning


def _window(tags: Dataset, picture: Shades, *, inverted: bool) -> tuple[float, float] | None:
    """Bring the file's first window onto the picture's scale."""
    centre, width = _real(tags, "WindowCenter"), _real(tags, "WindowWidth")
    if picture.constant or centre is None or width is None or width <= 0:
        return None
    scale = TOP / (picture.high - picture.low)
    level = (picture.high - centre if inverted else centre - picture.low) * scale
    return (level, width * scale) if math.isfinite(level) and math.isfinite(width) else None


def _spacing(tags: Dataset) -> tuple[float, float] | None:
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


def _code(tags: Dataset, keyword: str) -> str:
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


def _whole(tags: Dataset, keyword: str, default: int | None) -> int | None:
    if keyword not in tags:
        return default
    value = _get(tags, keyword)
    if value is None or value == "":
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ImageError("bad_tags", f"{keyword} is not a single whole number")
    return int(value)


def _required(tags: Dataset, keyword: str) -> int:
    value = _whole(tags, keyword, None)
    if value is None:
        raise ImageError("bad_tags", f"{keyword} is missing")
    return value
