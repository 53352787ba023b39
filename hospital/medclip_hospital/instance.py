"""Attributes that every object shares: whose it is, who made it and when; UIDs, codes and bytes.

UIDs and codes are hashes, nothing is drawn: the same answer names the same.
"""

import datetime as dt
import hashlib
import io
import unicodedata
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import pydicom.config
from pydantic import Field
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filereader import read_dataset
from pydicom.sr.coding import Code
from pydicom.tag import Tag
from pydicom.uid import UID, ExplicitVRLittleEndian

from medclip_dcl.core.settings import Section
from medclip_dcl.data.images import ImageHeader
from medclip_dcl.schemas import ClassifyAnswer, FindingAnswer, HeadAnswer, Rectangle

# As the reader of images does: identity is copied as it is, whatever its length.
pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE

NOTICE = "RESEARCH USE ONLY, not a medical device"
"""Stands in every object where a person can read it."""
NAME = "medclip-dcl"
"""Manufacturer and device of every object."""

OUT_OF_RANGE = "OUT OF RANGE: the image is unlike those that the model was trained on"
"""Warning in every object about such an image, where its findings are asked for all the same."""
NOT_ANALYSED = "NOT ANALYSED: the image is unlike those that the model was trained on"
"""What takes the place of its findings otherwise."""

SCHEME = "99MEDCLIP"
"""Designator of the private coding scheme; every object that uses it declares it."""

_NAMESPACE = uuid.UUID("6f0d1a52-7f0e-5b0a-9a3c-5d1f6c1b2e47")
_MEANING_CHARACTERS = 64
_VERSION = "2"  # of the objects; another one gives other UIDs
_SERIES = {"sr": 9001, "pr": 9002, "sc": 9003}
_DESCRIPTIONS = {
    "sr": "medclip-dcl findings (research)",
    "pr": "medclip-dcl boxes (research)",
    "sc": "medclip-dcl overlay (research)",
}
# Not copied: institution, operators, other ids, comments, request attributes, serial of the
# modality, all private tags.
_REQUIRED = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime"),
    *("StudyID", "AccessionNumber", "ReferringPhysicianName"),
)
_OPTIONAL = (
    *("SpecificCharacterSet", "IssuerOfPatientID", "PatientIdentityRemoved"),
    *("DeidentificationMethod", "DeidentificationMethodCodeSequence", "PatientAge"),
    *("LongitudinalTemporalInformationModified", "StudyDescription"),
    "IssuerOfAccessionNumberSequence",
)


Kind = Literal["sr", "pr", "sc"]
OutOfRange = Literal["refuse", "answer"]


class ResultsConfig(Section):
    """Answers as DICOM objects."""

    objects: Annotated[tuple[Kind, ...], Field(min_length=1)] = ("sr", "pr", "sc")
    """Which are made: `sr`, structured report; `pr`, presentation state of an image with a box;
    `sc`, secondary capture."""
    report_class: Literal["3d", "comprehensive"] = "3d"
    """Class of the report: `3d`, Comprehensive 3D SR, as IHE AIR asks; `comprehensive` for an
    archive that does not know that."""
    out_of_range: OutOfRange = "refuse"
    """Objects of an image unlike those that the model was trained on: `refuse`, a report and a
    capture that say that it was not analysed; `answer`, the findings with a warning."""
    heads: bool = False
    """Whether report and capture also hold what the model's heads say."""

    def refuses(self, answer: ClassifyAnswer) -> bool:
        """Whether the findings of an answer are withheld: its image is out of range."""
        return self.out_of_range == "refuse" and answer.image.is_out_of_range


@dataclass(frozen=True)
class EncodedObject:
    """A DICOM object as a file of its own."""

    kind: Kind
    sop_class_uid: str
    sop_instance_uid: str
    data: bytes  # DICOM PS3.10 file, explicit VR, little endian


@dataclass(frozen=True)
class Answered:
    """An answer and the image that it is about: everything that objects are made of."""

    header: ImageHeader
    answer: ClassifyAnswer
    answered_at: dt.datetime
    settings: ResultsConfig

    @cached_property
    def image(self) -> Dataset:
        """The cleaned header; whoever changes a value of it parses its own."""
        return self._parsed()

    @property
    def is_refused(self) -> bool:
        """Whether the objects say that the image was not analysed, and nothing of its findings."""
        return self.settings.refuses(self.answer)

    @property
    def warning(self) -> str:
        """Warning to stand before anything else in an object; empty where there is none."""
        if self.is_refused:
            return NOT_ANALYSED
        return OUT_OF_RANGE if self.answer.image.is_out_of_range else ""

    @property
    def heads(self) -> Sequence[HeadAnswer]:
        """Answers of the model's heads, where that is asked for."""
        return self.answer.heads if self.settings.heads and not self.is_refused else ()

    @property
    def made_by(self) -> tuple[str, str, str]:
        """Model, engine and precision, a line each: what another answer may come from."""
        answer = self.answer
        return (
            f"model sha256:{answer.model}",
            f"engine:{plain(answer.engine)}",
            f"precision:{plain(answer.precision)}",
        )

    def uid(self, *parts: str) -> str:
        """Make the UID of a part of this answer.

        Corrected patient data give other UIDs: an archive keeps the first of two objects under one.
        """
        questions = [f"{finding.name}\0{finding.code}" for finding in self.answer.findings]
        questions += [f"head\0{head.name}" for head in self.heads]
        questions += ["not analysed"] if self.is_refused else []
        return make_uid(
            _VERSION,
            str(self.image.SOPInstanceUID),
            hashlib.sha256(self.header.data_set).hexdigest(),
            self.header.pixel_digest,
            self.answer.model,
            self.settings.report_class,
            *questions,
            "",
            *parts,
        )

    def boxes(self) -> list[tuple[FindingAnswer, Rectangle]]:
        """Return each finding that is decided to be present with its box, where it has one."""
        present = [item for item in self.answer.findings if item.decision and item.where]
        return [(item, item.where.box) for item in present if item.where and item.where.box]

    def corners(self, box: Rectangle) -> list[tuple[float, float]]:
        """Return a box as a closed polyline of five points, clipped to the image.

        As here, DICOM counts from 0, 0 at the first pixel's corner to the last one's.

        Source: DICOM PS3.3, C.18.6 and C.10.5.
        """
        width, height = float(self.image.Columns), float(self.image.Rows)
        left, right = (min(max(x, 0.0), width) for x in (box.x, box.x + box.width))
        top, bottom = (min(max(y, 0.0), height) for y in (box.y, box.y + box.height))
        return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]

    def encode(self, made: Dataset, kind: Kind) -> EncodedObject:
        """Put into an object what all share, and write it.

        Highdicom takes the clock for InstanceCreationDate, ContributionDateTime and the like, so
        they are overwritten: the same answer is the same bytes on another day.
        """
        source = self._parsed()
        for name in _REQUIRED:
            setattr(made, name, None)
        for name in (*_REQUIRED, *_OPTIONAL, "StudyInstanceUID"):
            made.pop(Tag(name), None) if name in _OPTIONAL else None
            # Raw as it is in the image: not decoded, not encoded again, not judged.
            if name in source:
                made[Tag(name)] = source.get_item(Tag(name))
        made.SOPInstanceUID, made.InstanceNumber = self.uid(kind, "instance"), 1
        made.SeriesInstanceUID, made.SeriesNumber = self.uid(kind, "series"), _SERIES[kind]
        heading = self.warning.partition(":")[0]  # lists of series show it
        made.SeriesDescription = ": ".join(filter(None, (heading, _DESCRIPTIONS[kind])))
        made.Manufacturer = made.ManufacturerModelName = NAME
        made.DeviceSerialNumber = self.answer.model[:16]
        made.SoftwareVersions = f"objects {_VERSION}"
        made.ContentQualification = "RESEARCH"
        day, time = f"{self.answered_at:%Y%m%d}", f"{self.answered_at:%H%M%S}"
        made.InstanceCreationDate = made.ContentDate = day
        made.InstanceCreationTime = made.ContentTime = time
        for equipment in made.get("ContributingEquipmentSequence", ()):
            equipment.ContributionDateTime = day + time
        if kind == "sr":
            made.CodingSchemeIdentificationSequence = [_private_scheme()]
        elif self.image.get("BodyPartExamined") == "CHEST":
            made.BodyPartExamined = "CHEST"
        else:  # without a body part that is not paired a side is required, empty or not
            made.Laterality = self.image.get("Laterality")
        return EncodedObject(kind, made.SOPClassUID, made.SOPInstanceUID, _written(made))

    def _parsed(self) -> Dataset:
        return read_dataset(io.BytesIO(self.header.data_set), False, True)


def referenced(image: Dataset) -> Dataset:
    """Make a sequence's item that refers to an image."""
    item = Dataset()
    item.ReferencedSOPClassUID = image.SOPClassUID
    item.ReferencedSOPInstanceUID = image.SOPInstanceUID
    return item


def code_items(*code: str) -> Sequence[Dataset]:
    """Make a code sequence of value, scheme and meaning."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = code
    return [item]


def _private_scheme() -> Dataset:
    item = Dataset()
    item.CodingSchemeDesignator = SCHEME
    item.CodingSchemeName = "medclip-dcl: findings and scores, values by hash of the meaning"
    item.CodingSchemeResponsibleOrganization = NAME
    return item


def _written(made: Dataset) -> bytes:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = made.SOPClassUID
    meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = UID(make_uid("implementation"))
    meta.ImplementationVersionName = NAME.upper()
    made.file_meta, made.preamble = meta, bytes(128)
    stream = io.BytesIO()
    made.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def make_uid(*parts: str) -> str:
    """Make a UID of what it stands for: equal parts, equal UID.

    Source: DICOM PS3.5, B.2.
    """
    return f"2.25.{uuid.uuid5(_NAMESPACE, chr(0).join(parts)).int}"


def private_code(meaning: str) -> Code:
    """Make a code of `SCHEME`, whose value is a hash of its meaning."""
    meaning = plain(meaning)[:_MEANING_CHARACTERS]
    return Code(hashlib.sha256(meaning.encode()).hexdigest()[:12].upper(), SCHEME, meaning)


def finding_code(finding: FindingAnswer) -> Code:
    """Return the code of a finding's prompt file; a private one where that has none.

    Which code of a terminology fits is never guessed from a name.
    """
    if finding.code is None:
        return private_code(label_of(finding))
    return Code(finding.code.value, finding.code.scheme, plain(finding.code.meaning))


def label_of(finding: FindingAnswer | HeadAnswer) -> str:
    """Return the name of a finding or of a head as it is shown: with a capital, in ASCII."""
    name = plain(finding.name)
    return name[:1].upper() + name[1:]


def decision_of(finding: FindingAnswer | HeadAnswer) -> str:
    """Put a decision into a word or two."""
    if finding.decision is None:
        return "not decided"
    return "present" if finding.decision else "absent"


def plain(text: str) -> str:
    """Write a text in ASCII, which every character set of an image can hold."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode() or "unnamed"
