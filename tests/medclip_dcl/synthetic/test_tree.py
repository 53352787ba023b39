import csv
import gzip
import io
import json
import re
from pathlib import Path

import pydicom
import pytest

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.synthetic import GenerateConfig, tree
from medclip_dcl.synthetic.patients import draw_patient
from medclip_dcl.synthetic.reports import FINE_FINDINGS, gallery_sentence

SETTINGS = GenerateConfig(patients=100, size_px=64)


def write(path: Path, settings: GenerateConfig = SETTINGS, workers: int = 1) -> Artifact:
    fingerprint = make_fingerprint(tree.ARTIFACT, {"generate": settings}, {"seed": "1"})
    with write_artifact(path, tree.ARTIFACT, fingerprint) as writer:
        return writer.commit(tree.write_tree(writer, 1, settings, workers))


def rows(path: Path) -> list[dict[str, str]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return list(csv.DictReader(io.StringIO(text.decode())))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("tree") / "studies").path


def table(root: Path, name: str) -> list[dict[str, str]]:
    return rows(root / f"mimic-cxr-2.0.0-{name}.csv.gz")


def test_paths_are_those_of_the_release(root: Path) -> None:
    hexes = "-".join(["[0-9a-f]{8}"] * 5)
    shape = re.compile(rf"files/p(1\d)/p\1\d{{6}}/s5\d{{7}}(/{hexes}\.dcm|\.txt)")
    names = [item.relative_to(root).as_posix() for item in root.glob("files/**/*.*")]
    assert len(names) > 150
    assert all(shape.fullmatch(name) for name in names)
    listed = {row["path"] for row in rows(root / "cxr-record-list.csv.gz")}
    assert listed | {row["path"] for row in rows(root / "cxr-study-list.csv.gz")} == set(names)


def test_metadata_describes_the_files(root: Path) -> None:
    paths = {row["dicom_id"]: row["path"] for row in rows(root / "cxr-record-list.csv.gz")}
    metadata = table(root, "metadata")
    assert {row["ViewPosition"] for row in metadata} == {"AP", "PA", "LATERAL"}
    for row in metadata:
        dataset = pydicom.dcmread(root / paths[row["dicom_id"]], stop_before_pixels=True)
        assert (str(dataset.Rows), str(dataset.Columns)) == (row["Rows"], row["Columns"])
        assert dataset.ViewPosition == row["ViewPosition"]
        assert dataset.PatientID == row["subject_id"]


def test_a_patient_is_in_one_split_alone(root: Path) -> None:
    splits: dict[str, set[str]] = {}
    for row in table(root, "split"):
        splits.setdefault(row["subject_id"], set()).add(row["split"])
    assert all(len(found) == 1 for found in splits.values())
    assert set.union(*splits.values()) == {"train", "validate", "test"}


def test_boxes_are_of_test_patients_and_lie_in_their_images(root: Path) -> None:
    boxes = rows(root / tree.BOX_TABLE)
    split = {row["dicom_id"]: row["split"] for row in table(root, "split")}
    assert {split[row["dicom_id"]] for row in boxes} == {"test"}
    assert {row["label_text"] for row in boxes} <= {gallery_sentence(one) for one in FINE_FINDINGS}
    for row in boxes:
        x, y, w, h, width, height = (
            int(row[name]) for name in ("x", "y", "w", "h", "image_width", "image_height")
        )
        assert 0 <= x < x + w <= width
        assert 0 <= y < y + h <= height


def test_true_eta_is_the_share_of_training_images(root: Path) -> None:
    by_name = {finding.name: finding for finding in FINE_FINDINGS}
    split = {row["dicom_id"]: row["split"] for row in table(root, "split")}
    view = {row["dicom_id"]: row["ViewPosition"] for row in table(root, "metadata")}
    images = [
        [by_name[name] for name in json.loads(row["findings"])]
        for row in rows(root / "truth/images.csv")
        if split[row["dicom_id"]] == "train" and view[row["dicom_id"]] in {"AP", "PA"}
    ]
    eta = {row["text"]: float(row["eta"]) for row in rows(root / "truth/eta.csv")}
    kinds = set()
    for number in range(SETTINGS.patients):
        for image in draw_patient(number, 1):
            for statement in image.study.statements:
                kinds.add(statement.kind)
                share = sum(statement.meaning.holds(shown) for shown in images) / len(images)
                assert eta[statement.text] == pytest.approx(share, abs=1e-6)
    assert kinds == {"fine", "coarse", "negated", "combined", "normal"}


def test_two_processes_write_the_same_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "UNIT_PATIENTS", 2)
    small = SETTINGS.model_copy(update={"patients": 4})
    alone = write(tmp_path / "alone", small)
    shared = write(tmp_path / "shared", small, workers=2)
    assert alone.digest == shared.digest
