"""The manifest: what is usable, whose it is, and a reason for everything else."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data import manifest
from pipelines.build_manifest import main
from tests.support.dicom import dicom_bytes, ramp
from tests.support.release import Release, release

_IDS = {"SOPInstanceUID": "1.2.3", "StudyInstanceUID": "1.2", "PatientID": "MRN7"}


def run(tmp_path: Path, source: dict[str, Any]) -> int:
    config_file = tmp_path / "config.yaml"
    root = {"root": str(tmp_path / "source"), "max_reject_share": 1.0}
    config_file.write_text(json.dumps({"work": str(tmp_path / "work"), "source": root | source}))
    return main(["--config", str(config_file)])


def made(tmp_path: Path) -> Artifact:
    return open_artifact(tmp_path / "work/manifest", manifest.ARTIFACT)


def rows(tmp_path: Path, form: TableFormat) -> list[dict[str, Any]]:
    return read_table(made(tmp_path).path, form).to_pylist()


def build(tmp_path: Path, source: Release, **settings: Any) -> None:
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    assert run(tmp_path, settings) == 0


def test_whole_release_comes_through(tmp_path: Path) -> None:
    build(tmp_path, release(5))
    images = rows(tmp_path, manifest.IMAGES)
    assert [row["image_id"] for row in images] == sorted(row["image_id"] for row in images)
    assert len(images) == 5
    assert images[0]["path"].startswith("files/p10/p10000000/s50000000/")
    report = rows(tmp_path, manifest.REPORTS)[0]
    assert " ".join(report["findings"].split()) == "The lungs are clear. No pleural effusion."
    assert report["impression"] == "No acute process."
    labels = rows(tmp_path, manifest.STUDY_LABELS)[0]
    assert (labels["Atelectasis"], labels["Cardiomegaly"], labels["Consolidation"]) == (1, 0, -1)
    assert labels["Pneumonia"] is None
    assert rows(tmp_path, manifest.REJECTS) == []
    assert made(tmp_path).summary["boxes_without_image"] == 0


def test_patients_with_boxes_never_train_and_no_patient_is_split(tmp_path: Path) -> None:
    source = release(6)
    images = [row[0] for row in source.images]
    source.images += [("extra-image", "10000001", "59000000", "AP")]
    source.splits = {"extra-image": "validate"}  # patient 1 trains, and validates
    source.boxes = [
        f"Edema,mild  edema,files/p10/p10000002/x.dcm,1,2,3,4,{images[2]},50,40",
        "Edema,mild edema,files/p10/p10000003/s5/elsewhere.dcm,1,2,3,4,elsewhere,50,40",
    ]
    build(tmp_path, source, boxes="boxes.csv")
    splits = {row["subject_id"]: row["split"] for row in rows(tmp_path, manifest.IMAGES)}
    assert splits["10000000"] == "train"
    assert splits["10000001"] == "validate"
    assert splits["10000002"] == splits["10000003"] == "test"
    (box,) = rows(tmp_path, manifest.BOXES)
    assert (box["phrase"], box["x"], box["height"], box["image_width"]) == ("mild edema", 1, 4, 50)
    summary = made(tmp_path).summary
    assert (summary["boxes_without_image"], summary["split_conflicts"]) == (1, 1)


def test_jpg_release_with_reports_elsewhere(tmp_path: Path) -> None:
    source = release(3)
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    for image in (tmp_path / "source").rglob("*.dcm"):
        image.rename(image.with_suffix(".jpg"))
    for report in (tmp_path / "source").rglob("s*.txt"):
        folder = tmp_path / "reports" / report.relative_to(tmp_path / "source")
        folder.parent.mkdir(parents=True, exist_ok=True)
        report.rename(folder)
    assert run(tmp_path, {"reports": str(tmp_path / "reports")}) == 0
    assert [row["path"][-4:] for row in rows(tmp_path, manifest.IMAGES)] == [".jpg"] * 3
    assert len(rows(tmp_path, manifest.REPORTS)) == 3


def test_dicom_release_takes_its_views_from_the_headers(tmp_path: Path) -> None:
    source = release(3)
    source.image = {source.images[1][0]: dicom_bytes(ramp(), **_IDS, ViewPosition="LL")}
    source.image |= {row[0]: dicom_bytes(ramp(), **_IDS) for row in source.images[::2]}
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    for table in (tmp_path / "source").glob("mimic-cxr-*.csv.gz"):
        table.unlink()
    lines = [f"{row[1]},{row[2]},{row[0]},files/x.dcm" for row in source.images]
    text = "\n".join(["subject_id,study_id,dicom_id,path", *lines]) + "\n"
    (tmp_path / "source/cxr-record-list.csv").write_text(text)
    assert run(tmp_path, {}) == 0
    assert [row["view"] for row in rows(tmp_path, manifest.IMAGES)] == ["PA", "PA"]
    assert [row["reason"] for row in rows(tmp_path, manifest.REJECTS)] == ["lateral"]


def test_studies_that_the_release_sectioned_by_hand_keep_their_text(tmp_path: Path) -> None:
    source = release(2)
    source.images = [("a", "10000000", "51410602", "AP"), ("b", "10000001", "58235663", "AP")]
    source.report = {"51410602": b"x" * 47 + b"Lungs are clear. ".ljust(273) + b"Signed."}
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    assert run(tmp_path, {}) == 0
    (report,) = rows(tmp_path, manifest.REPORTS)
    assert (report["impression"], report["last_paragraph"]) == ("", "Lungs are clear.")
    reasons = {row["id"]: row["reason"] for row in rows(tmp_path, manifest.REJECTS)}
    assert reasons == {"58235663": "empty_report", "b": "no_report"}


@pytest.mark.parametrize("label", ["PHISENTINEL", "1.5", "300"])
def test_labels_of_a_release_that_are_none_are_counted_and_not_printed(tmp_path, capsys, label):
    (tmp_path / "source").mkdir()
    release(2).write(tmp_path / "source")
    table = next((tmp_path / "source").glob("*chexpert.csv.gz"))
    text = gzip.decompress(table.read_bytes()).decode()
    table.write_bytes(gzip.compress(text.replace("1.0,0.0,", f"1.0,{label},", 1).encode()))
    assert run(tmp_path, {}) == 3
    said = capsys.readouterr().err
    assert "'Cardiomegaly' in 1" in said
    assert "in 1 rows" in said
    assert f"'{label}'" not in said
    assert "PHI" not in said


def test_a_config_that_reads_labels_is_refused_where_there_are_none(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("who,text,edema\na,Edema.,1\nb,Clear.,0\n")
    columns: dict[str, object] = {"subject_id": "who", "report": "text"}
    tree = {
        "work": str(tmp_path / "work"),
        "source": {"kind": "table", "root": str(tmp_path), "table": "t.csv", "columns": columns},
        "objective": {"negatives": "remove_labels"},
    }
    config_file = tmp_path / "config.yaml"
    config_file.write_text(json.dumps(tree))
    assert main(["--config", str(config_file)]) == 2
    message = capsys.readouterr().err
    assert "objective.negatives: remove_labels: no study" in message
    assert "source.columns.labels" in message
    columns["labels"] = {"Edema": "edema"}
    config_file.write_text(json.dumps(tree))
    assert main(["--config", str(config_file)]) == 0
    assert [row["Edema"] for row in rows(tmp_path, manifest.STUDY_LABELS)] == [1, 0]
