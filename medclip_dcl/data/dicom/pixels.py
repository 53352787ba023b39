"""The pixel element of a DICOM file -> stored words, by one pinned decoder per transfer syntax.

Native pixels are viewed where they are. Compressed ones are joined from their fragments, and their
stream's own header has to agree with the data set before a decoder sees it.
"""

import struct
from collections.abc import Callable
from typing import Literal

import imagecodecs
import numpy as np
import numpy.typing as npt

from medclip_dcl.data.codestreams import (
    read_jpeg,
    read_jpeg2000,
    require_size,
    require_tiles,
    require_whole,
)
from medclip_dcl.data.dicom.metadata import SYNTAXES, UNDEFINED, Syntax
from medclip_dcl.data.grayscale import Words
from medclip_dcl.errors import ImageError

_ITEM = b"\xfe\xff\x00\xe0"
_SEQUENCE_END = b"\xfe\xff\xdd\xe0"
_RLE_HEADER_BYTES = 64
_FILL = b"\0\xff"  # writers fill the last item with either
_STREAM_END = b"\xff\xd9"  # EOI of JPEG and JPEG-LS, EOC of JPEG 2000

Size = tuple[int, int]  # rows and columns that the data set declares


def decode_pixels(
    body: bytes, at: int, form: Syntax, size: Size, bits_allocated: int
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
    if length != UNDEFINED:
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
    size: Size,
    bits_allocated: int,
    order: Literal["little", "big"],
    *,
    swapped: bool,
) -> Words:
    # Pixels are viewed where they are; what follows them is padding of one byte at most.
    count = size[0] * size[1]
    needed = count * bits_allocated // 8
    if length == UNDEFINED or start + needed > len(body) or length < needed:
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
    if length == UNDEFINED:
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


def _rle(frame: bytes, size: Size, bits_allocated: int) -> Words:
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


_Decoder = Callable[[bytes, Size, int], npt.NDArray[np.generic]]


def _jpeg(decoder: Callable[[bytes], npt.NDArray[np.generic]], process: str) -> _Decoder:
    def decode_frame(frame: bytes, size: Size, _bits: int) -> npt.NDArray[np.generic]:
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


def _jpeg2000(frame: bytes, size: Size, _bits: int) -> npt.NDArray[np.generic]:
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
