"""The search for canaries finds each in every encoding and container, and knows what is allowed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydicom import dcmread
from pydicom.datadict import DicomDictionary

from benchmarks.reliability.privacy import ALLOWED
from hospital.tests.support.orthanc import radiograph
from medclip_dcl.data.images import open_image
from testing.canaries import (
    HEADER,
    NATIVE,
    SLICES,
    TEXT_VRS,
    UNREAD_TAGS,
    WORD,
    found_in,
    not_found,
    search,
    spoil_header,
)


def test_every_canary_is_found_in_every_encoding_and_container() -> None:
    assert not_found() == []


def test_ordinary_text_is_no_canary() -> None:
    assert found_in(b"phi sentinel, sentinels, PHI; 50484953 %50%48%49%53 UEhJU0VO") == {}


def test_names_of_files_and_members_are_searched(tmp_path: Path) -> None:
    (tmp_path / HEADER.lower()).write_bytes(b"\0")
    (tmp_path / NATIVE).write_bytes(b"\0")
    assert len(search(tmp_path, ALLOWED)["header_leaks"]) == 2


def test_texts_may_stand_where_they_are_kept_alone(tmp_path: Path) -> None:
    for name in ("sentences/sentences.parquet", "claims/claims.parquet"):
        (tmp_path / "work" / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"text": [WORD] * 500}), tmp_path / "work" / name)
    (tmp_path / "job.log").write_text(WORD)
    found = search(tmp_path, ALLOWED)
    assert found["text_kept"] == ["work/sentences/sentences.parquet:text [plain]"]
    leaks = ["job.log [plain]", "work/claims/claims.parquet:text [plain]"]
    assert found["text_leaks"] == leaks


def test_names_of_files_may_stand_in_the_column_of_paths_alone(tmp_path: Path) -> None:
    path = tmp_path / "folder/manifest/images.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"path": [HEADER], "note": ["a"]}), path)
    assert search(tmp_path, ALLOWED)["header_leaks"] == []
    pq.write_table(pa.table({"path": ["a"], "note": [HEADER]}), path)
    leaks = ["folder/manifest/images.parquet:note [plain]"]
    assert search(tmp_path, ALLOWED)["header_leaks"] == leaks


def test_a_spoilt_image_opens_and_every_text_vr_holds_a_canary(tmp_path: Path) -> None:
    planted = set()
    for number in range(SLICES):
        path = tmp_path / f"{number}.dcm"
        path.write_bytes(radiograph(number))
        spoil_header(path, number)
        planted |= set(dcmread(path).keys())
    open_image(path)
    assert set(UNREAD_TAGS) <= planted
    assert {DicomDictionary[tag][0] for tag in UNREAD_TAGS} >= TEXT_VRS - {"UN"}
    name = dcmread(path).PatientName
    assert all(found_in(str(group).encode()) for group in (name.alphabetic, name.ideographic))
    assert found_in(str(name.phonetic).encode())
