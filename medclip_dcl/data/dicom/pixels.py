"""The pixel element of a DICOM file -> stored words, by one pinned decoder per transfer syntax.

Native pixels are viewed where they are. Compressed ones are joined from their fragments, and their
stream's own header has to agree with the data set on the size before a decoder sees it. Where the
two disagree on bits and sign, the stream's say what the samples are.
"""

import struct
from collections.abc import Callable
from itertools import pairwise

import imagecodecs
import numpy as np
import numpy.typing as npt

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.codestreams import (
    Frame,
    read_jpeg,
    read_jpeg2000,
    require_size,
    require_tiles,
    require_whole,
)
from medclip_dcl.data.dicom.metadata import SYNTAXES, UNDEFINED, Syntax
from medclip_dcl.data.grayscale import Layout, Words

_ITEM = b"\xfe\xff\x00\xe0"
_SEQUENCE_END = b"\xfe\xff\xdd\xe0"
_RLE_HEADER_BYTES = 64
_FILL = b"\0\xff"  # writers fill the last item with either
_STREAM_END = b"\xff\xd9"  # EOI of JPEG and JPEG-LS, EOC of JPEG 2000

Size = tuple[int, int]  # rows and columns that the data set declares


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
    header, samples = _DECODERS[form.decoder](frame, size)
    if samples.shape != size:
        raise ImageError("size_mismatch", f"decoded {samples.shape}, the file declares {size}")
    return *_as_words(samples, header, layout), end


def _pixel_element(body: bytes, at: int, form: Syntax) -> tuple[int, int, bool]:
    """Return offset and length of the pixel value, and whether it is written in 16-bit words."""
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


def _require_end(stream: bytes) -> None:
    # The decoders fill what a cut stream lacks, or leave it as it was, without an error.
    if stream.rstrip(_FILL)[-2:] != _STREAM_END:
        raise ImageError("truncated", "the compressed stream has no end marker")


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
_Decoder = Callable[[bytes, Size], tuple[Frame, _Samples]]


def _jpeg(decoder: Callable[[bytes], _Samples], process: str) -> _Decoder:
    def decode_frame(frame: bytes, size: Size) -> tuple[Frame, _Samples]:
        header = read_jpeg(frame)
        if header.process != process:
            raise ImageError("corrupt", "the stream is of another process than its syntax says")
        require_size(header, *size, len(frame))
        _require_end(frame)
        samples = decoder(frame)
        if process == "dct" and samples.shape == size:
            require_whole(frame, _unsigned(samples), header.precision)
        return header, samples

    return decode_frame


def _jpeg2000(frame: bytes, size: Size) -> tuple[Frame, _Samples]:
    header, stream = read_jpeg2000(frame)
    require_size(header, *size, len(stream))
    require_tiles(stream)
    _require_end(stream)
    return header, np.asarray(imagecodecs.jpeg2k_decode(stream, numthreads=1))


def _unsigned(samples: _Samples) -> Words:
    if samples.dtype.kind not in "iu" or samples.dtype.itemsize > 2:
        raise ImageError("corrupt", "the decoder gave no 8- or 16-bit samples")
    return samples.view(np.uint8) if samples.dtype.itemsize == 1 else samples.view(np.uint16)


def _as_words(samples: _Samples, header: Frame, layout: Layout) -> tuple[Words, Layout]:
    """Take decoded samples as stored words, laid out as their stream says.

    Source: DICOM PS3.5, 8.2.4; pydicom's decoders, which correct JPEG 2000 and JPEG-LS alike.
    """
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


_DECODERS: dict[str, _Decoder] = {
    "dct": _jpeg(imagecodecs.jpeg8_decode, "dct"),
    "lossless": _jpeg(imagecodecs.ljpeg_decode, "lossless"),
    "ls": _jpeg(imagecodecs.jpegls_decode, "ls"),
    "j2k": _jpeg2000,
}
