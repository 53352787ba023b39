"""Readers: what their inputs depend on, a folder of DICOM, and what the page of inputs says."""

import re
from pathlib import Path

import pytest
import yaml

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.plugins import SOURCES
from medclip_dcl.data import records
from medclip_dcl.data.dicom import metadata
from medclip_dcl.data.records import BoxTable, ImageRecord, RawStudies, Source, Study
from medclip_dcl.data.source_settings import SourceConfig, find_file
from medclip_dcl.data.sources.boxes import MS_CXR_COLUMNS
from medclip_dcl.data.sources.readers import hash_patient, read_dicom_folder
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.house.tree import ROOT
from tests.support.dicom import dicom_bytes, ramp


def test_inputs_change_with_each_table_file_and_card(tmp_path: Path) -> None:
    table, report = tmp_path / "table.csv", tmp_path / "s1.txt"
    for file in (table, report):
        file.write_text("a")

    def inputs(**more: object) -> dict[str, str]:
        more |= {"studies": [Study("s1", "p1", "s1.txt")], "tables": {"table": table}}
        raw = RawStudies(tmp_path, [ImageRecord("a", "s1", "p1", "PA", "a.png")], **more)
        return Source(raw, BoxTable([], set(), 0)).inputs

    assert set(inputs()) == {"table", "files"}
    assert set(inputs(card={"name": "owner/set"})) == {"table", "files", "card"}
    for file, changed in ((report, "files"), (tmp_path / "a.png", "files"), (table, "table")):
        before = inputs()
        file.write_text(f"another {file.name}")
        assert {name for name, digest in inputs().items() if digest != before[name]} == {changed}


def truth(root: Path, table: str) -> dict[str, frozenset[str]] | None:
    (root / records.TRUTH).parent.mkdir()
    (root / records.TRUTH).write_text(table)
    return records.read_truth(root)


def test_images_have_the_types_of_their_findings_and_a_real_source_has_no_truth(tmp_path):
    assert records.read_truth(tmp_path) is None
    assert records.truth_digests(tmp_path) == {}
    found = truth(tmp_path, 'dicom_id,types\ni,"[""effusion"", ""edema""]"\nj,[]\n')
    assert found == {"i": {"effusion", "edema"}, "j": frozenset()}
    assert [*records.truth_digests(tmp_path)] == ["images.csv"]


@pytest.mark.parametrize("table", ["dicom_id\ni\n", "dicom_id,types\ni,[\n"])
def test_a_damaged_truth_is_refused(tmp_path, table):
    with pytest.raises(StudyError, match="damaged"):
        truth(tmp_path, table)


SETTINGS = SourceConfig(kind="dicom")


def image(number: int, **tags: str) -> bytes:
    ids = {"SOPInstanceUID": f"1.5.{number}", "StudyInstanceUID": "1.4", "PatientID": "MRN7"}
    return dicom_bytes(ramp(), **(ids | tags))


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_every_file_is_an_image_or_has_a_reason(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a/IM0001": image(1),
            "a/IM0002.dcm": image(2, ViewPosition="LL"),
            "b/IM0004": image(4, PatientID=""),
            "b/IM0005": image(5, Modality="CT"),
            "b/IM0005.sr": image(8, Modality="SR", PatientID=""),
            "b/IM0006": image(6)[:300],
            "b/readme.txt": b"not an image",
            "DICOMDIR": image(7, SOPClassUID="1.2.840.10008.1.3.10"),
        },
    )
    (tmp_path / "link").symlink_to(tmp_path / "a/IM0001")
    raw = read_dicom_folder(tmp_path, SETTINGS, Path)
    assert [(item.image_id, item.study_id, item.view, item.path) for item in raw.images] == [
        ("1.5.1", "1.4", "PA", "a/IM0001"),
        ("1.5.2", "1.4", "LL", "a/IM0002.dcm"),
    ]
    assert [tuple(item) for item in raw.rejects] == [
        ("1.5.4", "no_subject"),
        ("1.5.5", "modality"),
        ("1.5.8", "modality"),
        ("file-000006", "bad_header"),
        ("file-000007", "not_dicom"),
    ]
    assert not raw.has_reports


def test_patients_are_named_by_a_keyed_hash_alone(tmp_path: Path) -> None:
    write(tmp_path, {"one": image(1), "two": image(2), "other": image(3, PatientID="MRN8")})
    key = tmp_path.with_suffix(".key")
    key.write_bytes(b"secret")
    settings = SETTINGS.model_copy(update={"patient_key": str(key)})
    raw = read_dicom_folder(tmp_path, settings, Path)
    subjects = {item.image_id: item.subject_id for item in raw.images}
    assert subjects["1.5.1"] == subjects["1.5.2"] == hash_patient(b"MRN7", b"secret")
    assert subjects["1.5.3"] != subjects["1.5.1"]
    assert hash_patient(b"MRN7", b"") != hash_patient(b"MRN7", b"secret")
    assert "MRN" not in repr(raw)


# --- Settings

INPUTS = yaml.safe_load((ROOT / "docs/inputs.yaml").read_text(encoding="utf-8"))


def names_of(kind: str, file: str) -> set[str]:
    """What stands in code type in the description of one input."""
    (row,) = (row for row in INPUTS if row["kind"] == kind and file in row["file"])
    return set(re.findall(r"`([^`]+)`", row["read"]))


def test_the_page_names_every_kind_of_source_and_every_column_and_tag_that_readers_require():
    kinds = set(SOURCES.own)
    assert {row["kind"] for row in INPUTS} == kinds | {"any", "dicomweb"}  # one of hospital/
    assert all(callable(SOURCES[kind]) for kind in kinds)
    assert names_of("mimic_cxr", "chexpert") == {"study_id", *LABELS}
    assert names_of("dicom", "any file") == {*metadata.TAGS.values()}
    assert names_of("any", "source.boxes") == {*MS_CXR_COLUMNS.values(), "path"}


def test_a_missing_table_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"looked for studies.csv and {tmp_path}/studies.csv;"):
        find_file("table", "studies.csv", tmp_path, Path)
    with pytest.raises(StudyError, match=r"labels names no file.*root is not a folder: .*/nowhere"):
        find_file("labels", "l.csv", tmp_path / "nowhere", Path)
