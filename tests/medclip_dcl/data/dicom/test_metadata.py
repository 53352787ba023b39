"""Headers: six values of any transfer syntax, and nothing else; hostile bytes end at once."""

from pathlib import Path

import pytest
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence

from medclip_dcl.data.dicom.metadata import Header, read_header, read_instance_uid
from tests.support.dicom import COMPUTED_RADIOGRAPHY, dicom_bytes, ramp

IDS = {"SOPInstanceUID": "1.2.3", "StudyInstanceUID": "1.2", "PatientID": "MRN 7"}
EXPECTED = Header("1.2.3", "1.2", b"MRN 7", "PA", "CR", COMPUTED_RADIOGRAPHY)


def read(tmp_path: Path, data: bytes) -> Header | None:
    (tmp_path / "image").write_bytes(data)
    return read_header(tmp_path / "image")


@pytest.mark.parametrize(
    "syntax", ["1.2.840.10008.1.2", *(f"1.2.840.10008.1.2.{tail}" for tail in ("1", "1.99", "2"))]
)
def test_values_are_read_in_every_encoding(tmp_path: Path, syntax: str) -> None:
    assert read(tmp_path, dicom_bytes(ramp(), syntax=syntax, **IDS)) == EXPECTED


@pytest.mark.parametrize("undefined", [True, False])
def test_values_inside_sequences_are_stepped_over(tmp_path: Path, undefined: bool) -> None:
    inner, outer = Dataset(), Dataset()
    inner.SOPInstanceUID, inner.PatientID, inner.ViewPosition = "9.9", "OTHER", "LL"
    outer.ReferencedSOPSequence = Sequence([inner])
    outer["ReferencedSOPSequence"].is_undefined_length = undefined
    for item in (inner, outer):
        item.is_undefined_length_sequence_item = undefined
    sequences = {"ReferencedStudySequence": Sequence([outer, outer])}
    assert read(tmp_path, dicom_bytes(ramp(), **IDS, **sequences)) == EXPECTED


def test_a_private_sequence_of_an_unknown_kind_is_in_implicit_vr_and_stepped_over(tmp_path):
    # PS3.5, 6.2.2: a sequence of undefined length whose VR a writer did not know
    private = b"\x09\x00\x10\x10UN\x00\x00\xff\xff\xff\xff" + b"\xfe\xff\x00\xe0\xff\xff\xff\xff"
    private += b"\x08\x00\x18\x00\x04\x00\x00\x009.9\x00" + b"\xfe\xff\x0d\xe0\0\0\0\0"
    private += b"\xfe\xff\xdd\xe0\0\0\0\0"
    sound = dicom_bytes(ramp(), **IDS)
    at = sound.index(b"\x10\x00\x20\x00LO")
    assert read(tmp_path, sound[:at] + private + sound[at:]) == EXPECTED


def test_the_uid_of_the_data_set_is_read_whatever_follows_it(tmp_path: Path) -> None:
    sound = dicom_bytes(ramp(), **(IDS | {"StudyInstanceUID": ""}))
    (tmp_path / "image").write_bytes(sound[: sound.index(b"\x08\x00\x60\x00CS") + 8])
    assert read_instance_uid(tmp_path / "image") == "1.2.3"
    for noise in (b"noise", bytes(128) + b"DICM" + b"noise", b""):
        (tmp_path / "image").write_bytes(noise)
        assert read_instance_uid(tmp_path / "image") == ""


def test_malformed_values_are_blank_and_an_image_without_ids_is_none(tmp_path):
    sound = dicom_bytes(ramp(), **(IDS | {"PatientID": ""}))
    header = read(tmp_path, sound.replace(b"CS\x02\0PA", b"CS\x02\0x^"))
    assert (header.patient, header.view) == (b"", "")
    sound = dicom_bytes(ramp(), **IDS)
    assert read(tmp_path, dicom_bytes(ramp(), SOPInstanceUID="1.2")) is None
    assert read(tmp_path, sound.replace(b"UI\x04\x001.2\0", b"UI\x04\0DOE\0")) is None


def test_hostile_bytes_are_none_and_every_cut_ends_in_a_header_or_none(tmp_path):
    sound = dicom_bytes(ramp(), **IDS)
    start = sound[:300]
    cases = [
        b"",
        b"DICM",
        b"\0" * 128 + b"DICM",
        start,
        sound[:132] + b"\x08\x00\x05\x00SQ\0\0\xff\xff\xff\xff" * 10_000,
        sound[:132] + b"\x08\x00\x05\x00LO\x00\x00" * 100_000,
        sound[:132] + b"\xfe\xff\x0d\xe0\0\0\0\0" * 100_000,
        sound[:132] + b"\x08\x00\x05\x00UT\0\0\xfe\xff\xff\xff",
    ]
    assert [read(tmp_path, data) for data in cases] == [None] * len(cases)
    sound = dicom_bytes(ramp(4, 4), **IDS)
    for cut in range(0, len(sound), 7):
        read(tmp_path, sound[:cut])
        flipped = bytearray(sound)
        flipped[cut] ^= 0xFF
        read(tmp_path, bytes(flipped))
