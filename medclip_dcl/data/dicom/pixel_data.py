"""The pixel element of a DICOM data set -> stored words, by one pinned decoder per syntax."""

from collections.abc import Callable
from dataclasses import dataclass

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
from medclip_dcl.errors import ImageError

Words = npt.NDArray[np.uint16] | npt.NDArray[np.uint8]
Size = tuple[int, int]

_Decoder = Callable[[bytes, Size, int], npt.NDArray[np.generic]]

_UNDEFINED = 0xFFFFFFFF
_ITEM = b"\xfe\xff\x00\xe0"
_SEQUENCE_END = b"\xfe\xff\xdd\xe0"
_FILL = b"\0\xff"  # writers fill the last item with either
_STREAM_END = b"\xff\xd9"  # EOI of JPEG and JPEG-LS, EOC of JPEG 2000


@dataclass(frozen=True)
class Syntax:
    """How a transfer syntax writes elements, and what decodes its frames."""

    decoder: str = ""
    implicit: bool = False
    little_endian: bool = True


SYNTAXES: dict[str, Syntax] = {
    "1.2.840.10008.1.2": Syntax(implicit=True),
    "1.2.840.10008.1.2.1": Syntax(),
    "1.2.840.10008.1.2.1.99": Syntax(),
    "1.2.840.10008.1.2.2": Syntax(little_endian=False),
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


def decode(body: bytes, at: int, syntax: str, size: Size, bits_allocated: int) -> Words:
    """Decode the pixel element.

    Args:
        body: the data set's bytes, inflated.
        at: offset of the pixel element.
        syntax: transfer syntax UID, a key of `SYNTAXES`.
        size: rows and columns that the data set declares, pixels.
        bits_allocated: 8 or 16.

    Returns:
        uint8 or uint16 (rows, columns): stored words, sign and unused bits untouched.

    Raises:
        ImageError: there are no pixels, too few, or others than declared.

    Source: DICOM PS3.5, 8.1 and Annex A.
    """
    form = SYNTAXES[syntax]
    start, length, words_wide = _pixel_element(body, at, form)
    if length == 0:
        raise ImageError("no_pixel_data", "the pixel element is empty")
    if not form.decoder:
        return _native(body, start, length, size, bits_allocated, form, words_wide=words_wide)
    if length != _UNDEFINED:
        raise ImageError("corrupt", "compressed pixels are not encapsulated")
    frame = _encapsulated(body, start)
    words = _DECODERS[form.decoder](frame, size, bits_allocated)
    if words.shape != size:
        raise ImageError("size_mismatch", f"decoded {words.shape}, the file declares {size}")
    return _as_words(words, bits_allocated)


def _pixel_element(body: bytes, at: int, form: Syntax) -> tuple[int, int, bool]:
    """Give offset and length of the pixel value, and whether it is written in 16-bit words."""
    order = "little" if form.little_endian else "big"
    if len(body) < at + 8:
        raise ImageError("no_pixel_data", "the file ends before its pixels")
    group, element = (
        int.from_bytes(body[index : index + 2], order)  # type: ignore[arg-type]
        for index in (at, at + 2)
    )
    if (group, element) != (0x7FE0, 0x0010):
        raise ImageError("no_pixel_data", "the data set has no PixelData element")
    if form.implicit:
        return at + 8, int.from_bytes(body[at + 4 : at + 8], "little"), True
    if body[at + 4 : at + 6] not in {b"OB", b"OW", b"UN"} or len(body) < at + 12:
        raise ImageError("unreadable", "PixelData is neither OB nor OW")
    length = int.from_bytes(body[at + 8 : at + 12], order)  # type: ignore[arg-type]
    return at + 12, length, body[at + 4 : at + 6] != b"OB"  # UN: as in implicit VR


def _native(
    body: bytes,
    start: int,
    length: int,
    size: Size,
    bits_allocated: int,
    form: Syntax,
    *,
    words_wide: bool,
) -> Words:
    # Pixels are viewed where they are; what follows them is padding of one byte at most.
    count = size[0] * size[1]
    needed = count * bits_allocated // 8
    if length == _UNDEFINED or start + needed > len(body) or length < needed:
        raise ImageError("truncated", f"{needed} pixel bytes are declared, fewer are there")
    if length > needed + needed % 2:
        raise ImageError("size_mismatch", f"{needed} pixel bytes are declared, {length} are there")
    if bits_allocated == 16:
        kind = np.dtype("<u2" if form.little_endian else ">u2")
        words = np.frombuffer(body, kind, count, start).astype(np.uint16, copy=False)
        return words.reshape(size)
    data = np.frombuffer(body, np.uint8, min(needed + needed % 2, len(body) - start), start)
    if words_wide and not form.little_endian and len(data) % 2 == 0:
        data = data.reshape(-1, 2)[:, ::-1].reshape(-1)  # bytes swapped within each OW word
    return data[:count].reshape(size)


def _encapsulated(body: bytes, start: int) -> bytes:
    """Join the fragments of the only frame; the first item is its offset table."""
    fragments = []
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
    return frame


def _require_end(stream: bytes) -> None:
    # The decoders fill what a cut stream lacks, or leave it as it was, and do not tell.
    if stream.rstrip(_FILL)[-2:] != _STREAM_END:
        raise ImageError("truncated", "the compressed stream has no end marker")


def _rle(frame: bytes, size: Size, bits_allocated: int) -> Words:
    segments = int.from_bytes(frame[:4], "little")
    if segments != bits_allocated // 8:
        raise ImageError("corrupt", f"the RLE frame has {segments} segments")
    # The decoder takes the number of segments from the frame, so it is checked above; its answer
    # may be longer or shorter than the image, so it is counted below.
    room = np.empty(size, dtype=np.uint16 if bits_allocated == 16 else np.uint8)
    decoded = imagecodecs.dicomrle_decode(frame, room.dtype.str)
    words = np.frombuffer(decoded, room.dtype)
    if words.size != room.size:
        raise ImageError("size_mismatch", "the RLE frame holds another number of pixels")
    return words.reshape(size)


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
