"""Readers: what their inputs depend on, where images lie; a folder of DICOM, by its headers."""

from pathlib import Path

import pytest

from medclip_dcl.data.records import BoxTable, ImageRecord, RawStudies, Source, Study
from medclip_dcl.data.selection import select
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.readers import hash_patient, images_root, read_dicom_folder
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


@pytest.mark.parametrize(("kind", "folder"), [("huggingface", "/out/rows"), ("table", "/data")])
def test_images_are_read_where_they_are_unless_rows_were_written_out(kind, folder) -> None:
    settings = SourceConfig(root="/data", kind=kind)
    found = images_root(settings, lambda text: Path(text.replace("${WORK}", "/out")))
    assert found == Path(folder)


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
            "b/IM0003": image(3, ViewPosition=""),
            "b/IM0004": image(4, PatientID=""),
            "b/IM0005": image(5, Modality="CT"),
            "b/IM0005.sr": image(8, Modality="SR", PatientID=""),
            "b/IM0006": image(6)[:300],
            "b/readme.txt": b"not an image",
            "c/again": image(1),
            "DICOMDIR": image(7, SOPClassUID="1.2.840.10008.1.3.10"),
        },
    )
    (tmp_path / "link").symlink_to(tmp_path / "a/IM0001")
    found = select(read_dicom_folder(tmp_path, SETTINGS, Path), SETTINGS)
    (kept,) = found.images
    assert (kept.image_id, kept.study_id, kept.path) == ("1.5.1", "1.4", "a/IM0001")
    assert {tuple(item) for item in found.rejects} == {
        ("1.5.2", "lateral"),
        ("1.5.3", "no_view"),
        ("1.5.4", "no_subject"),
        ("1.5.5", "modality"),
        ("1.5.8", "modality"),
        ("file-000007", "bad_header"),
        ("file-000008", "not_dicom"),
        ("1.5.1", "duplicate_id"),
    }
    assert (found.candidates, found.lost) == (4, 3)
    assert found.texts == {}


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
