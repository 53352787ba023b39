"""Image files and their mutants: damage that a reader sees only when it believes what it reads.

A DICOM file is cut into fields (tags, value representations, lengths, values, streams) once; a
mutant changes one to three of them, or, as of JPEG and PNG files, bits, bytes and whole stretches.
The same seed, format and number always give the same mutant.
"""

import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from medclip_dcl.data.dicom.metadata import SYNTAXES

Format = Literal["dicom", "jpeg", "png"]

_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 12, 15, 16, 17, 31, 63, 64, 127, 128, 255, 256, 4095, 4096)
_NUMBERS += (32767, 32768, 65534, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
_WORDS = (b"nan", b"inf", b"-1", b"0", b"1e308", b"1e-320", b"", b"\\", b"1\\2")
_WORDS += (b"YES", b"\0", b"x ")
_VRS = (b"US", b"SS", b"UL", b"OB", b"OW", b"SQ", b"UN", b"CS", b"DS", b"IS", b"LO", b"UT", b"FD")
_TAGS = tuple(
    struct.pack("<HH", *pair)
    for pair in (
        *((0x28, element) for element in (2, 4, 8, 0x10, 0x11, 0x34, 0x100, 0x101, 0x102, 0x103)),
        *((0x28, element) for element in (0x120, 0x121, 0x1050, 0x1051, 0x1052, 0x1053, 0x3000)),
        *((0x28, 0x3010), (0x7FE0, 0x10), (0x7FE0, 8), (0xFFFE, 0xE000), (0xFFFE, 0xE0DD)),
        *((2, 0x10), (8, 5), (0x18, 0x1164), (0x60, 0x3000), (0x6000, 0x3000), (9, 0x1010)),
    )
)
_WEIGHTS = {"stream": 5, "value": 3}  # what is behind the header is reached less often
_LONG_VRS = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT"}
_UNDEFINED = 0xFFFFFFFF
_DEFLATED = "1.2.840.10008.1.2.1.99"
_PREAMBLE = 132


@dataclass(frozen=True)
class Field:
    """A stretch of a file and what stands there."""

    kind: Literal["tag", "vr", "length", "value", "stream"]
    start: int
    stop: int


@dataclass(frozen=True)
class Seed:
    """A sound file."""

    form: Format
    """Its format."""
    data: bytes
    """Its bytes."""
    fields: tuple[Field, ...] = ()
    """Where things stand in a DICOM file; empty parts are left out."""
    elements: tuple[tuple[int, int], ...] = ()
    """Start and stop of each of its elements."""
    little: bool = True
    """Whether its numbers are little-endian."""
    body: int = 0
    """Where a deflated data set starts; 0: nothing is deflated."""


def read_seed(data: bytes) -> Seed:
    """Cut a sound DICOM file into fields; JPEG and PNG files stay whole."""
    if data[:1] == b"\xff":
        return Seed("jpeg", data)
    return Seed("png", data) if data[:1] == b"\x89" else _dicom(data)


def mutate(seed: Seed, other: Seed, rng: random.Random) -> bytes:
    """Damage a file, now and then not at all; `other`, of the same format, is for splices."""
    if seed.body and rng.random() < 0.7:  # damage what is deflated, not the deflation
        inner = bytearray(zlib.decompress(seed.data[seed.body :], -zlib.MAX_WBITS))
        for _ in range(rng.randint(1, 3)):
            rng.choice(_BLIND)(inner, inner, rng)
        packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        return seed.data[: seed.body] + packer.compress(bytes(inner)) + packer.flush()
    data = bytearray(seed.data)
    if seed.fields and rng.random() < 0.6:
        for _ in range(rng.randint(1, 3)):
            _damage_field(data, seed, rng)
        if rng.random() < 0.3:
            _move_element(data, seed, rng)
    else:
        for _ in range(rng.randint(1, 2)):
            rng.choice(_BLIND)(data, other.data, rng)
    if seed.form == "png" and rng.random() < 0.8:
        _mend_checksums(data)
    return bytes(data)


def _damage_field(data: bytearray, seed: Seed, rng: random.Random) -> None:
    kinds = sorted({field.kind for field in seed.fields})
    (kind,) = rng.choices(kinds, [_WEIGHTS.get(kind, 1) for kind in kinds])
    field = rng.choice([item for item in seed.fields if item.kind == kind])
    width = field.stop - field.start
    if kind == "tag":
        tag = rng.choice(_TAGS)
        new = tag if seed.little else bytes((tag[1], tag[0], tag[3], tag[2]))
    elif kind == "vr":
        new = rng.choice(_VRS)
    elif width > 8:
        at = field.start + rng.randrange(min(width, 256))
        data[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))])
        return
    elif kind == "value" and rng.random() < 0.3:
        new = rng.choice(_WORDS).ljust(width, b" ")[:width]
    else:
        old = int.from_bytes(data[field.start : field.stop], "little" if seed.little else "big")
        number = rng.choice((*_NUMBERS, old + 1, old - 1, old + 2, 2 * old, old // 2))
        new = (number % 2 ** (8 * width)).to_bytes(width, "little" if seed.little else "big")
    data[field.start : field.stop] = new[:width].ljust(width, b"\0")


def _move_element(data: bytearray, seed: Seed, rng: random.Random) -> None:
    """Delete, repeat or displace an element; the stretches are those of the sound file."""
    start, stop = rng.choice(seed.elements)
    element = bytes(data[start:stop])
    choice = rng.randrange(3)
    if choice == 0:
        del data[start:stop]
        return
    at = start if choice == 1 else rng.choice(seed.elements)[0]
    data[at:at] = element * rng.choice((1, 1, 1, 2, 50))


def _flip(data: bytearray, _other: bytes, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    width = rng.choice((1, 2, 4))
    number = rng.choice(_NUMBERS) % 2 ** (8 * width)
    data[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))


def _truncate(data: bytearray, _other: bytes, rng: random.Random) -> None:
    del data[rng.randrange(1, len(data)) :]


def _cut_out(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randint(1, 64)]
    data.extend(b"" if data else b"\0")


def _repeat(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randint(1, 256)] * rng.choice((1, 1, 4))


def _splice(data: bytearray, other: bytes, rng: random.Random) -> None:
    data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :] or b"\0"


def _noise(data: bytearray, _other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    width = min(rng.randint(1, 64), len(data) - at)
    data[at : at + width] = rng.randbytes(width)


_BLIND: tuple[Callable[[bytearray, bytes, random.Random], None], ...] = (
    *(_flip, _flip, _overwrite, _truncate, _cut_out, _repeat, _splice, _noise),
)


def _dicom(data: bytes) -> Seed:
    fields: list[Field] = []
    elements: list[tuple[int, int]] = []
    at = _PREAMBLE
    syntax = ""
    while data[at : at + 2] == b"\x02\x00":
        at = _element(data, at, fields, elements, implicit=False, order="little")
        if data[elements[-1][0] : elements[-1][0] + 4] == b"\x02\x00\x10\x00":
            syntax = data[fields[-1].start : fields[-1].stop].rstrip(b"\0 ").decode("ascii")
    form = SYNTAXES[syntax]
    if syntax == _DEFLATED:
        return Seed("dicom", data, tuple(fields), tuple(elements), body=at)
    order = form.order
    while at + 8 <= len(data):
        at = _element(data, at, fields, elements, implicit=form.implicit, order=order)
    return Seed("dicom", data, tuple(fields), tuple(elements), little=order == "little")


def _element(
    data: bytes,
    at: int,
    fields: list[Field],
    elements: list[tuple[int, int]],
    *,
    implicit: bool,
    order: Literal["little", "big"],
) -> int:
    """Note one element's fields; give the offset of the next, which may be inside it."""
    tag = struct.unpack("<HH" if order == "little" else ">HH", data[at : at + 4])
    fields.append(Field("tag", at, at + 4))
    if implicit or tag[0] == 0xFFFE:
        index, width = at + 4, 4
    else:
        vr = data[at + 4 : at + 6]
        fields.append(Field("vr", at + 4, at + 6))
        index, width = (at + 8, 4) if vr in _LONG_VRS else (at + 6, 2)
    start = index + width
    fields.append(Field("length", index, start))
    length = int.from_bytes(data[index:start], order)
    inside = length == _UNDEFINED or (tag == (0xFFFE, 0xE000) and length > len(data))
    stop = start if inside else min(start + length, len(data))
    if stop > start:
        stream = tag == (0xFFFE, 0xE000) or tag == (0x7FE0, 0x10)
        fields.append(Field("stream" if stream else "value", start, stop))
    elements.append((at, stop))
    return stop


def _mend_checksums(data: bytearray) -> None:
    at = 8
    while at + 12 <= len(data):
        stop = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if stop + 4 > len(data):
            return
        data[stop : stop + 4] = struct.pack(">I", zlib.crc32(data[at + 4 : stop]))
        at = stop + 4


def pick(seeds: Sequence[Seed], name: str, number: int) -> bytes:
    """Give one mutant by its name and number.

    The sound files are of one format, or of two that share their mutants.
    """
    rng = random.Random(f"{name} {number}")
    seed = rng.choice(seeds)
    other = rng.choice([item for item in seeds if item.form == seed.form])
    return mutate(seed, other, rng)
