"""Planted faults: as many as asked, where the fault list says, and what it says."""

import csv
import gzip
import io
from collections import Counter
from pathlib import Path

import pydicom
import pytest

from medclip_dcl.artifact import Artifact, read_artifact_header
from medclip_synthetic import tree
from medclip_synthetic.settings import GenerateConfig
from testing.faults import FAULTS, Planted, read_fault_list, write_spoilt_tree

SETTINGS = GenerateConfig(patients=36, size_px=64)
RELEASE = "mimic-cxr-2.0.0-{}.csv.gz"


def write(path: Path) -> Artifact:
    return write_spoilt_tree(path, SETTINGS, 1, 1)


def rows(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return list(csv.DictReader(io.StringIO(text.decode())))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("faults") / "studies").path


@pytest.fixture(scope="module")
def planted(root: Path) -> dict[str, Planted]:
    return {item.fault: item for item in read_fault_list(root)}


def image(root: Path, item: Planted, image_id: str = "") -> Path:
    paths = {row["dicom_id"]: row["path"] for row in rows(root / "cxr-record-list.csv.gz")}
    return root / paths[image_id or item.image_id]


def report(root: Path, item: Planted) -> Path:
    (path,) = root.glob(f"files/*/p{item.subject_id}/s{item.study_id}.txt") or (None,)
    return path


def test_the_ledger_names_every_kind_once_and_no_patient_twice(root: Path) -> None:
    planted_faults = read_fault_list(root)
    assert Counter(item.fault for item in planted_faults) == dict.fromkeys(FAULTS, 1)
    assert len({item.subject_id for item in planted_faults}) == len(FAULTS)


def test_images_are_spoilt_as_the_ledger_says(root: Path, planted: dict[str, Planted]) -> None:
    assert not image(root, planted["missing_image"]).exists()
    assert image(root, planted["pointer_image"]).read_bytes().startswith(b"version https://git-lfs")
    assert image(root, planted["page_for_image"]).read_bytes().startswith(b"<!DOCTYPE html>")
    constant = pydicom.dcmread(image(root, planted["constant_image"]))
    assert len(set(constant.pixel_array.ravel().tolist())) == 1
    assert pydicom.dcmread(image(root, planted["burned_in_image"])).BurnedInAnnotation == "YES"
    header = pydicom.dcmread(image(root, planted["truncated_image"]), stop_before_pixels=True)
    assert image(root, planted["truncated_image"]).stat().st_size < 2 * header.Rows * header.Columns


def test_reports_are_spoilt_as_the_ledger_says(root: Path, planted: dict[str, Planted]) -> None:
    assert not list(root.glob(f"files/*/*/s{planted['missing_report'].study_id}.txt"))
    assert report(root, planted["pointer_report"]).read_bytes().startswith(b"version https://")
    assert report(root, planted["empty_report"]).read_text().split("FINDINGS:")[1].split() == [
        "IMPRESSION:"
    ]
    assert "FINAL REPORT" in report(root, planted["foreign_report"]).read_bytes().decode("utf-16")


def test_a_copied_study_shows_and_says_the_same_under_its_own_ids(
    root: Path, planted: dict[str, Planted]
) -> None:
    item = planted["copied_study"]
    copy, source = (
        pydicom.dcmread(image(root, item, name)) for name in (item.image_id, item.other)
    )
    assert copy.PatientID == item.subject_id != source.PatientID
    assert copy.PhotometricInterpretation != source.PhotometricInterpretation
    top = 2**source.BitsStored - 1
    assert (copy.pixel_array == top - source.pixel_array).all()
    donor = next(root.glob(f"files/*/p{source.PatientID}/s*.txt"))
    assert report(root, item).read_bytes() == donor.read_bytes()


def test_views_are_wrong_in_the_table_and_in_the_file(
    root: Path, planted: dict[str, Planted]
) -> None:
    views = {
        row["dicom_id"]: row["ViewPosition"] for row in rows(root / RELEASE.format("metadata"))
    }
    for fault, view in (("lateral_view", "LATERAL"), ("blank_view", "")):
        item = planted[fault]
        assert views[item.image_id] == view
        assert pydicom.dcmread(image(root, item)).ViewPosition == view


def test_tables_are_wrong_as_the_ledger_says(root: Path, planted: dict[str, Planted]) -> None:
    listed = Counter(row["dicom_id"] for row in rows(root / RELEASE.format("metadata")))
    repeated = [name for name, count in listed.items() if count > 1]
    assert repeated == [planted["repeated_row"].image_id]
    splits: dict[str, set[str]] = {}
    for row in rows(root / RELEASE.format("split")):
        splits.setdefault(row["subject_id"], set()).add(row["split"])
    both = [subject for subject, found in splits.items() if len(found) > 1]
    assert both == [planted["wrong_split"].subject_id]
    boxed = {row["path"].split("/")[2][1:] for row in rows(root / tree.BOX_TABLE)}
    assert [who for who in boxed if "train" in splits[who]] == [planted["trained_box"].subject_id]


def test_the_same_faults_are_planted_after_a_kill(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tree, "release_tables", _killed)  # all images are drawn, all faults planted
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "studies")
    assert write(tmp_path / "studies").digest == read_artifact_header(root).digest


def _killed(*_: object) -> None:
    raise KeyboardInterrupt
