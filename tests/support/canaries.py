"""Words that no archive holds by nature: planted in every text, and searched in every encoding."""

import base64
import fnmatch
import gzip
import io
import json
import re
import zipfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, get_args, get_origin
from urllib.parse import unquote_to_bytes

import pyarrow as pa
import pyarrow.parquet as pq
from pydicom import dcmread
from pydicom.charset import encode_string
from pydicom.datadict import DicomDictionary
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as Items
from pydicom.tag import Tag

from medclip_dcl.core.settings import Section
from medclip_dcl.data.dicom.metadata import TAGS
from medclip_dcl.data.dicom.reader import PIXEL_TAGS, PUBLIC_TAGS
from medclip_dcl.models.settings import ModelConfig

HEADER, WORD, NATIVE = "PHISENTINEL", "PHISENTWORD", "哨兵漏洩"
"""In headers, names and cells; in the text of sound reports; as HEADER, in another script."""
CANARIES = {"header": (HEADER[:8], NATIVE), "text": (WORD[:8],)}
"""Kind -> letters of a canary that tell it; a vocabulary may hold it in pieces."""
TEXT_VRS = {"AE", "AS", "CS", "DA", "DS", "DT", "IS", "LO", "LT", "PN", "SH", "ST", "TM", "UC"}
TEXT_VRS |= {"UI", "UN", "UR", "UT"}
_READ = {Tag(name) for name in (*PUBLIC_TAGS, *PIXEL_TAGS)} | {Tag(*tag) for tag in TAGS}
READ_TAGS = sorted(tag for tag in _READ if DicomDictionary[tag][0] in TEXT_VRS)
"""Tags that the product reads: each is a canary in one image, which is then refused or not."""
UNREAD_TAGS = sorted(
    tag
    for tag, (vr, *_) in DicomDictionary.items()
    if vr in TEXT_VRS and tag not in _READ and tag >> 16 > 0x0004 and tag != 0x00080005
)
"""Every other element of a text VR in the dictionary, dates and numbers included."""
SLICES = 12
"""Images among which these are dealt."""
_PATIENT = (0x00100010, 0x00100020, 0x00080050, 0x00080090, 0x00081070, 0x00080080, 0x00081010)


def spoil_header(path: Path, number: int, *, burned_in: bool = False) -> None:
    """Write canaries into a slice of all text elements, private ones, preamble and meta header."""
    data = dcmread(path)
    data.SpecificCharacterSet = "ISO_IR 192"
    data.save_as(path)
    data = dcmread(path)  # raw elements are written in the character set that was read
    for tag in {*UNREAD_TAGS[number % SLICES :: SLICES], *_PATIENT}:
        if tag not in data or tag in _PATIENT:
            data[tag] = _element(tag)
    if burned_in:
        data.BurnedInAnnotation = "YES"
    step = Dataset()
    for tag in _PATIENT:
        step[tag] = _element(tag)
    data.RequestAttributesSequence = Items([step])
    private = data.private_block(0x0009, HEADER, create=True)
    for element, vr in enumerate(("LO", "SH", "LT", "ST", "UT", "PN", "UC"), start=1):
        private.add_new(element, vr, _text(vr))
    for element, vr in enumerate(("UN", "OB"), start=16):
        private.add_new(element, vr, HEADER.encode() + b"\0")
    data.preamble = (HEADER.encode() * 12)[:128]
    data.file_meta.SourceApplicationEntityTitle = HEADER
    data.save_as(path)


def spoil_tag(path: Path, tag: int) -> None:
    """Write a canary into one element that the product reads."""
    data = dcmread(path)
    data[tag] = _element(tag)
    data.save_as(path)


def _text(vr: str) -> str:
    if vr == "PN":
        return f"{HEADER}^DOE={NATIVE}^A={HEADER}^B"
    return f"{HEADER} {NATIVE}" if vr in {"LO", "LT", "ST", "UT", "UC"} else HEADER


def _element(tag: int) -> RawDataElement:
    # raw: a date or a number that is a name has to be written as archives hold it
    vr = DicomDictionary[tag][0]
    value = encode_string(_text(vr), ["utf_8"])
    value = value[:8] if vr in {"DA", "AS"} else value
    value += b" " * (len(value) % 2)
    return RawDataElement(Tag(tag), vr, len(value), value, 0, False, True)


def spoil_settings(section: Section) -> Section:
    """Return a copy with a canary in every setting that may be any text, in parts as well.

    Those that name parts of a network are left: a model with them could not be built.
    """
    update: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            update[name] = spoil_settings(value)
        elif field.annotation is str and name != "kind":  # registered by name
            update[name] = f"https://{HEADER}.intern/{name}"
        elif field.annotation == tuple[str, ...]:
            update[name] = (f"ward7/{HEADER}",)
        elif isinstance(value, dict) and name != "backbone":
            keys, values = get_args(field.annotation)
            key = (get_args(keys) or (HEADER,))[0]
            if str in {values, *get_args(values)}:
                update[name] = {key: (NATIVE,) if get_origin(values) is tuple else NATIVE}
    if isinstance(section, ModelConfig):  # a whole model, or its parts
        update["pretrained"] = ""
    return section.model_copy(update=update)


def patterns(word: str) -> list[tuple[str, bool, tuple[bytes, ...]]]:
    """Return the forms in which a word is searched: name, whether case is folded, byte strings."""
    spelt = sorted({word, word.lower(), word.upper(), word.title()})
    folded = word.lower()
    raw = [text.encode() for text in spelt]
    shifted = {
        base64.b64encode(b"\0" * shift + data, altchars)[
            -(-8 * shift // 6) : (shift + len(data)) * 8 // 6
        ]
        for data in raw
        for shift in range(3)
        for altchars in (b"+/", b"-_")
    }
    misread = folded.encode().decode("latin-1").encode()  # UTF-8 taken for Latin-1
    escaped = {json.dumps(folded)[1:-1].encode(), folded.encode("ascii", "xmlcharrefreplace")}
    return [
        ("plain", True, (folded.encode(), misread.lower(), *sorted(escaped))),
        ("utf-16-le", True, (folded.encode("utf-16-le").lower(),)),
        ("utf-16-be", True, (folded.encode("utf-16-be").lower(),)),
        ("hex", True, tuple(data.hex().encode() for data in raw)),
        ("base64", False, tuple(sorted(shifted))),
    ]


_PATTERNS = {kind: [*chain(*map(patterns, words))] for kind, words in CANARIES.items()}
_PERCENT = re.compile(rb"(?:%[0-9A-Fa-f]{2}){4,}")


def found_in(data: bytes) -> dict[str, str]:
    """Search bytes for every canary; kind -> the form in which it was found."""
    lower, found = data.lower(), {}
    decoded = b"\n".join(map(unquote_to_bytes, _PERCENT.findall(data))).lower()
    for kind, rules in _PATTERNS.items():
        for form, folded, strings in rules:
            where = lower if folded else data
            if any(string in where for string in strings):
                found[kind] = form
            elif form == "plain" and any(string in decoded for string in strings):
                found[kind] = "url"
    return found


def contents(name: str, data: bytes, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """Return the bytes of a file, of each column of a table, and of each member of a container."""
    if data[:4] == b"PAR1" or data[:6] == b"ARROW1":
        is_parquet, source = data[:4] == b"PAR1", pa.BufferReader(data)
        table = pq.read_table(source) if is_parquet else pa.ipc.open_file(source).read_all()
        yield f"{name}:schema", f"{table.schema}{table.schema.metadata}".encode()
        for column in table.column_names:
            yield f"{name}:{column}", b"\n".join(_cells(table.column(column).to_pylist()))
        return
    yield name, data
    if depth < 4 and data[:2] == b"\x1f\x8b":
        yield from contents(f"{name}>gz", gzip.decompress(data), depth + 1)
    elif depth < 4 and zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as pack:
            for member in pack.namelist():
                yield f"{name}>{member}", member.encode()
                yield from contents(f"{name}>{member}", pack.read(member), depth + 1)


def _cells(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for item in value:
            yield from _cells(item)
    elif isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")


def search(folder: Path, allowed: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Search everything below a folder, names of files too.

    `allowed`: kind of canary -> pattern of places, such as `*/a.parquet:path` -> reason. Gives
    place and form of each of `header_leaks`, `text_leaks`, `header_kept` and `text_kept`.
    """
    found: dict[str, list[str]] = {
        f"{kind}_{end}": [] for kind in CANARIES for end in ("leaks", "kept")
    }
    for path in sorted(item for item in folder.rglob("*") if item.is_file()):
        place = path.relative_to(folder).as_posix()
        parts = [(f"{place} (name)", place.encode()), *contents(place, path.read_bytes())]
        for part, data in parts:
            for kind, form in found_in(data).items():
                may = any(fnmatch.fnmatchcase(part, pattern) for pattern in allowed[kind])
                found[f"{kind}_{'kept' if may else 'leaks'}"].append(f"{part} [{form}]")
    return found
