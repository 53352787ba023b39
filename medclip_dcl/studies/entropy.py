"""Whether a JPEG stream held all the blocks that a decoder gave, or the last ones were made up.

A decoder that runs out of data fills the rest with mid-grey and says nothing. Blocks of
mid-grey that the stream does hold are written alike, one after the other, so its last bits
repeat with the length of one such block; those of a stream that was cut do not.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from medclip_dcl.errors import ImageError
from medclip_dcl.studies.intensities import Words

_BLOCK = 8
_PADDING = 7  # bits at most that fill the last byte
_EVIDENCE = 16  # bits that must repeat by chance, before a cut stream passes for a whole one
_BASELINE = {0xC0, 0xC1}
_CODES, _RESTARTS, _SCAN = 0xC4, 0xDD, 0xDA
_END = b"\xff\xd9"


@dataclass
class _Scan:
    """What the headers of a baseline stream of one component say of its only scan."""

    codes: dict[int, bytes] = field(default_factory=dict)
    """Class and number of a Huffman table -> its sixteen counts and its symbols."""
    tables: tuple[int, int] = (0, 0)
    """Those of the component: for its DC differences and for what follows them."""
    start: int = 0
    plain: bool = True
    """Whether it is baseline and without restarts."""


def require_whole(stream: bytes, pixels: Words, precision: int) -> None:
    """Refuse a baseline JPEG stream of one component that ends before its last blocks.

    Args:
        stream: the stream, whose frame header has been read.
        pixels: what a decoder made of it, uint8 or uint16 (height, width).
        precision: bits of a sample.

    Raises:
        ImageError: the last blocks are mid-grey, and the stream does not hold them. Streams
            with several scans or with restart markers are not examined.

    Source: ITU-T T.81, F.1.2 and F.1.4; libjpeg, jdhuff.c, for what fills the rest.
    """
    made_up = _mid_grey_blocks(pixels, 1 << (precision - 1)) - 1  # the first may differ in its DC
    if made_up < 1:
        return
    scan = _read_scan(stream)
    if not scan.plain:
        return
    lengths = [_code_length(scan.codes.get(table, b"")) for table in scan.tables]
    if 0 in lengths:
        raise ImageError("truncated", "the stream ends before its last blocks")
    period = sum(lengths)
    length = made_up * period // 8
    end = stream.find(_END, scan.start)
    coded = stream[scan.start : end if end >= 0 else len(stream)].rstrip(b"\xff")
    data = coded.replace(b"\xff\0", b"\xff")[-length:]
    bits = np.unpackbits(np.frombuffer(data, np.uint8))[:-_PADDING]
    if len(bits) < made_up * period - 2 * _PADDING - 8:
        raise ImageError("truncated", "the stream ends before its last blocks")
    if len(bits) - period >= _EVIDENCE and (bits[period:] != bits[:-period]).any():
        raise ImageError("truncated", "the stream ends before its last blocks")


def _mid_grey_blocks(pixels: Words, middle: int) -> int:
    """Count the blocks at the end that are mid-grey throughout."""
    across = -(-pixels.shape[1] // _BLOCK)
    blocks = 0
    for top in range((pixels.shape[0] - 1) // _BLOCK * _BLOCK, -1, -_BLOCK):
        others = np.flatnonzero((pixels[top : top + _BLOCK] != middle).any(axis=0))
        if len(others):
            return int(blocks + across - others[-1] // _BLOCK - 1)
        blocks += across
    return blocks


def _read_scan(stream: bytes) -> _Scan:
    scan = _Scan()
    at = 2
    while at + 4 <= len(stream) and stream[at] == 0xFF:
        marker = stream[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        stop = at + 2 + int.from_bytes(stream[at + 2 : at + 4], "big")
        body = stream[at + 4 : stop]
        if marker == _CODES:
            _read_codes(body, scan.codes)
        elif marker == _RESTARTS:
            scan.plain &= not any(body)
        elif marker == _SCAN:
            scan.tables = body[2] >> 4, 0x10 | body[2] & 0xF
            scan.start = stop
            return scan
        elif 0xC0 <= marker <= 0xCF:
            scan.plain &= marker in _BASELINE
        at = stop
    scan.plain = False
    return scan


def _read_codes(body: bytes, codes: dict[int, bytes]) -> None:
    while len(body) > 16:
        symbols = 17 + sum(body[1:17])
        codes[body[0]] = body[1:symbols]
        body = body[symbols:]


def _code_length(table: bytes) -> int:
    """Give the bits of symbol 0 (no difference; no more coefficients); 0 where it has none."""
    at = table[16:].find(b"\0")
    if at < 0:
        return 0
    below: npt.NDArray[np.int64] = np.cumsum(np.frombuffer(table[:16], np.uint8))
    return int(np.searchsorted(below, at, side="right")) + 1
