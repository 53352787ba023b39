"""DICOM bytes -> whose image it is, cleaned; and the image without that.

Runs in the decode worker (`Decoder.separate`). Rule: identity verbatim, everything else valid or
absent. An archive finds an image under its PatientID, PatientName, AccessionNumber and
StudyInstanceUID, so the bytes of these are copied as they are, too long or not. Every other value
of the list below is copied where it keeps the rules of its value representation, and left out where
it does not.
"""

import codecs
import contextlib
import datetime as dt
import hashlib
import re
import warnings
from collections.abc import Callable, MutableSequence
from typing import Any

import numpy as np
from pydicom.charset import python_encoding
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filebase import DicomBytesIO
from pydicom.filewriter import write_dataset, write_file_meta_info
from pydicom.tag import Tag
from pydicom.uid import UID, SecondaryCaptureImageStorage

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.dicom.metadata import DEFLATED, SYNTAXES
from medclip_dcl.data.dicom.reader import (
    PIXEL_TAGS,
    PUBLIC_TAGS,
    annotation_behind,
    code_string,
    drop_unusable,
    image_size,
    pixel_element,
    raw_value,
    read_elements,
    require_grey,
    require_no_text,
    whole_number,
)
from medclip_dcl.data.limits import PREAMBLE, ImagesConfig

VERBATIM = ("PatientID", "PatientName", "AccessionNumber", "StudyInstanceUID")
"""Tags that an archive finds an image under: their bytes are copied as they are."""

_UIDS = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID")
_LONGEST_IDENTITY = 1024  # bytes; archives hold names far beyond 64
_UID = re.compile(r"(?=.{1,64}$)(0|[1-9]\d*)(\.(0|[1-9]\d*))*")
_ORIENTATION = re.compile(r"[ALRPHF]{1,3}\\[ALRPHF]{1,3}")
_OLD_DATE = re.compile(r"(\d{4})\.(\d\d)\.(\d\d)")
_TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d)?(?(2)([0-5]\d|60)?)(?(3)(\.\d{1,6})?)")
_NUMBERS = re.compile(rb"[-+.\deE\\ ]*\0?")
_ASCII_SETS = ("ISO_IR 6", "ISO 2022 IR 6")
_SPELLED = re.compile(r"ISO[ _-]?(?:(2022)[ _-]?)?IR[ _-]?(\d+)", re.IGNORECASE)
_TERMS = {
    "ascii": "ISO_IR 6", "utf-8": "ISO_IR 192", "gb18030": "GB18030", "gbk": "GBK",
    "gb2312": "GBK", "tis-620": "ISO_IR 166",
    **{f"iso8859-{part}": f"ISO_IR {number}" for part, number in enumerate(
        (100, 101, 109, 110, 144, 127, 126, 138, 148), start=1
    )},
}  # fmt: skip
"""Python's name of an encoding -> DICOM's of the character set that it reads alike."""
_EXPLICIT = "1.2.840.10008.1.2.1"
_NOBODY = UID("2.25.0")  # every image has this one


def take_apart(data: bytes, settings: ImagesConfig) -> tuple[bytes, str, bytes]:
    """Take identity and pixels of an image apart.

    Returns:
        The cleaned header in explicit VR, little endian, without pixels; the SHA-256 of the pixel
        element; and a DICOM file of the pixels and what they mean, in the image's own encoding.

    ImageError, `no_identity`: a UID is missing or none; `character_set`: identity is written
    in an unknown one; or as `read_dicom` does, though the pixels are not decoded.
    """
    wanted = [Tag(name) for name in (*_COPIED, *_SEQUENCES, *PUBLIC_TAGS, *PIXEL_TAGS)]
    tags, syntax, body, at = read_elements(data, settings, wanted)
    written = {name: _raw(tags, name) for name in PIXEL_TAGS}  # what is looked at is converted
    is_burned_in = require_no_text(raw_value(tags, "BurnedInAnnotation"), settings)
    require_grey(tags)
    rows, columns = image_size(tags, settings)
    drop_unusable(tags)
    bits = whole_number(tags, "BitsAllocated", 16) or 16
    pixels = pixel_element(body, at, syntax, rows * columns * bits // 8)
    is_burned_in |= require_no_text(annotation_behind(body, at + len(pixels), syntax), settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # pydicom warns where it replaces what it cannot decode
        # First: it copies tables that nothing has converted yet.
        meaning = _pixel_meaning(tags, written)
        header = _encoded(_cleaned(tags, SYNTAXES[syntax].order), _EXPLICIT)
    if is_burned_in:
        meaning.BurnedInAnnotation = "YES"  # however it was written
    return header, hashlib.sha256(pixels).hexdigest(), _file(meaning, syntax, pixels)


def _cleaned(tags: Dataset, order: str) -> Dataset:
    cleaned = Dataset()
    for name in _UIDS:
        if not _UID.fullmatch(_ascii(_raw(tags, name))):
            raise ImageError("no_identity", f"{name} is missing or not a UID; correct the file")
    charset = _character_set(tags)
    if charset:
        cleaned.SpecificCharacterSet = charset
        tags[Tag("SpecificCharacterSet")] = cleaned["SpecificCharacterSet"]
    elif "SpecificCharacterSet" in tags:
        del tags.SpecificCharacterSet
    for name, rule in _COPIED.items():
        raw = _raw(tags, name)
        if name in VERBATIM or name in _UIDS:  # those were checked above
            if len(raw) > _LONGEST_IDENTITY:
                raise ImageError("no_identity", f"{name} exceeds {_LONGEST_IDENTITY} bytes")
            _put(cleaned, name, raw)
        elif text := _text(tags, name):
            clean = rule(text)
            if clean:
                # without raw bytes it has been looked at above, and is a code in ASCII
                _put(cleaned, name, raw if raw and clean == text else clean.encode("ascii"))
    _put_numbers(cleaned, tags)
    for name, parts in _SEQUENCES.items():
        first = _items(tags, name)[:1]
        items = [item for old in first if (item := _cleaned_item(old, parts, order))]
        if items:
            setattr(cleaned, name, items)
    if not ("DeidentificationMethod" in cleaned or "DeidentificationMethodCodeSequence" in cleaned):
        cleaned.pop("PatientIdentityRemoved", None)  # it is valid together with one of them alone
    return cleaned


def _character_set(tags: Dataset) -> list[str]:
    """Return the character sets of a data set by names that are known; none for plain ASCII.

    ImageError where the name of a set is unknown and identity is not ASCII.
    """
    value = _ascii(_raw(tags, "SpecificCharacterSet"))
    names = [_defined_term(name.strip()) for name in value.split("\\")]
    if not any(names):
        return []
    names[0] = names[0] or _ASCII_SETS[len(names) > 1]
    if all(name in python_encoding for name in names):
        return names
    values = (_raw(tags, name).rstrip(b"\0 ") for name in (*VERBATIM, "ReferringPhysicianName"))
    if not re.fullmatch(rb"[ -~]*", b"".join(values)):  # also an escape, which begins another set
        raise ImageError("character_set", "SpecificCharacterSet is unknown; correct the file")
    return []


def _defined_term(name: str) -> str:
    """Spell the name of a character set as DICOM does; unknown names stay as they are.

    Understood are what pydicom understands, `ISO IR 192` or `ISO-2022-IR-100`, and names of
    Python and IANA, `UTF-8` or `ISO-8859-1`.

    Source: DICOM PS3.3, C.12.1.1.2.
    """
    if spelled := _SPELLED.fullmatch(name):
        name = f"ISO 2022 IR {spelled[2]}" if spelled[1] else f"ISO_IR {spelled[2]}"
    if name in python_encoding:
        return name
    with contextlib.suppress(LookupError):
        return _TERMS.get(codecs.lookup(name).name, name)
    return name


def _put_numbers(header: Dataset, tags: Dataset) -> None:
    for name in ("Rows", "Columns", "BitsAllocated", "BitsStored", "PixelRepresentation"):
        value = whole_number(tags, name, None)
        if value is not None:
            setattr(header, name, value)
    for name in ("PixelSpacing", "ImagerPixelSpacing"):
        # A spacing of zero, as real images have it, makes viewers show them black.
        pair = _numbers(tags, name)
        if len(pair) == 2 and min(pair) > 0:
            setattr(header, name, [_decimal(value) for value in pair])
    # A viewer begins with the first window, so it is the one that matters.
    centre, width = _numbers(tags, "WindowCenter")[:1], _numbers(tags, "WindowWidth")[:1]
    if centre and width and width[0] >= 1:
        header.WindowCenter, header.WindowWidth = _decimal(centre[0]), _decimal(width[0])
    slope, intercept = _numbers(tags, "RescaleSlope"), _numbers(tags, "RescaleIntercept")
    if len(slope) == len(intercept) == 1 and slope[0] != 0:
        header.RescaleSlope, header.RescaleIntercept = _decimal(slope[0]), _decimal(intercept[0])


def _pixel_meaning(tags: Dataset, written: dict[str, bytes]) -> Dataset:
    """Keep what the reader looks at, and of that numbers and codes alone."""
    meaning = Dataset()
    for name in (*PUBLIC_TAGS, *PIXEL_TAGS):
        if name not in tags:
            continue
        kind = dictionary_VR(Tag(name))
        if kind == "SQ":
            tables = [_table(item) for item in _items(tags, name)[:1]]
            if all(tables):
                setattr(meaning, name, tables)
            elif name == "ModalityLUTSequence":
                raise ImageError("bad_intensities", f"{name} holds no table; correct the file")
        elif kind in {"CS", "LO"}:
            if code := code_string(tags, name):
                setattr(meaning, name, code)
        elif kind in {"DS", "IS"}:
            raw = written[name]
            if numbers := _numbers(tags, name):
                if raw and _NUMBERS.fullmatch(raw):
                    # Its digits as they are: another rounding gives other greys.
                    _put(meaning, name, raw)
                else:
                    meaning[Tag(name)] = DataElement(Tag(name), kind, [*map(_decimal, numbers)])
            elif name in tags and not _raw(tags, name).strip():
                meaning[Tag(name)] = DataElement(Tag(name), kind, [])
        elif whole_number(tags, name, None) is not None:
            meaning[Tag(name)] = DataElement(Tag(name), tags[name].VR, tags[name].value)
    return meaning


def _file(meaning: Dataset, syntax: str, pixels: bytes) -> bytes:
    plain = _EXPLICIT if syntax == DEFLATED else syntax
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = meta.ImplementationClassUID = _NOBODY
    meta.TransferSyntaxUID = UID(plain)
    stream = DicomBytesIO()
    stream.write(bytes(PREAMBLE - 4) + b"DICM")
    write_file_meta_info(stream, meta)
    return stream.getvalue() + _encoded(meaning, plain) + pixels


def _encoded(tags: Dataset, syntax: str) -> bytes:
    stream = DicomBytesIO()
    stream.is_implicit_VR = SYNTAXES[syntax].implicit
    stream.is_little_endian = SYNTAXES[syntax].order == "little"
    write_dataset(stream, tags)
    return stream.getvalue()


# Values


def _raw(tags: Dataset, name: str) -> bytes:
    element = tags.get_item(Tag(name)) if name in tags else None
    value = element.value if isinstance(element, RawDataElement) else None
    return value if isinstance(value, bytes) else b""


def _ascii(value: bytes) -> str:
    return value.rstrip(b"\0 ").decode("ascii", "replace")


def _values(tags: Dataset, name: str, kind: Callable[[Any], Any]) -> list[Any]:
    """Return the values of an element; none where it is absent, or one of them is malformed."""
    try:
        value = tags.get(name)
        many = value if isinstance(value, MutableSequence) else [value]
        return [] if value is None else [kind(item) for item in many]
    except Exception:  # noqa: BLE001 (pydicom raises anything on a malformed value: it is absent)
        return []


def _text(tags: Dataset, name: str) -> str:
    """Decode a text; empty where it cannot be decoded."""
    return "\\".join(_values(tags, name, str))


def _numbers(tags: Dataset, name: str) -> list[float]:
    """Return the numbers of an element; none where one of them is not a finite number."""
    numbers = _values(tags, name, float)
    return numbers if np.isfinite(numbers).all() else []


def _items(tags: Dataset, name: str) -> list[Dataset]:
    return [item for item in _values(tags, name, lambda item: item) if isinstance(item, Dataset)]


def _decimal(value: float) -> str:
    """Write a number as a decimal string, which has 16 characters at most."""
    return next(text for digits in range(16, 0, -1) if len(text := f"{value:.{digits}g}") <= 16)


def _put(header: Dataset, name: str, raw: bytes) -> None:
    # A raw element is written as it is: neither checked, nor decoded and encoded again.
    tag = Tag(name)
    raw = raw.rstrip(b"\0 ") if name.endswith("UID") else raw
    raw += (b"\0" if name.endswith("UID") else b" ") * (len(raw) % 2)
    header[tag] = RawDataElement(tag, dictionary_VR(tag), len(raw), raw, 0, False, True)


def _table(old: Dataset) -> Dataset:
    """Keep descriptor and data of a lookup table, as they are written; empty where one lacks."""
    item = Dataset()
    if "LUTDescriptor" in old and "LUTData" in old:
        for name in ("LUTDescriptor", "LUTData"):
            item[Tag(name)] = old.get_item(Tag(name))
    return item


def _cleaned_item(old: Dataset, parts: "dict[str, _Rule]", order: str) -> Dataset | None:
    """Keep the parts of a sequence's item; None where one that it needs is missing."""
    item = Dataset()
    for name, rule in parts.items():
        if name == "LUTDescriptor":
            descriptor = [int(value) for value in _numbers(old, name)]
            if len(descriptor) != 3:
                return None
            kind = "SS" if descriptor[1] < 0 else "US"
            item.add_new(Tag(name), kind, descriptor)
        elif name == "LUTData":
            table = _lut(old, order)
            if not table:
                return None
            item.add_new(Tag(name), "OW", table)
        elif clean := rule(_text(old, name)):
            setattr(item, name, clean)
        elif name in {"CodeValue", "CodingSchemeDesignator", "CodeMeaning", "ModalityLUTType"}:
            return None
    return item if len(item) else None


def _lut(item: Dataset, order: str) -> bytes:
    """Return a table as words, little endian; `order`: that of the data set, which bytes are in."""
    stored = "<u2" if order == "little" else ">u2"
    try:
        value = item.LUTData
        words = np.frombuffer(value, stored) if isinstance(value, bytes) else np.array(value)
        return np.atleast_1d(words).astype("<u2").tobytes()
    except Exception:  # noqa: BLE001 (as above)
        return b""


_Rule = Callable[[str], str | None]


def _line(limit: int, *, many: bool = False) -> _Rule:
    def rule(text: str) -> str | None:
        parts = text.split("\\") if many else [text]
        fits = all(len(part) <= limit and part.isprintable() for part in parts)
        return text if fits and (many or "\\" not in text) else None

    return rule


def _one_of(*codes: str) -> _Rule:
    return lambda text: text if text in codes else None


def _like(pattern: str | re.Pattern[str]) -> _Rule:
    return lambda text: text if re.fullmatch(pattern, text) else None


def _date(text: str) -> str | None:
    """Bring a date of ACR-NEMA's form, `2004.08.26`, to DICOM's; None where the day never was."""
    text = _OLD_DATE.sub(r"\1\2\3", text)
    try:
        dt.datetime.strptime(text, "%Y%m%d")  # noqa: DTZ007 (a day alone)
    except ValueError:
        return None
    return text if len(text) == 8 else None


def _time(text: str) -> str | None:
    text = text.replace(":", "")  # ACR-NEMA's form, `10:22:33`
    return text if _TIME.fullmatch(text) else None


def _person(text: str) -> str | None:
    groups = text.split("=")
    fits = all(len(group) <= 64 and group.count("^") <= 4 for group in groups)
    return text if len(groups) <= 3 and fits and text.isprintable() and "\\" not in text else None


_CODE = r"[A-Z0-9 _]{1,16}"
_COPIED: dict[str, _Rule] = {
    "SpecificCharacterSet": lambda _: None,  # put first, above
    **dict.fromkeys(VERBATIM, str),
    "IssuerOfPatientID": _line(64),
    "PatientBirthDate": _date,
    "PatientSex": _one_of("M", "F", "O"),
    "PatientIdentityRemoved": _one_of("YES", "NO"),
    "DeidentificationMethod": _line(64, many=True),
    "LongitudinalTemporalInformationModified": _one_of("UNMODIFIED", "MODIFIED", "REMOVED"),
    "StudyDate": _date,
    "StudyTime": _time,
    "StudyID": _line(16),
    "StudyDescription": _line(64),
    "ReferringPhysicianName": _person,
    "PatientAge": _like(r"\d{3}[DWMY]"),
    **dict.fromkeys(_UIDS, str),
    "FrameOfReferenceUID": _like(_UID),
    "Laterality": _one_of("R", "L"),
    "PatientOrientation": _like(_ORIENTATION),
    "BodyPartExamined": _like(_CODE),
    "Modality": _like(_CODE),
    "ViewPosition": _like(_CODE),
    "PresentationIntentType": _like(_CODE),
    "PhotometricInterpretation": _like(_CODE),
    "RescaleType": _like(_CODE),
    "VOILUTFunction": _one_of("LINEAR", "LINEAR_EXACT", "SIGMOID"),
}
"""Tags that are copied, with what makes a value valid; numbers are in `_put_numbers`."""

_CODED: dict[str, _Rule] = {
    "CodeValue": _line(16),
    "CodingSchemeDesignator": _line(16),
    "CodingSchemeVersion": _line(16),
    "CodeMeaning": _line(64),
}
_LUT: dict[str, _Rule] = {"LUTDescriptor": str, "LUTData": str}
_SEQUENCES: dict[str, dict[str, _Rule]] = {
    "ProcedureCodeSequence": _CODED,
    "DeidentificationMethodCodeSequence": _CODED,
    "IssuerOfAccessionNumberSequence": {
        "LocalNamespaceEntityID": _line(64),
        "UniversalEntityID": _line(64),
        "UniversalEntityIDType": _like(_CODE),
    },
    "ModalityLUTSequence": {**_LUT, "ModalityLUTType": _like(_CODE)},
    "VOILUTSequence": _LUT,
}
"""Sequences of which the first item is copied, and the parts of it."""
