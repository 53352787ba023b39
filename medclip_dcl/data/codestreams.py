"""What compressed streams declare, read before any decoder sees them, and whether they are whole.

A decoder believes its stream: one of 1.5 kB can claim 177 megapixels. So the stream's
own header is compared with the DICOM header first, and a stream too short to hold one
bit per unit of coding is refused. Metadata of JPEG and PNG files are cut out, so that damage
in them cannot hide pixels that are whole. All functions raise `ImageError`.
"""

import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import imagecodecs
import numpy as np

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.grayscale import Words

_JP2_SIGNATURE = b"\x00\x00\x00\x0cjP  "
_BARE_MARKERS = {0x01, *range(0xD0, 0xD9)}  # TEM, RST0-7, SOI: no length follows
_MARKER = re.compile(rb"\xff([\x01-\xfe])")  # behind fill bytes, or junk, which libjpeg skips too
_PROCESS_OF = {0xC0: "dct", 0xC1: "dct", 0xC2: "dct", 0xC3: "lossless", 0xF7: "ls"}  # by its SOF
_SCAN_MARKER, _END_MARKER = 0xDA, 0xD9
# ICC profiles, Photoshop's blocks, several pictures, comments. APP0 and APP14 tell the colours
# apart, APP1 may hold the orientation.
_METADATA_MARKERS = {*range(0xE2, 0xEE), 0xEF, 0xFE}
_SCAN, _CODES, _END = b"\xff\xda", b"\xff\xc4", b"\xff\xd9"
_MAX_MARKERS = 1000
_MAX_FILL = 2**16  # bytes before the first scan that are in no segment
_FILL_RUN = (
    b"\xff" * 1024
)  # libjpeg, given a stream by pieces, begins each run again at every piece
_MAX_BOXES = 64
_MAX_SCANS = 100  # a progressive grey image has about six; each goes over all pixels again
_BLOCK = 8  # pixels across a block of the DCT
_TILE_PART = b"\xff\x90"
_TILE_HEADER = 12
_MAX_TILES = 65_535


_PNG_SIGNATURE_BYTES = 8
_MAX_CHUNKS = 2**16  # writers put 8 KiB or more in each; Pillow takes microseconds for one
_PIXEL_CHUNKS = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
_TEXT_CHUNKS = {b"tEXt", b"zTXt", b"iTXt"}
_ORIENTED = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")  # texts that may hold it


class Frame(NamedTuple):
    """Size and samples that the header of a compressed stream declares."""

    rows: int
    columns: int
    components: int
    precision: int
    process: str
    signed: bool = False  # JPEG and JPEG-LS have no sign


def _number(stream: bytes, at: int, size: int) -> int:
    return int.from_bytes(stream[at : at + size], "big")


def plain_png(stream: bytes) -> bytes:
    """Cut a PNG file down to what makes its pixels, and what may hold its orientation.

    Source: PNG, third edition, 5.3 and 11.
    """
    parts, at = [stream[:_PNG_SIGNATURE_BYTES]], _PNG_SIGNATURE_BYTES
    for _ in range(_MAX_CHUNKS):
        stop = at + 12 + _number(stream, at, 4)
        kind = stream[at + 4 : at + 8]
        is_oriented = kind in _TEXT_CHUNKS and stream.startswith(_ORIENTED, at + 8)
        may_orient = (kind == b"eXIf" or is_oriented) and _is_whole(stream, at, stop)
        if kind in _PIXEL_CHUNKS or may_orient:
            parts.append(stream[at:stop])
        if kind == b"IEND" or stop >= len(stream):
            return b"".join(parts)
        at = stop
    raise ImageError("corrupt", f"the PNG has more than {_MAX_CHUNKS} chunks")


def _is_whole(stream: bytes, at: int, stop: int) -> bool:
    check = zlib.crc32(stream[at + 4 : stop - 4])
    return stop <= len(stream) and check == _number(stream, stop - 4, 4)


def _segments(stream: bytes) -> Iterator[tuple[int, int, int]]:
    """Walk a JPEG stream up to its first scan: marker, start, stop (ITU-T T.81, B.1.1.2)."""
    at, fill = 2, _MAX_FILL
    for _ in range(_MAX_MARKERS):
        match = _MARKER.search(stream, at, at + fill)
        if match is None or match.end() + 2 > len(stream):
            return
        fill -= match.start() - at
        at, marker = match.start(), match[1][0]
        bare = marker in _BARE_MARKERS
        stop = at + 2 + (0 if bare else _number(stream, at + 2, 2))
        if not bare:
            yield marker, at, stop
        if marker in {_END_MARKER, _SCAN_MARKER}:
            return
        at = stop
    raise ImageError("corrupt", f"the JPEG has more than {_MAX_MARKERS} segments before its scan")


def plain_jpeg(stream: bytes) -> bytes:
    """Cut a JPEG file down to what makes its pixels, and what may hold its orientation.

    What stands between segments goes too: Pillow would step over it byte by byte.
    """
    parts = [stream[:2]]
    for marker, start, stop in _segments(stream):
        if marker == _SCAN_MARKER:
            parts.append(stream[start:].rstrip(b"\xff"))
            if _FILL_RUN in parts[-1]:
                raise ImageError("corrupt", "the JPEG is filled up within its scans")
        elif marker not in _METADATA_MARKERS:
            parts.append(stream[start:stop])
    return b"".join(parts)


def read_jpeg(stream: bytes) -> Frame:
    """Read the frame header of a JPEG or JPEG-LS stream: `process` is `dct`, `lossless` or `ls`.

    Source: ITU-T T.81, Annex B; T.87, Annex C.
    """
    if stream[:2] != b"\xff\xd8":
        raise ImageError("corrupt", "the stream does not start with a JPEG marker")
    frames = (item[:2] for item in _segments(stream) if item[0] in _PROCESS_OF)
    marker, at = next(frames, (0, 0))
    if not marker:
        raise ImageError("corrupt", "the stream has no JPEG frame header")
    if at + 10 > len(stream):
        raise ImageError("truncated", "the stream ends in its frame header")
    process, precision, components = _PROCESS_OF[marker], stream[at + 4], stream[at + 9]
    rows, columns = _number(stream, at + 5, 2), _number(stream, at + 7, 2)
    if _number(stream, at + 2, 2) != 8 + 3 * components:
        raise ImageError("corrupt", "the frame header has another length than its components")
    if process == "dct" and stream.count(_SCAN) > _MAX_SCANS:
        raise ImageError("corrupt", f"the stream has more than {_MAX_SCANS} scans")
    if process == "lossless" and _CODES not in stream:
        # ljpeg would go on with tables that were never filled
        raise ImageError("corrupt", "the stream has no Huffman codes")
    return Frame(rows, columns, components, precision, process)


def read_jpeg2000(stream: bytes) -> tuple[Frame, bytes]:
    """Read the size segment of a JPEG 2000 stream, boxed or bare; also give the bare stream.

    Source: ITU-T T.800, A.5.1 and I.4; a box of length 0 reaches to the end.
    """
    if stream.startswith(_JP2_SIGNATURE):
        stream = _unboxed(stream)
    if stream[:4] != b"\xff\x4f\xff\x51" or len(stream) < 44:
        raise ImageError("corrupt", "the stream does not start with a JPEG 2000 size segment")
    right, bottom, left, top = (_number(stream, at, 4) for at in (8, 12, 16, 20))
    components = _number(stream, 40, 2)
    signed, precision = bool(stream[42] & 0x80), (stream[42] & 0x7F) + 1
    return Frame(bottom - top, right - left, components, precision, "j2k", signed), stream


def require_size(frame: Frame, rows: int, columns: int, stream_bytes: int) -> None:
    """Refuse a stream that declares another size than its file, has colours, or is too short."""
    if frame.components != 1:
        raise ImageError("not_greyscale", f"the stream has {frame.components} components, not 1")
    if (frame.rows, frame.columns) != (rows, columns):
        raise ImageError(
            "size_mismatch",
            f"the stream declares {frame.rows} x {frame.columns} pixels, "
            f"the file {rows} x {columns}",
        )
    require_bits(frame, stream_bytes)


def require_bits(frame: Frame, stream_bytes: int) -> None:
    """Refuse a stream with less than one bit per coded unit.

    The unit is a block of DCT coefficients, or a pixel of lossless JPEG: each takes one Huffman
    code, and a code has one bit at least. JPEG-LS and JPEG 2000 have no such bound.
    """
    units = frame.rows * frame.columns
    if frame.process == "dct":
        units //= _BLOCK**2
    elif frame.process != "lossless":
        return
    if stream_bytes * 8 < units:
        raise ImageError(
            "truncated", f"{stream_bytes} bytes cannot hold {frame.rows} x {frame.columns} pixels"
        )


def require_tiles(stream: bytes) -> None:
    """Refuse a bare JPEG 2000 stream that lacks tiles; `read_jpeg2000` has read its size.

    Source: ITU-T T.800, A.4.2 (tile-part header; a length of 0 reaches to the end) and B.3.
    """
    numbers = [_number(stream, at, 4) for at in range(8, 40, 4)]
    (right, bottom), (width, height), (left, top) = numbers[:2], numbers[4:6], numbers[6:]
    if width == 0 or height == 0 or left > right or top > bottom:
        raise ImageError("corrupt", "the JPEG 2000 stream has impossible tiles")
    expected = -((left - right) // width) * -((top - bottom) // height)  # both rounded up
    if expected > _MAX_TILES:
        raise ImageError("corrupt", f"the JPEG 2000 stream has more than {_MAX_TILES} tiles")
    # A decoder leaves out what is missing without an error. Tile parts give their own length, so
    # they can be counted without decoding.
    tiles = set()
    at = 2
    for _ in range(_MAX_MARKERS):  # the main header
        if stream[at : at + 2] == _TILE_PART:
            break
        at += 2 + _number(stream, at + 2, 2)
    while stream[at : at + 2] == _TILE_PART:
        tiles.add(_number(stream, at + 4, 2))
        length = _number(stream, at + 6, 4)
        if length == 0:
            break
        if length < _TILE_HEADER or at + length > len(stream):
            raise ImageError("truncated", "a tile of the JPEG 2000 stream is cut")
        at += length
    if tiles != set(range(expected)):
        raise ImageError("truncated", "the JPEG 2000 stream lacks tiles that it declares")


def _unboxed(stream: bytes) -> bytes:
    # A length of 1 stands for eight bytes of length that follow, one of 0 for "to the end". Each
    # box must move the offset forward: one that points at itself would loop for ever.
    at = 0
    for _ in range(_MAX_BOXES):
        length, start = _number(stream, at, 4), at + 8
        if length == 1:
            length, start = _number(stream, at + 8, 8), at + 16
        end = len(stream) if length == 0 else at + length
        if stream[at + 4 : at + 8] == b"jp2c":
            return stream[start:end]
        if end <= start - 8 or end >= len(stream) or length < 8:
            break
        at = end
    raise ImageError("corrupt", "the JP2 file has no code stream")


def require_whole(stream: bytes, pixels: Words, precision: int) -> None:
    """Refuse a baseline JPEG stream of one component that ends before its last blocks.

    Streams of several scans are not examined. `pixels`: what a decoder made of the stream;
    `precision`: bits of a sample.

    Source: ITU-T T.81, F.1.2; libjpeg, jdhuff.c, for what fills the rest.
    """
    # libjpeg that runs out of data fills the rest with blocks of mid-grey and warns at most. Blocks
    # of mid-grey that a stream does hold take two bits each at least: one code for "no difference
    # of DC", one for "end of block". So some bytes of a whole stream can be left out at its end,
    # and only such blocks change; of a stream that was cut, others do. The first grey block may
    # hold a difference to the block before it, so it proves nothing.
    blocks = _mid_grey_blocks(pixels, 1 << (precision - 1))
    spare = 2 * (blocks - 1) // 8
    start = next((stop for mark, _, stop in _segments(stream) if mark == _SCAN_MARKER), 0)
    if spare < 1 or _SCAN in stream[start:]:
        return
    end = stream.find(_END, start)
    less = stream[: (end if end >= 0 else len(stream)) - spare].rstrip(b"\xff") + _END
    down, across = (-(-length // _BLOCK) for length in pixels.shape)
    is_real = np.arange(down * across).reshape(down, across) < down * across - blocks
    is_real = is_real.repeat(_BLOCK, 0).repeat(_BLOCK, 1)[: pixels.shape[0], : pixels.shape[1]]
    if (np.asarray(imagecodecs.jpeg8_decode(less)) != pixels)[is_real].any():
        raise ImageError("truncated", "the stream ends before its last blocks")


def _mid_grey_blocks(pixels: Words, middle: int) -> int:
    """Count the blocks at the end, in the order of coding, that are mid-grey throughout."""
    across = -(-pixels.shape[1] // _BLOCK)
    blocks = 0
    for top in range((pixels.shape[0] - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        others = np.flatnonzero((pixels[top : top + _BLOCK] != middle).any(axis=0))
        if len(others):
            return int(blocks + across - others[-1] // _BLOCK - 1)
        blocks += across
    return blocks
