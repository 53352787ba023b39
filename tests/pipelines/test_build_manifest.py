"""The manifest: what is usable, whose it is, and a reason for everything else."""

import json
from pathlib import Path
from typing import Any

from medclip_dcl.data import manifest
from pipelines.build_manifest import main
from tests.support import jobs
from tests.support.dicom import dicom_bytes, ramp
from tests.support.release import Release, release

_IDS = {"SOPInstanceUID": "1.2.3", "StudyInstanceUID": "1.2", "PatientID": "MRN7"}


def write(tmp_path: Path, source: Release) -> Path:
    """Write a release; gives its folder."""
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    return tmp_path / "source"


def build(tmp_path: Path, **settings: Any) -> Path:
    """Build the manifest of what was written; gives the work folder."""
    source = {"root": str(tmp_path / "source"), "max_reject_share": 1.0} | settings
    assert main(["--config", str(jobs.config_for(tmp_path / "work", source=source))]) == 0
    return tmp_path / "work"


def rows(work: Path, form: Any) -> list[dict[str, Any]]:
    return jobs.rows(work, manifest.ARTIFACT, form)


def test_whole_release_comes_through(tmp_path: Path) -> None:
    write(tmp_path, release(5))
    work = build(tmp_path)
    images = rows(work, manifest.IMAGES)
    assert [row["image_id"] for row in images] == sorted(row["image_id"] for row in images)
    assert len(images) == 5
    assert images[0]["path"].startswith("files/p10/p10000000/s50000000/")
    report = rows(work, manifest.REPORTS)[0]
    assert " ".join(report["findings"].split()) == "The lungs are clear. No pleural effusion."
    assert report["impression"] == "No acute process."
    labels = rows(work, manifest.STUDY_LABELS)[0]
    assert (labels["Atelectasis"], labels["Cardiomegaly"], labels["Consolidation"]) == (1, 0, -1)
    assert labels["Pneumonia"] is None
    assert rows(work, manifest.REJECTS) == []
    assert jobs.made(work, manifest.ARTIFACT).summary["boxes_without_image"] == 0


def test_patients_with_boxes_never_train_and_no_patient_is_split(tmp_path: Path) -> None:
    source = release(6)
    images = [row[0] for row in source.images]
    source.images += [("extra-image", "10000001", "59000000", "AP")]
    source.splits = {"extra-image": "validate"}  # patient 1 trains, and validates
    source.boxes = [
        f"Edema,mild  edema,files/p10/p10000002/x.dcm,1,2,3,4,{images[2]},50,40",
        "Edema,mild edema,files/p10/p10000003/s5/elsewhere.dcm,1,2,3,4,elsewhere,50,40",
    ]
    write(tmp_path, source)
    work = build(tmp_path, boxes="boxes.csv")
    splits = {row["subject_id"]: row["split"] for row in rows(work, manifest.IMAGES)}
    assert splits["10000000"] == "train"
    assert splits["10000001"] == "validate"
    assert splits["10000002"] == splits["10000003"] == "test"
    (box,) = rows(work, manifest.BOXES)
    assert (box["phrase"], box["x"], box["height"], box["image_width"]) == ("mild edema", 1, 4, 50)
    summary = jobs.made(work, manifest.ARTIFACT).summary
    assert (summary["boxes_without_image"], summary["split_conflicts"]) == (1, 1)


def test_jpg_release_with_reports_elsewhere(tmp_path: Path) -> None:
    root = write(tmp_path, release(3))
    for image in root.rglob("*.dcm"):
        image.rename(image.with_suffix(".jpg"))
    for report in root.rglob("s*.txt"):
        elsewhere = tmp_path / "reports" / report.relative_to(root)
        elsewhere.parent.mkdir(parents=True, exist_ok=True)
        report.rename(elsewhere)
    work = build(tmp_path, reports=str(tmp_path / "reports"))
    assert [row["path"][-4:] for row in rows(work, manifest.IMAGES)] == [".jpg"] * 3
    assert len(rows(work, manifest.REPORTS)) == 3


def test_dicom_release_takes_its_views_from_the_headers(tmp_path: Path) -> None:
    source = release(3)
    source.image = {source.images[1][0]: dicom_bytes(ramp(), **_IDS, ViewPosition="LL")}
    source.image |= {row[0]: dicom_bytes(ramp(), **_IDS) for row in source.images[::2]}
    root = write(tmp_path, source)
    for table in root.glob("mimic-cxr-*.csv.gz"):
        table.unlink()
    lines = [f"{row[1]},{row[2]},{row[0]},files/x.dcm" for row in source.images]
    text = "\n".join(["subject_id,study_id,dicom_id,path", *lines]) + "\n"
    (root / "cxr-record-list.csv").write_text(text)
    work = build(tmp_path)
    assert [row["view"] for row in rows(work, manifest.IMAGES)] == ["PA", "PA"]
    assert [row["reason"] for row in rows(work, manifest.REJECTS)] == ["lateral"]


def test_studies_that_the_release_sectioned_by_hand_keep_their_text(tmp_path: Path) -> None:
    source = release(2)
    source.images = [("a", "10000000", "51410602", "AP"), ("b", "10000001", "58235663", "AP")]
    source.report = {"51410602": b"x" * 47 + b"Lungs are clear. ".ljust(273) + b"Signed."}
    write(tmp_path, source)
    work = build(tmp_path)
    (report,) = rows(work, manifest.REPORTS)
    assert (report["impression"], report["last_paragraph"]) == ("", "Lungs are clear.")
    reasons = {row["id"]: row["reason"] for row in rows(work, manifest.REJECTS)}
    assert reasons == {"58235663": "empty_report", "b": "no_report"}


def test_a_config_that_reads_labels_is_refused_where_there_are_none(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("who,text,edema\na,Edema.,1\nb,Clear.,0\n")
    columns: dict[str, object] = {"subject_id": "who", "report": "text"}
    source = {"kind": "table", "root": str(tmp_path), "table": "t.csv", "columns": columns}
    objective = {"negatives": "remove_labels"}
    work = tmp_path / "work"
    jobs.config_for(work, source=source, objective=objective)
    jobs.run("build_manifest", work, code=2)
    message = capsys.readouterr().err
    assert "objective.negatives: remove_labels: no study" in message
    assert "source.columns.labels" in message
    columns["labels"] = {"Edema": "edema"}
    jobs.run("build_manifest", work, f"source.columns={json.dumps(columns)}")
    assert [row["Edema"] for row in rows(work, manifest.STUDY_LABELS)] == [1, 0]
