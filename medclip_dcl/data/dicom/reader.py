"""DICOM bytes -> grey picture: one image, one frame, grey, in a listed transfer syntax.

Everything that can be refused from headers is refused before a decoder or a large
allocation. Only the elements named here are ever parsed, so names and other
identifiers do not enter memory as values.
"""

import io
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import imagecodecs
import numpy as np
import numpy.typing as npt
import pydicom.config
from pydicom.datadict import dictionary_VR
from pydicom.dataset import Dataset
from pydicom.filereader import read_dataset
from pydicom.tag import BaseTag, Tag

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data import codestreams
from medclip_dcl.data.dicom.metadata import (
    DEFLATED,
    SYNTAXES,
    UNDEFINED,
    Syntax,
    find_values,
    read_code,
    read_file_meta,
    walk_elements,
)
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
from medclip_dcl.data.limits import ImagesConfig

# Archives hold values that break their VR; only the elements below are looked at, and checked here.
pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE

PUBLIC_TAGS = (  # the only tags whose values leave the reader; all are code strings
    "Modality",
    "ViewPosition",
    "BodyPartExamined",
    "PhotometricInterpretation",
    "PresentationIntentType",
)

PIXEL_TAGS = (  # tags that say what the pixels mean; their values stay in the reader
    *("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "BurnedInAnnotation"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
    *("PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "RescaleType"),
    *("VOILUTSequence", "VOILUTFunction", "WindowCenter", "WindowWidth"),
    *("PixelSpacing", "ImagerPixelSpacing"),
)

Size = tuple[int, int]  # rows and columns that the data set declares

_WANTED = [Tag(keyword) for keyword in (*PUBLIC_TAGS, *PIXEL_TAGS)]
_PIXEL_DATA, _ANNOTATION = (0x7FE0, 0x0010), (0x0028, 0x0301)  # BurnedInAnnotation
_MOST_ELEMENTS = 10_000  # images have some hundred, those within sequences included
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
    ignored = drop_unusable(tags)
    words, layout, end = decode_pixels(body, at, SYNTAXES[syntax], size, layout)
    require_no_text(annotation_behind(body, end, syntax), settings)
    picture = shade(words, _meaning(tags, layout, voi=settings.voi == "dicom"), inverted=inverted)
    if picture.constant and settings.voi == "dicom":  # perhaps by a window outside their range
        picture = shade(words, _meaning(tags, layout, voi=False), inverted=inverted)
        ignored += () if picture.constant else _WINDOW
    facts = {
        "bits_stored": layout.bits_stored,
        "source": "dicom",
        "inverted": inverted,
        # At the detector where it is given: PixelSpacing may be calibrated to the patient.
        "spacing_mm": next((pair for name in _SPACING if (pair := _pair(tags, name))), None),
        "window": None if settings.voi == "dicom" else _window(tags, picture, inverted=inverted),
        "tags": {name: code for name in PUBLIC_TAGS if (code := code_string(tags, name))},
        "ignored": ignored,
    }
    return DecodedImage(picture, facts)


def read_elements(
    data: bytes, settings: ImagesConfig, wanted: list[BaseTag]
) -> tuple[Dataset, str, bytes, int]:
    """Return the wanted elements, the syntax, the data set's bytes and where its pixels start.

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
    form, names = SYNTAXES[syntax], {(tag.group, tag.element): tag for tag in wanted}
    annotations: list[bytes] = []
    begins: list[tuple[int, bool]] = []  # where each element does, and whether it is wanted
    for tag, head, value, length in walk_elements(body, start, form, _MOST_ELEMENTS):
        begins.append((head, tag in names))
        if tag >= _PIXEL_DATA:
            break
        if tag == _ANNOTATION:
            annotations.append(body[value : value + min(length, _LONGEST_VALUE)])
        if tag in names and length != UNDEFINED:
            is_sequence = dictionary_VR(names[tag]) == "SQ"
            if length > (_LONGEST_SEQUENCE if is_sequence else _LONGEST_VALUE):
                raise ImageError("too_many_elements", "the value of a tag is longer than any is")
    else:
        begins.append((len(body), False))
    # Only what is wanted is parsed.
    parts = [body[head:end] for (head, is_wanted), (end, _) in pairwise(begins) if is_wanted]
    tags = read_dataset(io.BytesIO(b"".join(parts)), form.implicit, form.order == "little")
    if any(_says_text(annotation) for annotation in annotations[:-1]):  # pydicom keeps the last
        tags.BurnedInAnnotation = "YES"
    return tags, syntax, body, begins[-1][0]


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
    """Return a BurnedInAnnotation that stands behind the pixels, where `read_elements` has ended.

    Of several one that is neither NO nor blank. ImageError where too many elements follow.
    """
    values = find_values(body, end, _ANNOTATION, SYNTAXES[syntax])
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


def image_size(tags: Dataset, settings: ImagesConfig) -> Size:
    """Return rows and columns; ImageError where they are missing, none or too many."""
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


_RESCALE, _WINDOW = ("RescaleSlope", "RescaleIntercept"), ("WindowCenter", "WindowWidth")
_PADDING = ("PixelPaddingValue", "PixelPaddingRangeLimit")
_SPACING = ("ImagerPixelSpacing", "PixelSpacing")
_VOI_FUNCTIONS = {"LINEAR", "LINEAR_EXACT", "SIGMOID"}
_TRIAL = np.array([-(2**15), 0, 2**16 - 1])  # the least stored value that there is, and the largest


def drop_unusable(tags: Dataset) -> tuple[str, ...]:
    """Delete optional attributes whose values cannot be used, and name those that are not blank.

    Without its rescale an image keeps its stored values: scaled by their extremes they look alike.
    A window in the units of a rescale then says nothing, and goes too.

    Raises:
        ImageError: the modality lookup table cannot be used, so that greys are unknown.
    """
    bad: list[str] = []
    slope, intercept = (_numbers(tags, name) for name in _RESCALE)
    largest = abs(slope[0]) * 2**16 + abs(intercept[0]) if slope and intercept else 0.0
    if not (slope and intercept):  # either says nothing alone
        _drop(tags, *_RESCALE)
    elif (len(slope), len(intercept)) != (1, 1) or not slope[0] or not math.isfinite(largest):
        bad += [*_RESCALE, *_WINDOW, "VOILUTSequence"]
    try:
        values = _TRIAL if bad else _rescaled(_TRIAL, tags)
    except Exception as error:
        raise ImageError(
            "bad_intensities", "ModalityLUTSequence holds no usable table; correct the file"
        ) from error
    try:
        if tags.get("VOILUTSequence"):
            _looked_up(values, tags, "VOILUTSequence")
    except Exception:  # noqa: BLE001 (pydicom raises anything on a malformed table)
        bad += ["VOILUTSequence"]
    if code_string(tags, "VOILUTFunction") not in _VOI_FUNCTIONS:
        bad += ["VOILUTFunction"]
    if _file_window(tags) is None:
        bad += _WINDOW
    bad += [name for name in _PADDING if not _is_whole(tags, name)]
    bad += [name for name in _SPACING if _pair(tags, name) is None]
    named = [name for name in dict.fromkeys(bad) if raw_value(tags, name).strip(b"\0 ")]
    _drop(tags, *bad)
    return tuple(named)


def _drop(tags: Dataset, *names: str) -> None:
    for name in names:
        tags.pop(name, None)


def _is_whole(tags: Dataset, name: str) -> bool:
    with suppress(ImageError):
        return whole_number(tags, name, None) is not None
    return False


def _file_window(tags: Dataset) -> tuple[float, float] | None:
    """Take the first of a file's windows that can be used: they are views of one image."""
    least = 0 if code_string(tags, "VOILUTFunction") in _VOI_FUNCTIONS - {"LINEAR"} else 1
    for centre, width in zip(*(_numbers(tags, name) for name in _WINDOW), strict=False):
        if math.isfinite(centre) and math.isfinite(width) and width > 0 and width >= least:
            return centre, width
    return None


# Not by pydicom, which refuses entries of 12 bits, and of 8 bits that are packed; where entries
# have 8 bits it finds them by 8 bits alone.
def _looked_up(values: npt.NDArray[Any], tags: Dataset, name: str) -> npt.NDArray[Any]:
    item = tags[name].value[0]
    entries, first, bits = item.LUTDescriptor
    table, entries = item.LUTData, entries or 1 << 16
    if isinstance(table, bytes):
        words = np.frombuffer(table, "<u2" if tags.original_encoding[1] else ">u2").astype("<u2")
        is_packed = bits <= 8 and len(words) < entries  # PS3.3, C.11.1.1.1: others pad each entry
        table = words.view(np.uint8) if is_packed else words
    if len(table) < entries:
        raise ValueError("the table is shorter than it says")
    # Entries are unsigned, whatever the element's kind.
    whole: npt.NDArray[np.int64] = np.asarray(table, np.int64) % (1 << 16)
    places: npt.NDArray[np.int64] = np.clip(values - first, 0, entries - 1).astype(np.int64)
    return np.take(whole, places)


def _rescaled(values: Values, tags: Dataset) -> npt.NDArray[Any]:
    if tags.get("ModalityLUTSequence"):
        return _looked_up(values, tags, "ModalityLUTSequence")
    rescale = [number for name in _RESCALE for number in _numbers(tags, name)]
    return values.astype(np.float64) * rescale[0] + rescale[1] if rescale else values


def _windowed(
    values: npt.NDArray[Any], window: tuple[float, float], function: str
) -> npt.NDArray[np.float64]:
    # PS3.3, C.11.2.1.2.1 and C.11.2.1.3; what is scaled by its extremes next needs no range.
    centre, width = window
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (values - centre) / width, -700, 700)))
    if function != "LINEAR_EXACT":
        centre, width = centre - 0.5, width - 1
    share = (values - centre) / (width or 1) + 0.5
    below, above = values <= centre - width / 2, values > centre + width / 2
    return np.where(below, 0.0, np.where(above, 1.0, share))


def _meaning(tags: Dataset, layout: Layout, *, voi: bool) -> Meaning:
    # Words become intensities by the modality table or rescale, then by the VOI table or window if
    # asked for. Padding is recognised by the stored value: after a rescale it looks like tissue.
    padding, limit = (whole_number(tags, name, None) for name in _PADDING)
    window, function = _file_window(tags), code_string(tags, "VOILUTFunction")

    def meaning(words: Values) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        values = stored_values(words, layout)
        table = _rescaled(values, tags)
        if voi and tags.get("VOILUTSequence"):
            table = _looked_up(table, tags, "VOILUTSequence")
        elif voi and window:
            table = _windowed(table, window, function)
        valid = padding_mask(values, layout, padding, limit)
        return np.asarray(table, dtype=np.float64), valid

    return meaning


def _window(tags: Dataset, picture: Shades, *, inverted: bool) -> tuple[float, float] | None:
    # The window is given in intensities (after the rescale), the picture spans 0 to TOP between its
    # own lowest and highest one, upside down for MONOCHROME1.
    window = _file_window(tags)
    if picture.constant or window is None:
        return None
    centre, width = window
    scale = TOP / (picture.high - picture.low)
    level = (picture.high - centre if inverted else centre - picture.low) * scale
    return (level, width * scale) if math.isfinite(level) and math.isfinite(width) else None


def _pair(tags: Dataset, keyword: str) -> tuple[float, float] | None:
    match _numbers(tags, keyword):
        case [down, across] if 0 < down < math.inf and 0 < across < math.inf:
            return down, across
    return None


def _get(tags: Dataset, keyword: str) -> Any:
    try:
        return tags.get(keyword)
    except Exception:  # noqa: BLE001 (pydicom raises anything on a malformed value: it is absent)
        return None


def raw_value(tags: Dataset, keyword: str) -> bytes:
    """Return the bytes of a value as they are written; of one that was read already its text."""
    element = tags.get_item(Tag(keyword)) if keyword in tags else None
    value = element.value if element is not None else None
    return value if isinstance(value, bytes) else str("" if value is None else value).encode()


def code_string(tags: Dataset, keyword: str) -> str:
    """Return a code as `read_code` does."""
    return read_code(raw_value(tags, keyword))


def _numbers(tags: Dataset, keyword: str) -> list[float]:
    """Read the numbers of an element, NaN for what is none; empty where it is blank or missing."""
    value = _get(tags, keyword)
    if value is None or isinstance(value, str | bytes):  # unreadable as a whole: one by one
        value = raw_value(tags, keyword).strip(b"\0 ").split(b"\\")
        if value == [b""]:
            return []
    return [_number(item) for item in (value if isinstance(value, Sequence) else [value])]


def _number(item: Any) -> float:
    try:  # some write a decimal comma
        return float(item.replace(b",", b".") if isinstance(item, bytes) else item)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def whole_number(tags: Dataset, keyword: str, default: int | None) -> int | None:
    """Return a whole number; ImageError where the value is something else."""
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


# The pixel element -> stored words, by one pinned decoder per transfer syntax. Native pixels are
# viewed where they are. Compressed ones are joined from their fragments, and their stream's own
# header has to agree with the data set on the size before a decoder sees it. Where the two disagree
# on bits and sign, the stream's say what the samples are.

_ITEM = b"\xfe\xff\x00\xe0"
_SEQUENCE_END = b"\xfe\xff\xdd\xe0"
_RLE_HEADER_BYTES = 64
_FILL = b"\0\xff"  # writers fill the last item with either
_STREAM_END = b"\xff\xd9"  # EOI of JPEG and JPEG-LS, EOC of JPEG 2000


def decode_pixels(
    body: bytes, at: int, form: Syntax, size: Size, layout: Layout
) -> tuple[Words, Layout, int]:
    """Read the pixel element at `at`.

    Returns:
        Its stored words, sign and unused bits untouched; their layout, which is `layout` unless a
        stream says otherwise; the element's end.

    Source: DICOM PS3.5, 8.1 and Annex A.
    """
    start, length, words_wide = _pixel_element(body, at, form)
    if length == 0:
        raise ImageError("no_pixel_data", "the pixel element is empty")
    if not form.decoder:
        return _native(body, start, length, size, layout, form, words_wide), layout, start + length
    if length != UNDEFINED:
        raise ImageError("corrupt", "compressed pixels are not encapsulated")
    frame, end = _encapsulated(body, start)
    if form.decoder == "rle":
        return _rle(frame, size, layout.bits_allocated), layout, end
    header, samples = _decode(form.decoder, frame, size)
    if samples.shape != size:
        raise ImageError("size_mismatch", f"decoded {samples.shape}, the file declares {size}")
    return *_as_words(samples, header, layout), end


def _pixel_element(body: bytes, at: int, form: Syntax) -> tuple[int, int, bool]:
    """Return offset and length of the pixel value, and whether it is written in 16-bit words."""
    tag, _, start, length = next(walk_elements(body, at, form), ((0, 0), 0, 0, 0))
    if tag != _PIXEL_DATA:
        raise ImageError("no_pixel_data", "the data set has no PixelData element")
    kind = b"OW" if form.implicit else body[at + 4 : at + 6]
    if kind not in {b"OB", b"OW", b"UN"}:
        raise ImageError("unreadable", "PixelData is neither OB nor OW")
    return start, length, kind != b"OB"  # UN: as in implicit VR


def _native(
    body: bytes, start: int, length: int, size: Size, layout: Layout, form: Syntax, words_wide: bool
) -> Words:
    # Pixels are viewed where they are.
    count = size[0] * size[1]
    needed = count * layout.bits_allocated // 8
    if length == UNDEFINED or start + needed > len(body) or length < needed:
        raise ImageError("truncated", f"{needed} pixel bytes are declared, fewer are there")
    # PS3.5, 8.1.1: what follows is padding. A writer that means several frames, or half the bits or
    # rows that it wrote, leaves as much as another frame, and not all of it alike.
    excess = body[start + needed : start + length]
    if len(excess) >= needed and excess.strip(excess[:1]):
        raise ImageError(
            "size_mismatch",
            f"{needed} pixel bytes are declared, {length} are there; send one image",
        )
    if layout.bits_allocated == 16:
        kind = np.dtype("<u2" if form.order == "little" else ">u2")
        words = np.frombuffer(body, kind, count, start).astype(np.uint16, copy=False)
        return words.reshape(size)
    data = np.frombuffer(body, np.uint8, min(needed + needed % 2, len(body) - start), start)
    if words_wide and form.order == "big" and len(data) % 2 == 0:
        data = data.reshape(-1, 2)[:, ::-1].reshape(-1)  # bytes swapped within each OW word
    return data[:count].reshape(size)


def pixel_element(body: bytes, at: int, syntax: str, needed: int) -> bytes:
    """Cut out the pixel element that begins at `at`, as it is written, without what follows it.

    Native pixels take `needed` bytes; padding behind them becomes zeros, for nobody knows what a
    writer left there.

    Raises:
        ImageError: the element is missing, empty or cut.
    """
    start, length, _ = _pixel_element(body, at, SYNTAXES[syntax])
    if length == UNDEFINED:
        return body[at : _encapsulated(body, start)[1]]
    if not length:
        raise ImageError("no_pixel_data", "the pixel element is empty")
    if start + length > len(body):
        raise ImageError("truncated", f"{length} pixel bytes are declared, fewer are there")
    return body[at : start + min(needed, length)] + bytes(max(0, length - needed))


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


def _rle(frame: bytes, size: Size, bits_allocated: int) -> Words:
    segments = int.from_bytes(frame[:4], "little")
    if segments != bits_allocated // 8:
        raise ImageError("corrupt", f"the RLE frame has {segments} segments")
    head = frame[:_RLE_HEADER_BYTES].ljust(_RLE_HEADER_BYTES, b"\0")
    bounds = [_RLE_HEADER_BYTES - 1, *struct.unpack_from(f"<{segments}I", head, 4), len(frame)]
    if bounds != sorted({*bounds}):
        raise ImageError("corrupt", "the RLE frame's segments do not follow one another in it")
    # The high bytes of all pixels, then the low ones (PS3.5, G.2). Writers pad a segment, so it may
    # unpack to more; to as much as two planes it does by fault alone.
    count = size[0] * size[1]
    planes = np.empty((segments, 2 * count), np.uint8)
    for plane, (start, stop) in zip(planes, pairwise(bounds[1:]), strict=True):
        if len(imagecodecs.packbits_decode(frame[start:stop], out=plane.data)) < count:
            raise ImageError("size_mismatch", "the RLE frame holds fewer pixels than are declared")
    if segments == 1:
        return planes[0, :count].reshape(size)
    words = planes[0, :count].astype(np.uint16)
    words <<= 8
    words |= planes[1, :count]
    return words.reshape(size)


_Samples = npt.NDArray[np.generic]

_DECODERS: dict[str, Callable[[bytes], _Samples]] = {
    "dct": imagecodecs.jpeg8_decode,
    "lossless": imagecodecs.ljpeg_decode,
    "ls": imagecodecs.jpegls_decode,
    "j2k": partial(imagecodecs.jpeg2k_decode, numthreads=1),
}


def _decode(process: str, stream: bytes, size: Size) -> tuple[codestreams.Frame, _Samples]:
    if process == "j2k":
        header, stream = codestreams.read_jpeg2000(stream)
    else:
        header = codestreams.read_jpeg(stream)
    if header.process != process:
        raise ImageError("corrupt", "the stream is of another process than its syntax says")
    codestreams.require_size(header, *size, len(stream))
    if process == "j2k":
        codestreams.require_tiles(stream)
    # The decoders fill what a cut stream lacks, or leave it as it was, without an error.
    if stream.rstrip(_FILL)[-2:] != _STREAM_END:
        raise ImageError("truncated", "the compressed stream has no end marker")
    samples = _DECODERS[process](stream)
    if process == "dct" and samples.shape == size:
        codestreams.require_whole(stream, _unsigned(samples), header.precision)
    return header, samples


def _unsigned(samples: _Samples) -> Words:
    if samples.dtype.kind not in "iu" or samples.dtype.itemsize > 2:
        raise ImageError("corrupt", "the decoder gave no 8- or 16-bit samples")
    return samples.view(np.uint8) if samples.dtype.itemsize == 1 else samples.view(np.uint16)


def _as_words(samples: _Samples, header: codestreams.Frame, layout: Layout) -> tuple[Words, Layout]:
    """Lay samples out as their stream says, as pydicom's decoders do (DICOM PS3.5, 8.2.4)."""
    words, bits = _unsigned(samples), layout.bits_stored
    signed = layout.signed or header.signed
    if header.precision < bits and signed and header.process in {"ls", "j2k"}:
        bits = header.precision  # encoders write a signed value as an unsigned one of these bits
    elif header.precision > bits:
        # Encoders also write precision 16 for less, so the header's bits count where they suffice:
        # for values as they are, or for those bits of a sign that the stream does not know of.
        values = words.view(f"i{words.itemsize}") if signed else words
        low, high, half = int(values.min()), int(values.max()), 1 << bits - 1
        fits = -half <= low and high < half if signed else high < 2 * half
        if not (fits or (signed and not header.signed and low >= 0 and high < 2 * half)):
            bits = header.precision
    allocated = max(layout.bits_allocated, 8 * words.itemsize)
    return words, Layout(allocated, bits, bits - 1, signed)
