"""First bytes of a DICOM file -> the few values that say whose image it is, and what picture.

A walk over the elements of the data set's start, without a parser: it allocates nothing
beyond the bytes it is given, follows no nesting, and ends after a fixed number of
elements. Values of all other tags are stepped over unread.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from medclip_dcl.data.formats import is_dicom

TAGS = {
    (0x0008, 0x0016): "SOPClassUID",
    (0x0008, 0x0018): "SOPInstanceUID",
    (0x0008, 0x0060): "Modality",
    (0x0010, 0x0020): "PatientID",
    (0x0018, 0x5101): "ViewPosition",
    (0x0020, 0x000D): "StudyInstanceUID",
}
"""The tags that an archive is listed by. PatientID leaves as a keyed hash alone."""

_NEAR, _FAR = 1 << 16, 1 << 22
_MOST_ELEMENTS = 4000
_PREAMBLE = 132
_META = 0x0002
_SYNTAX = (0x0002, 0x0010)
_LONG_VRS = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT"}
_LONG_VRS |= {b"UV"}
_UNDEFINED = 0xFFFFFFFF
_NESTING = {(0xFFFE, 0xE000): 1, (0xFFFE, 0xE00D): -1, (0xFFFE, 0xE0DD): -1}
_IMPLICIT, _BIG_ENDIAN = "1.2.840.10008.1.2", "1.2.840.10008.1.2.2"
_DEFLATED = "1.2.840.10008.1.2.1.99"
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_CODE = re.compile(r"[A-Z0-9 _]{0,16}")
_LAST = max(TAGS)

_PIXEL_GROUP = 0x0028
_PHOTOMETRIC, _BURNED_IN = (0x0028, 0x0004), (0x0028, 0x0301)
_SIZES = ((0x0028, 0x0010), (0x0028, 0x0011), (0x0028, 0x0101))  # Rows, Columns, BitsStored
_KEPT = {*TAGS, _SYNTAX, _PHOTOMETRIC, _BURNED_IN, *_SIZES}

_Tag = tuple[int, int]
_Order = Literal["little", "big"]
Found = TypeVar("Found")


class _CutShort(Exception):
    """The bytes end before the walk does."""


@dataclass(frozen=True)
class Header:
    """What an image says of itself.

    Attributes:
        image_id: SOPInstanceUID.
        study_id: StudyInstanceUID.
        patient: PatientID as it stands in the file; empty where it is blank. Never kept.
        view: ViewPosition; empty where it is blank or no code.
        modality: Modality; empty where it is blank or no code.
        sop_class: SOPClassUID.
    """

    image_id: str
    study_id: str
    patient: bytes
    view: str
    modality: str
    sop_class: str


@dataclass(frozen=True)
class PictureHeader:
    """What an image says of its picture, before anything is decoded.

    Attributes:
        height_px: Rows.
        width_px: Columns.
        bits_stored: BitsStored.
        inverted: whether it is MONOCHROME1.
        burned_in: whether BurnedInAnnotation says YES.
    """

    height_px: int
    width_px: int
    bits_stored: int
    inverted: bool
    burned_in: bool


def read_header(path: Path) -> Header | None:
    """Read the ids and the view of one DICOM file.

    Args:
        path: a regular file.

    Returns:
        The values; None where the bytes are no DICOM, end too early, or name no ids.

    Source: DICOM PS3.5, 7.1 and 7.5; PS3.10, 7.1.
    """
    return _read(path, _header)


def read_picture_header(path: Path) -> PictureHeader | None:
    """Read what one DICOM file says of its picture.

    Args:
        path: a regular file.

    Returns:
        The values; None where the bytes are no DICOM, end too early, or lack one of them.

    Source: DICOM PS3.3, C.7.6.3.
    """
    return _read(path, _picture)


def is_dicom_file(path: Path) -> bool:
    """Say whether a file starts as DICOM does.

    Args:
        path: a regular file.

    Returns:
        Whether `DICM` follows its preamble.
    """
    with path.open("rb") as stream:
        return is_dicom(stream.read(_PREAMBLE))


def _read(path: Path, look: Callable[[bytes], Found | None]) -> Found | None:
    """Look at the start of a file, and at more of it where that is too short."""
    with path.open("rb") as stream:
        for size in (_NEAR, _FAR):
            stream.seek(0)
            data = stream.read(size)
            try:
                return look(data)
            except _CutShort:
                if len(data) < size:
                    return None
    return None


def _header(data: bytes) -> Header | None:
    opened = _data_set(data, _LAST[0])
    if opened is None:
        return None
    found, _ = opened
    values = {name: found.get(tag, b"") for tag, name in TAGS.items()}
    image_id, study_id = _text(values["SOPInstanceUID"]), _text(values["StudyInstanceUID"])
    if not _UID.fullmatch(image_id) or not _UID.fullmatch(study_id):
        return None
    return Header(
        image_id,
        study_id,
        values["PatientID"].strip(b" \0"),
        _code(values["ViewPosition"]),
        _code(values["Modality"]),
        _text(values["SOPClassUID"]),
    )


def _picture(data: bytes) -> PictureHeader | None:
    opened = _data_set(data, _PIXEL_GROUP)
    if opened is None:
        return None
    found, order = opened
    rows, columns, bits = (int.from_bytes(found.get(tag, b"")[:2], order) for tag in _SIZES)
    photometric = _code(found.get(_PHOTOMETRIC, b""))
    if not rows or not columns or not bits or not photometric:
        return None
    burned_in = _code(found.get(_BURNED_IN, b"")) == "YES"
    return PictureHeader(rows, columns, bits, photometric == "MONOCHROME1", burned_in)


def _data_set(data: bytes, until: int) -> tuple[dict[_Tag, bytes], _Order] | None:
    """Give the wanted values of a file's data set up to a group, and its byte order."""
    if not is_dicom(data):
        return None
    meta, start = _walk(data, _PREAMBLE, implicit=False, order="little", until=_META)
    syntax = _text(meta.get(_SYNTAX, b""))
    if syntax == _DEFLATED:
        try:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[start:], _FAR)
        except zlib.error:
            return None
        start = 0
    order: _Order = "big" if syntax == _BIG_ENDIAN else "little"
    found, _ = _walk(data, start, implicit=syntax == _IMPLICIT, order=order, until=until)
    return found, order


def _walk(
    data: bytes, at: int, *, implicit: bool, order: _Order, until: int
) -> tuple[dict[_Tag, bytes], int]:
    """Give the wanted top-level values up to a group, and the offset of the next element."""
    found: dict[_Tag, bytes] = {}
    depth = 0
    for _ in range(_MOST_ELEMENTS):
        if at == len(data) and not depth:
            break
        head = data[at : at + 12]
        if len(head) < 8:
            raise _CutShort
        tag = int.from_bytes(head[:2], order), int.from_bytes(head[2:4], order)
        if not depth and tag[0] > until:
            break
        kind = head[4:6]
        if implicit or tag[0] == 0xFFFE:
            length, wide = int.from_bytes(head[4:8], order), 8
        elif kind in _LONG_VRS:
            length, wide = int.from_bytes(head[8:12], order), 12
        else:
            length, wide = int.from_bytes(head[6:8], order), 8
        at += wide
        if length == _UNDEFINED or _NESTING.get(tag, 0) < 0:  # a sequence or an item opens, or ends
            depth += _NESTING.get(tag, 1)
            continue
        if at + length > len(data):
            raise _CutShort
        if not depth and tag in _KEPT:
            found[tag] = data[at : at + length]
        at += length
    else:
        raise _CutShort
    return found, at


def _text(value: bytes) -> str:
    return value.rstrip(b"\0 ").decode("ascii", "replace")


def _code(value: bytes) -> str:
    code = _text(value).strip().upper()
    return code if _CODE.fullmatch(code) else ""
