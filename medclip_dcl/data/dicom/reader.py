"""DICOM bytes -> grey picture: one image, one frame, grey, in a listed transfer syntax.

Everything that can be refused from headers is refused before a decoder or a large
allocation. Only the elements named here are ever parsed, so names and other
identifiers do not enter memory as values. Each syntax has one pinned decoder.
"""

import io
import math
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import imagecodecs
import numpy as np
import numpy.typing as npt
import pydicom.config
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.pixels.processing import apply_modality_lut, apply_voi_lut
from pydicom.tag import BaseTag, Tag

from medclip_dcl.data.codestreams import (
    read_jpeg,
    read_jpeg2000,
    require_size,
    require_tiles,
    require_whole,
)
from medclip_dcl.data.dicom.metadata import DEFLATED, find_value, read_file_meta
from medclip_dcl.data.grayscale import (
    TOP,
    DecodedImage,
    Layout,
    Meaning,
    Shades,
    Values,
    Words,
    padding_mask,
    shade,
    stored_values,
)
from medclip_dcl.data.images import ImagesConfig
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


class Syntax(NamedTuple):
    """Transfer syntax: its encoding of elements, and the decoder of its frames."""

    decoder: str = ""
    implicit: bool = False
    order: Literal["little", "big"] = "little"


SYNTAXES: dict[str, Syntax] = {
    "1.2.840.10008.1.2": Syntax(implicit=True),
    "1.2.840.10008.1.2.1": Syntax(),
    "1.2.840.10008.1.2.1.99": Syntax(),
    "1.2.840.10008.1.2.2": Syntax(order="big"),
    "1.2.840.10008.1.2.5": Syntax("rle"),
    "1.2.840.10008.1.2.4.50": Syntax("dct"),
    "1.2.840.10008.1.2.4.51": Syntax("dct"),
    "1.2.840.10008.1.2.4.57": Syntax("lossless"),
    "1.2.840.10008.1.2.4.70": Syntax("lossless"),
    "1.2.840.10008.1.2.4.80": Syntax("ls"),
    "1.2.840.10008.1.2.4.81": Syntax("ls"),
    "1.2.840.10008.1.2.4.90": Syntax("j2k"),
    "1.2.840.10008.1.2.4.91": Syntax("j2k"),
}
"""Transfer syntaxes that are read; every other is refused by name of the rule."""

_WANTED = [Tag(keyword) for keyword in (*PUBLIC_TAGS, *PIXEL_TAGS)]
_PIXEL_DATA = Tag("PixelData")
_BURNED_IN = (0x0028, 0x0301)
_CODE_STRING = re.compile(r"[A-Z0-9 _]{1,16}")
# Images have some hundred elements, those within sequences included. pydicom reads one to three
# times for each, which costs it some microseconds.
_MAX_READS = 25_000
_LONGEST_VALUE = 2**16
_LONGEST_SEQUENCE = 2**20  # of stated length: it is parsed only where it is used; of lookup tables

_UNDEFINED = 0xFFFFFFFF
_ITEM = b"\xfe\xff\x00\xe0"
_SEQUENCE_END = b"\xfe\xff\xdd\xe0"
_RLE_HEADER_BYTES = 64
_FILL = b"\0\xff"  # writers fill the last item with either
_STREAM_END = b"\xff\xd9"  # EOI of JPEG and JPEG-LS, EOC of JPEG 2000

_Size = tuple[int, int]  # rows and columns that the data set declares


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
    words, end = _decode(body, at, SYNTAXES[syntax], size, layout.bits_allocated)
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

    def stop(tag: BaseTag, _vr: str | None, length: int) -> bool:
        if tag in wanted and length != _UNDEFINED:
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
    return tags, syntax, body, stream.tell()


def require_no_text(annotation: bytes, settings: ImagesConfig) -> bool:
    """Refuse an image whose BurnedInAnnotation is neither NO nor blank.

    Where `settings.reject_burned_in` is off, say whether it is such an image.
    """
    is_burned_in = annotation.strip(b"\0 ").upper() not in {b"", b"NO"}
    if is_burned_in and settings.reject_burned_in:
        raise ImageError("burned_in", "BurnedInAnnotation is not NO; de-identify the pixels first")
    return is_burned_in


def annotation_behind(body: bytes, end: int, syntax: str) -> bytes:
    """Give a BurnedInAnnotation that stands behind the pixels, where `read_elements` has ended."""
    form = SYNTAXES[syntax]
    found = find_value(body, end, _BURNED_IN, implicit=form.implicit, order=form.order)
    return found or b""


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


def image_size(tags: Dataset, settings: ImagesConfig) -> _Size:
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
    slope = _real(tags, "RescaleSlope")
    if slope is not None and (not math.isfinite(slope) or slope == 0):
        raise ImageError("bad_intensities", "RescaleSlope is zero or not finite; correct the tag")
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


# The pixel element


def _decode(
    body: bytes, at: int, form: Syntax, size: _Size, bits_allocated: int
) -> tuple[Words, int]:
    """Give the stored words of the pixel element at `at`, sign and unused bits untouched; its end.

    Source: DICOM PS3.5, 8.1 and Annex A.
    """
    start, length, words_wide = _pixel_element(body, at, form)
    if length == 0:
        raise ImageError("no_pixel_data", "the pixel element is empty")
    if not form.decoder:
        swapped = words_wide and form.order == "big"
        native = _native(body, start, length, size, bits_allocated, form.order, swapped=swapped)
        return native, start + length
    if length != _UNDEFINED:
        raise ImageError("corrupt", "compressed pixels are not encapsulated")
    frame, end = _encapsulated(body, start)
    words = _DECODERS[form.decoder](frame, size, bits_allocated)
    if words.shape != size:
        raise ImageError("size_mismatch", f"decoded {words.shape}, the file declares {size}")
    return _as_words(words, bits_allocated), end


def _pixel_element(body: bytes, at: int, form: Syntax) -> tuple[int, int, bool]:
    """Give offset and length of the pixel value, and whether it is written in 16-bit words."""
    if len(body) < at + 8:
        raise ImageError("no_pixel_data", "the file ends before its pixels")
    tag = tuple(int.from_bytes(body[start : start + 2], form.order) for start in (at, at + 2))
    if tag != (0x7FE0, 0x0010):
        raise ImageError("no_pixel_data", "the data set has no PixelData element")
    if form.implicit:
        return at + 8, int.from_bytes(body[at + 4 : at + 8], "little"), True
    kind = body[at + 4 : at + 6]
    if kind not in {b"OB", b"OW", b"UN"} or len(body) < at + 12:
        raise ImageError("unreadable", "PixelData is neither OB nor OW")
    length = int.from_bytes(body[at + 8 : at + 12], form.order)
    return at + 12, length, kind != b"OB"  # UN: as in implicit VR


def _native(
    body: bytes,
    start: int,
    length: int,
    size: _Size,
    bits_allocated: int,
    order: Literal["little", "big"],
    *,
    swapped: bool,
) -> Words:
    # Pixels are viewed where they are; what follows them is padding of one byte at most.
    count = size[0] * size[1]
    needed = count * bits_allocated // 8
    if length == _UNDEFINED or start + needed > len(body) or length < needed:
        raise ImageError("truncated", f"{needed} pixel bytes are declared, fewer are there")
    if length > needed + needed % 2:
        raise ImageError("size_mismatch", f"{needed} pixel bytes are declared, {length} are there")
    if bits_allocated == 16:
        kind = np.dtype("<u2" if order == "little" else ">u2")
        words = np.frombuffer(body, kind, count, start).astype(np.uint16, copy=False)
        return words.reshape(size)
    data = np.frombuffer(body, np.uint8, min(needed + needed % 2, len(body) - start), start)
    if swapped and len(data) % 2 == 0:
        data = data.reshape(-1, 2)[:, ::-1].reshape(-1)  # bytes swapped within each OW word
    return data[:count].reshape(size)


def pixel_element(body: bytes, at: int, syntax: str) -> bytes:
    """Cut out the pixel element that begins at `at`, as it is written, without what follows it.

    Raises:
        ImageError: the element is missing, empty or cut.
    """
    start, length, _ = _pixel_element(body, at, SYNTAXES[syntax])
    if length == _UNDEFINED:
        return body[at : _encapsulated(body, start)[1]]
    if not length:
        raise ImageError("no_pixel_data", "the pixel element is empty")
    if start + length > len(body):
        raise ImageError("truncated", f"{length} pixel bytes are declared, fewer are there")
    return body[at : start + length]


def _encapsulated(body: bytes, start: int) -> tuple[bytes, int]:
    """Join the fragments of the only frame, the first item is its offset table; and its end."""
    fragments = []  # a frame may be cut into any number of them
    at = start
    while True:
        item, length = body[at : at + 4], int.from_bytes(body[at + 4 : at + 8], "little")
        if item == _SEQUENCE_END:
            break
        at += 8
        if item != _ITEM or length > len(body) - at:
            raise ImageError("truncated", "the encapsulated pixels are cut, or not made of items")
        fragments.append(body[at : at + length])
        at += length
    frame = b"".join(fragments[1:])
    if not frame:
        raise ImageError("no_pixel_data", "the pixel element holds no frame")
    return frame, at + 8


def _require_end(stream: bytes) -> None:
    # The decoders fill what a cut stream lacks, or leave it as it was, without an error.
    if stream.rstrip(_FILL)[-2:] != _STREAM_END:
        raise ImageError("truncated", "the compressed stream has no end marker")


def _rle(frame: bytes, size: _Size, bits_allocated: int) -> Words:
    segments = int.from_bytes(frame[:4], "little")
    if segments != bits_allocated // 8:
        raise ImageError("corrupt", f"the RLE frame has {segments} segments")
    # The decoder takes number and places of the segments from the frame and reads there, be it
    # beyond the frame's end (PS3.5 G.5). Its answer may be longer or shorter than the image.
    head = frame[:_RLE_HEADER_BYTES].ljust(_RLE_HEADER_BYTES, b"\0")
    bounds = [_RLE_HEADER_BYTES - 1, *struct.unpack_from(f"<{segments}I", head, 4), len(frame)]
    if bounds != sorted({*bounds}):
        raise ImageError("corrupt", "the RLE frame's segments do not follow one another in it")
    kind = np.dtype(np.uint16 if bits_allocated == 16 else np.uint8)
    words = np.frombuffer(imagecodecs.dicomrle_decode(frame, kind.str), kind)
    if words.size != size[0] * size[1]:
        raise ImageError("size_mismatch", "the RLE frame holds another number of pixels")
    return words.reshape(size)


_Decoder = Callable[[bytes, _Size, int], npt.NDArray[np.generic]]


def _jpeg(decoder: Callable[[bytes], npt.NDArray[np.generic]], process: str) -> _Decoder:
    def decode_frame(frame: bytes, size: _Size, _bits: int) -> npt.NDArray[np.generic]:
        header = read_jpeg(frame)
        if header.process != process:
            raise ImageError("corrupt", "the stream is of another process than its syntax says")
        require_size(header, *size, len(frame))
        _require_end(frame)
        pixels = decoder(frame)
        if process == "dct" and pixels.shape == size:
            require_whole(frame, _as_words(pixels, 8 * pixels.itemsize), header.precision)
        return pixels

    return decode_frame


def _jpeg2000(frame: bytes, size: _Size, _bits: int) -> npt.NDArray[np.generic]:
    header, stream = read_jpeg2000(frame)
    require_size(header, *size, len(stream))
    require_tiles(stream)
    _require_end(stream)
    return np.asarray(imagecodecs.jpeg2k_decode(stream, numthreads=1))


def _as_words(words: npt.NDArray[np.generic], bits_allocated: int) -> Words:
    """Give decoded samples the width of a stored word, whatever sign the stream claims."""
    if words.dtype.kind not in "iu" or words.dtype.itemsize > 2:
        raise ImageError("corrupt", "the decoder gave no 8- or 16-bit samples")
    if bits_allocated == 16:
        wide = words.astype(np.int16 if words.dtype.kind == "i" else np.uint16, copy=False)
        return wide.view(np.uint16)
    if words.dtype.itemsize > 1:
        raise ImageError("size_mismatch", "the stream has more bits than BitsAllocated")
    return words.view(np.uint8)


_DECODERS: dict[str, _Decoder] = {
    "rle": _rle,
    "dct": _jpeg(imagecodecs.jpeg8_decode, "dct"),
    "lossless": _jpeg(imagecodecs.ljpeg_decode, "lossless"),
    "ls": _jpeg(imagecodecs.jpegls_decode, "ls"),
    "j2k": _jpeg2000,
}
