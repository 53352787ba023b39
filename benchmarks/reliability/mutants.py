"""Image files and their mutants: damage that a reader sees only when it believes what it reads.

A mutant is a sound file of which one to three stretches were flipped, overwritten, cut, repeated or
exchanged, more often among its headers than behind them. The same seed, format and number always
give the same mutant.
"""

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 12, 15, 16, 17, 31, 63, 64, 127, 128, 255, 256, 4095, 4096)
_NUMBERS += (32767, 32768, 65534, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_WORDS = (b"nan", b"inf", b"-1", b"0", b"1e308", b"1e-320", b"\\", b"1\\2", b"YES", b"\0", b"x ")
_WORDS += (b"US", b"SS", b"UL", b"OB", b"OW", b"SQ", b"UN", b"CS", b"DS", b"IS", b"LO", b"UT")
_WORDS += tuple(
    struct.pack("<HH", *pair)
    for pair in (
        *((0x28, element) for element in (2, 4, 8, 0x10, 0x11, 0x34, 0x100, 0x101, 0x102, 0x103)),
        *((0x28, element) for element in (0x120, 0x121, 0x1050, 0x1051, 0x1052, 0x1053, 0x3000)),
        *((0x28, 0x3010), (0x7FE0, 0x10), (0x7FE0, 8), (0xFFFE, 0xE000), (0xFFFE, 0xE0DD)),
        *((2, 0x10), (8, 5), (0x18, 0x1164), (0x60, 0x3000), (0x6000, 0x3000), (9, 0x1010)),
    )
)
"""Values, value representations and tags of DICOM."""
_HEADERS, _OFTEN = 1024, 0.7  # bytes at the beginning of a file, and how often these are hit
_DEFLATED = b"1.2.840.10008.1.2.1.99"


@dataclass(frozen=True)
class Seed:
    """A sound file."""

    form: Literal["dicom", "jpeg", "png"]
    """Its format."""
    data: bytes
    """Its bytes."""
    body: int = 0
    """Where a deflated data set starts; 0: nothing is deflated."""


def read_seed(data: bytes) -> Seed:
    """Tell the format of a sound DICOM, JPEG or PNG file."""
    if data[:1] == b"\xff":
        return Seed("jpeg", data)
    if data[:1] == b"\x89":
        return Seed("png", data)
    start = 144 + int.from_bytes(data[140:144], "little")  # behind the file meta group
    if _DEFLATED in data[:start]:
        with suppress(zlib.error):  # a real file may be malformed itself
            zlib.decompress(data[start:], -zlib.MAX_WBITS)
            return Seed("dicom", data, start)
    return Seed("dicom", data)


def mutate(seed: Seed, other: Seed, rng: random.Random) -> bytes:
    """Damage a file; `other`, of the same format, is for splices."""
    if seed.body and rng.random() < _OFTEN:  # damage what is deflated, not the deflation
        inner = bytearray(zlib.decompress(seed.data[seed.body :], -zlib.MAX_WBITS))
        _damage(inner, inner, rng)
        packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        return seed.data[: seed.body] + packer.compress(bytes(inner)) + packer.flush()
    data = bytearray(seed.data)
    _damage(data, other.data, rng)
    if seed.form == "png" and rng.random() < 0.8:
        _mend_checksums(data)
    return bytes(data)


def pick(seeds: Sequence[Seed], name: str, number: int) -> bytes:
    """Return one mutant by its name and number."""
    rng = random.Random(f"{name} {number}")
    seed = rng.choice(seeds)
    other = rng.choice([item for item in seeds if item.form == seed.form])
    return mutate(seed, other, rng)


def _damage(data: bytearray, other: bytes, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        rng.choice(_WAYS)(data, other, rng)


def _place(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(min(len(data), _HEADERS) if rng.random() < _OFTEN else len(data))


def _flip(data: bytearray, _other: bytes, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        data[_place(data, rng)] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at, width = _place(data, rng), rng.choice((1, 2, 4))
    number = rng.choice(_NUMBERS) % 2 ** (8 * width)
    data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))


def _write_word(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at, word = _place(data, rng), rng.choice(_WORDS)
    data[at : at + len(word)] = word


def _truncate(data: bytearray, _other: bytes, rng: random.Random) -> None:
    del data[rng.randrange(1, max(2, len(data))) :]


def _cut_out(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = _place(data, rng)
    del data[at : at + rng.randint(1, 64)]
    data.extend(b"" if data else b"\0")


def _repeat(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = _place(data, rng)
    data[at:at] = data[at : at + rng.randint(1, 256)] * rng.choice((1, 1, 4))


def _splice(data: bytearray, other: bytes, rng: random.Random) -> None:
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :] or b"\0"


def _noise(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    width = min(rng.randint(1, 64), len(data) - at)
    data[at : at + width] = rng.randbytes(width)


_WAYS: tuple[Callable[[bytearray, bytes, random.Random], None], ...] = (
    *(_flip, _overwrite, _overwrite, _overwrite, _write_word, _write_word, _write_word),
    *(_truncate, _cut_out, _repeat, _splice, _noise),
)


def _mend_checksums(data: bytearray) -> None:
    at = 8
    while at + 12 <= len(data):
        stop = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if stop + 4 > len(data):
            return
        data[stop : stop + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : stop]))
        at = stop + 4
