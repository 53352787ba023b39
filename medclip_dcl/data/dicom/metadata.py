"""First bytes of a DICOM file -> its transfer syntax, and whose image it is.

File meta group and data set are walked without a parser: a walk allocates nothing beyond the bytes
it is given, follows no nesting, and ends after a fixed number of elements.
"""

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.limits import PREAMBLE, is_dicom


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

_Tag = tuple[int, int]

TAGS: dict[_Tag, str] = {
    (0x0008, 0x0016): "SOPClassUID",
    (0x0008, 0x0018): "SOPInstanceUID",
    (0x0008, 0x0060): "Modality",
    (0x0010, 0x0020): "PatientID",
    (0x0018, 0x5101): "ViewPosition",
    (0x0020, 0x000D): "StudyInstanceUID",
}
"""The tags that an archive is listed by. PatientID leaves as a keyed hash alone."""

DEFLATED = "1.2.840.10008.1.2.1.99"

UNDEFINED = 0xFFFFFFFF  # length of an element that ends at a delimiter

_NEAR, _FAR = 1 << 16, 1 << 22  # bytes read at first, and where those end too early
_MOST_ELEMENTS = 4000
_TRANSFER_SYNTAX = (0x0002, 0x0010)  # of the meta group: always explicit VR, little endian
# In explicit VR these have two reserved bytes and a length of four, all others a length of two.
_LONG_VRS = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT"}
_LONG_VRS |= {b"UV"}
_NESTING = {(0xFFFE, 0xE000): 1, (0xFFFE, 0xE00D): -1, (0xFFFE, 0xE0DD): -1}
_UID = re.compile(r"[0-9][0-9.]{0,63}")
_CODE = re.compile(r"[A-Z0-9 _]{0,16}")
_INSTANCE_UID = (0x0008, 0x0018)


@dataclass(frozen=True)
class Header:
    """Ids, view and modality of an image; empty where they are blank or no code.

    `patient` is PatientID as it stands in the file. It is never kept.
    """

    image_id: str
    study_id: str
    patient: bytes
    view: str
    modality: str
    sop_class: str


def read_header(path: Path) -> Header | None:
    """Read the ids and the view; None where the bytes are not DICOM, are cut, or name no ids.

    Source: DICOM PS3.5, 7.1 and 7.5; PS3.10, 7.1.
    """
    return _header(_read_values(path, max(TAGS)))


def parse_header(data: bytes) -> Header | None:
    """Read the header of the bytes of a file, as `read_header` does."""
    try:
        return _header(_values(data[:_FAR], max(TAGS)))
    except ImageError:
        return None


def read_instance_uid(path: Path) -> str:
    """Read the SOP instance UID of a file's data set; empty where it has none, or is not DICOM.

    Nothing behind it is looked at.
    """
    return _text((_read_values(path, _INSTANCE_UID) or {}).get(_INSTANCE_UID, b""))


def _read_values(path: Path, last: _Tag) -> dict[_Tag, bytes] | None:
    with path.open("rb") as stream:
        # The ids stand in the first kilobytes, unless long private elements stand before them.
        for size in (_NEAR, _FAR):
            stream.seek(0)
            with suppress(ImageError):
                return _values(stream.read(size), last)
    return None


def _header(elements: dict[_Tag, bytes] | None) -> Header | None:
    if elements is None:
        return None
    values = {name: elements.get(tag, b"") for tag, name in TAGS.items()}
    image_id, study_id = _text(values["SOPInstanceUID"]), _text(values["StudyInstanceUID"])
    # Ids become names of files and keys of tables.
    if not _UID.fullmatch(image_id) or not _UID.fullmatch(study_id):
        return None
    return Header(
        image_id,
        study_id,
        values["PatientID"].strip(b" \0"),
        read_code(values["ViewPosition"]),
        read_code(values["Modality"]),
        _text(values["SOPClassUID"]),
    )


def _values(data: bytes, last: _Tag) -> dict[_Tag, bytes] | None:
    """Return the values of `TAGS` in a file's data set, up to the tag `last`; ImageError."""
    if not is_dicom(data):
        return None
    syntax, start = read_file_meta(data)
    if syntax == DEFLATED:
        try:
            # To a bound, where a bomb ends.
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[start:], _FAR)
        except zlib.error:
            return None
        start = 0
    values: dict[_Tag, bytes] = {}
    for tag, _, at, length in walk_elements(data, start, SYNTAXES.get(syntax, Syntax())):
        if tag > last:  # elements are sorted: nothing wanted follows
            break
        if tag in TAGS and length != UNDEFINED:
            values[tag] = data[at : at + length]
            if len(values[tag]) < length:
                raise ImageError("truncated", "the data set ends within an element")
    return values


def read_file_meta(data: bytes) -> tuple[str, int]:
    """Read the file meta group: the transfer syntax, and the offset of the data set.

    Raises:
        ImageError: the group is cut, endless, or names no transfer syntax.

    Source: DICOM PS3.10, 7.1.
    """
    # The group's own length is not believed: it is walked, as some writers state another.
    syntax, end = "", PREAMBLE
    for tag, _, start, length in walk_elements(data, PREAMBLE, Syntax()):
        if tag[0] != 2:
            break
        end = start + length
        if tag == _TRANSFER_SYNTAX:
            syntax = _text(data[start:end])
    if not syntax:
        raise ImageError("unreadable", "the file meta group names no transfer syntax")
    return syntax, end


def find_values(data: bytes, at: int, tag: _Tag, form: Syntax) -> list[bytes]:
    """Return the values of a tag among the elements from offset `at` on, up to the first malformed.

    Raises:
        ImageError: there are more elements than any image has.
    """
    values = []
    try:
        for number, _, start, length in walk_elements(data, at, form):
            if number == tag:
                values.append(data[start : start + length])
    except ImageError as error:
        if error.code == "too_many_elements":
            raise
    return values


def walk_elements(
    data: bytes, at: int, form: Syntax, most: int = _MOST_ELEMENTS
) -> Iterator[tuple[_Tag, int, int, int]]:
    """Yield tag, start, and start and length of the value, of each element in no sequence.

    Raises:
        ImageError: the data end within an element, or there are more than `most`, those that are
            within sequences of undefined length included.
    """
    # Only elements of undefined length are entered, as a count of open sequences and items:
    # what has a length, a sequence too, is stepped over whole. So a file that nests a million
    # deep costs a number, not a stack.
    order, depth = form.order, 0
    unknown = 0  # depth of a sequence that is written as UN: what it holds is in implicit VR
    for _ in range(most):
        if at == len(data) and not depth:
            break
        head = data[at : at + 12]
        if len(head) < 8:
            raise ImageError("truncated", "the data set ends within an element")
        tag = int.from_bytes(head[:2], order), int.from_bytes(head[2:4], order)
        if tag == (0, 0):  # zeros that fill a block behind the last element
            break
        kind = head[4:6]
        # Items and delimiters have no VR in any syntax, and some writers leave out those of others.
        has_vr = b"AA" <= kind <= b"ZZ" and tag[0] != 0xFFFE
        if form.implicit or unknown or not has_vr:
            length, wide = int.from_bytes(head[4:8], order), 8
        elif kind in _LONG_VRS:
            length, wide = int.from_bytes(head[8:12], order), 12
        else:
            length, wide = int.from_bytes(head[6:8], order), 8
        start, at = at, at + wide
        if not depth:
            yield tag, start, at, length
        if length == UNDEFINED or _NESTING.get(tag, 0) < 0:  # a sequence or an item opens, or ends
            depth += _NESTING.get(tag, 1)
            if kind == b"UN" and wide == 12:
                unknown = depth
            elif depth < unknown:
                unknown = 0
            continue
        if at + length > len(data):
            raise ImageError("truncated", "the data set ends within an element")
        at += length
    else:
        raise ImageError("too_many_elements", f"the data set has more than {most} elements")


def _text(value: bytes) -> str:
    return value.rstrip(b"\0 ").decode("ascii", "replace")


def read_code(value: bytes) -> str:
    """Read a code in capitals, as a code string may be; empty where the value is none."""
    code = _text(value).strip().upper()
    return code if _CODE.fullmatch(code) else ""
