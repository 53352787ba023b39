"""Radiographs of patients who do not exist, headers as archives hold them, and an answer."""

import datetime as dt
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pydicom

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.images import Decoder
from medclip_dcl.schemas import (
    ClassifyAnswer,
    Code,
    FindingAnswer,
    ImageFacts,
    Location,
    Point,
    Rectangle,
)
from medclip_hospital.instance import EncodedObject, ResultsConfig
from medclip_hospital.results import encode_results
from tests.support.dicom import dicom_bytes, ramp

ALL_OBJECTS = ResultsConfig()
ANSWERED_AT = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)
CLEAN: dict[str, Any] = {
    "SpecificCharacterSet": "ISO_IR 100",
    "PatientID": "P1",
    "PatientName": "Muster^Max",
    "PatientBirthDate": "19400305",
    "PatientSex": "M",
    "PatientAge": "084Y",
    "AccessionNumber": "A1",
    "StudyID": "S1",
    "StudyDate": "20240826",
    "StudyTime": "102233",
    "StudyDescription": "CHEST",
    "ReferringPhysicianName": "Doe^Jane",
    "StudyInstanceUID": "1.2.3.4",
    "SeriesInstanceUID": "1.2.3.5",
    "SOPInstanceUID": "1.2.3.6",
    "FrameOfReferenceUID": "1.2.3.7",
    "PatientOrientation": ["L", "F"],
}
"""A header without a fault."""


def radiograph(
    pixels: np.ndarray | None = None, photometric: str = "MONOCHROME2", **changes: Any
) -> bytes:
    """A DICOM radiograph with the clean header, changed; a tag that is set to `...` is left out."""
    tags = {name: value for name, value in (CLEAN | changes).items() if value is not ...}
    charset = tags.get("SpecificCharacterSet")
    wild = isinstance(charset, str) and charset not in pydicom.charset.python_encoding
    if wild:  # pydicom would not write it
        tags["SpecificCharacterSet"] = "ISO_IR 101"
        assert len(charset) == len("ISO_IR 101")
    missing = [name for name, value in changes.items() if value is ... and name not in tags]
    data = dicom_bytes(ramp(96, 64) if pixels is None else pixels, photometric=photometric, **tags)
    if "SOPInstanceUID" in missing:  # `dicom_bytes` gives every file one
        data = data.replace(b"\x08\x00\x18\x00UI", b"\x08\x00\x19\x00UI", 1)
    return data.replace(b"ISO_IR 101", charset.encode()) if wild else data


def answer_of(
    height_px: int,
    width_px: int,
    present: tuple[str, ...] = ("effusion", "pneumonia"),
    flags: Sequence[str] = (),
) -> ClassifyAnswer:
    """An answer on four findings; what is present has a box that leaves the image on the right."""
    grid = np.zeros((4, 4))
    grid[2, 1] = 0.5
    where = Location(
        affine=(width_px / 4, 0, width_px / 8, 0, height_px / 4, height_px / 8),
        peak=Point(x=1.5 * width_px / 4, y=2.5 * height_px / 4, score=0.5),
        threshold=0.25,
        box=Rectangle(x=width_px / 4, y=height_px / 2, width=width_px, height=height_px / 4),
    )
    coded = {"effusion": Code(value="60046008", scheme="SCT", meaning="Pleural effusion")}
    probabilities = {"effusion": 0.83, "edema": 0.08}
    return ClassifyAnswer(
        model="ab" * 32,
        image=ImageFacts(width_px=width_px, height_px=height_px, source="dicom", flags=[*flags]),
        findings=[
            FindingAnswer(
                name=name,
                score=0.61,
                margin=0.1,
                decision=name in present,
                probability=probabilities.get(name),
                probability_note="" if name in probabilities else "no calibration was fitted",
                heatmap=grid.tolist(),
                where=where if name != "edema" else where.model_copy(update={"box": None}),
                code=coded.get(name),
            )
            for name in ("effusion", "pneumonia", "edema", "cardiomegaly")
        ],
        engine="openvino",
        precision="bfloat16",
    )


def results_of(
    data: bytes,
    decoder: Decoder,
    answer: ClassifyAnswer | None = None,
    answered_at: dt.datetime = ANSWERED_AT,
    settings: ResultsConfig = ALL_OBJECTS,
) -> tuple[EncodedObject, ...]:
    """The objects of a file, by the fixed answer."""
    picture = decoder.open(data)
    answer = answer or answer_of(*picture.pixels.shape)
    return encode_results(decoder.separate(data).header, answer, picture, answered_at, settings)


@dataclass(frozen=True)
class DirtyHeader:
    """A fault of a header, and what comes of it: a refusal, or values in the objects."""

    changes: Mapping[str, Any]
    refused: str = ""
    values: Mapping[str, str | None] = field(default_factory=dict)  # None: the tag is not there


def _read_as(name: str, value: Any, read: str | None = "") -> DirtyHeader:
    return DirtyHeader({name: value}, values={name: read})


def _refused(name: str, value: Any = ..., code: str = "no_identity") -> DirtyHeader:
    return DirtyHeader({name: value}, code)


_DEIDENTIFIED = {
    "PatientIdentityRemoved": "YES",
    "DeidentificationMethod": "dates shifted",
    "LongitudinalTemporalInformationModified": "MODIFIED",
}
_JAPANESE = {"PatientName": "Yamada^Tarou=山田^太郎=やまだ^たろう"}
DIRTY_HEADERS: dict[str, DirtyHeader] = {
    "impossible date": _read_as("StudyDate", "20041350"),
    "time with colons": _read_as("StudyTime", "10:22:33", "102233"),
    "hour 25": _read_as("StudyTime", "250000"),
    "birth date with dashes": _read_as("PatientBirthDate", "1940-03-05"),
    "unknown character set": _read_as("SpecificCharacterSet", "ISO_IR 999", None),
    "misspelt character set": _read_as("SpecificCharacterSet", "ISO-IR 100", "ISO_IR 100"),
    "no study UID": _refused("StudyInstanceUID"),
    "no series UID": _refused("SeriesInstanceUID"),
    "no SOP UID": _refused("SOPInstanceUID"),
    "no rows": _refused("Rows", None, "bad_tags"),
    "orientation of unknown letters": _read_as("PatientOrientation", ["X", "Q"]),
    "date of ACR-NEMA": _read_as("StudyDate", "2004.08.26", "20040826"),
    "accession number of 40": _read_as("AccessionNumber", 40 * "7", 40 * "7"),
    "description of 200": _read_as("StudyDescription", 200 * "D", None),
    "name of 200": _read_as("PatientName", 200 * "N", 200 * "N"),
    "name of six carets": _read_as("PatientName", "A^B^C^D^E^F^G", "A^B^C^D^E^F^G"),
    "name in three scripts": DirtyHeader(
        {"SpecificCharacterSet": ["", "ISO 2022 IR 87"], **_JAPANESE}, values=_JAPANESE
    ),
    "letters in a UID": _refused("StudyInstanceUID", "1.2.x.4"),
    "leading zero in a UID": _refused("SeriesInstanceUID", "1.02.3"),
    "empty study UID": _refused("StudyInstanceUID", ""),
    "laterality B": _read_as("Laterality", "B"),
    "empty frame of reference": _read_as("FrameOfReferenceUID", "", None),
    "no patient id": _read_as("PatientID", ...),
    "no name": _read_as("PatientName", ...),
    "no sex": _read_as("PatientSex", ...),
    "no birth date": _read_as("PatientBirthDate", ...),
    "no accession number": _read_as("AccessionNumber", ...),
    "no study id": _read_as("StudyID", ...),
    "no dates": DirtyHeader(
        {"StudyDate": ..., "StudyTime": ...}, values={"StudyDate": "", "StudyTime": ""}
    ),
    "sex X": _read_as("PatientSex", "X"),
    "age 45": _read_as("PatientAge", "45", None),
    "one-valued orientation": _read_as("PatientOrientation", ["L"]),
    "deidentified": DirtyHeader(
        _DEIDENTIFIED, values=_DEIDENTIFIED | {"ContentQualification": "RESEARCH"}
    ),
}
"""Headers as archives hold them; highdicom raises on eleven of them, and copies ten as they are."""


def as_expected(dirty: DirtyHeader, decoder: Decoder, settings: ResultsConfig) -> bool:
    """Whether a dirty header came to what it should."""
    try:
        made = results_of(radiograph(**dirty.changes), decoder, settings=settings)
    except ImageError as error:
        return error.code == dirty.refused
    capture_alone = {"PatientOrientation", "Laterality"}
    return not dirty.refused and all(
        _text(item, name) == value
        for item in map(read, made)
        for name, value in dirty.values.items()
        if name not in capture_alone or item.Modality == "OT"
    )


def read(item: EncodedObject) -> pydicom.Dataset:
    """An encoded object as pydicom reads it, which must find it whole."""
    return pydicom.dcmread(io.BytesIO(item.data))


def _text(item: pydicom.Dataset, name: str) -> str | None:
    if name not in item:
        return None
    with warnings.catch_warnings(action="ignore"):  # what is verbatim may be too long
        value = item[name].value
    return "" if value is None else str(value)
