"""The manifest: what is usable, whose it is, a reason for the rest; and the images, prepared."""

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import open_image
from medclip_dcl.data.prepared import PreparedImages
from pipelines.build_manifest import main
from tests.support import forkserver, jobs
from tests.support.dicom import dicom_bytes, ramp
from tests.support.jobs import config_for, made, run
from tests.support.release import Release, release

_IDS = {"SOPInstanceUID": "1.2.3", "StudyInstanceUID": "1.2", "PatientID": "MRN7"}


def write(tmp_path: Path, source: Release) -> Path:
    """Write a release, and return its folder."""
    (tmp_path / "source").mkdir()
    source.write(tmp_path / "source")
    return tmp_path / "source"


def build(
    tmp_path: Path, written: Release | None = None, name: str = "work", **settings: Any
) -> Path:
    """Build the manifest of a release, or of what was written, and return the work folder."""
    if written is not None:
        write(tmp_path, written)
    source = {"root": str(tmp_path / "source"), "max_reject_share": 1.0} | settings
    images = {"size_px": 32} | source.pop("images", {})
    config_file = config_for(tmp_path / name, source=source, images=images, workers=2)
    assert main(["--config", str(config_file)]) == 0
    return tmp_path / name


def rows(work: Path, form: Any) -> list[dict[str, Any]]:
    return jobs.rows(work, manifest.ARTIFACT, form)


def test_whole_release_comes_through(tmp_path: Path) -> None:
    work = build(tmp_path, release(5))
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
    assert made(work, manifest.ARTIFACT).summary["boxes_without_image"] == 0


def test_patients_with_boxes_never_train_and_no_patient_is_split(tmp_path: Path) -> None:
    source = release(6)
    images = [row[0] for row in source.images]
    source.images += [("extra-image", "10000001", "59000000", "AP")]
    source.splits = {"extra-image": "validate"}  # patient 1 trains, and validates
    source.boxes = [
        f"Edema,mild  edema,files/p10/p10000002/x.dcm,1,2,3,4,{images[2]},50,40",
        "Edema,mild edema,files/p10/p10000003/s5/elsewhere.dcm,1,2,3,4,elsewhere,50,40",
    ]
    work = build(tmp_path, source, boxes="boxes.csv")
    splits = {row["subject_id"]: row["split"] for row in rows(work, manifest.IMAGES)}
    assert splits["10000000"] == "train"
    assert splits["10000001"] == "validate"
    assert splits["10000002"] == splits["10000003"] == "test"
    (box,) = rows(work, manifest.BOXES)
    assert (box["phrase"], box["x"], box["height"], box["image_width"]) == ("mild edema", 1, 4, 50)
    summary = made(work, manifest.ARTIFACT).summary
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
    work = build(tmp_path, source)
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
    config_for(work, source=source, objective=objective)
    run("build_manifest", work, code=2)
    message = capsys.readouterr().err
    assert "objective.negatives: remove_labels: no study" in message
    assert "source.columns.labels" in message
    columns["labels"] = {"Edema": "edema"}
    run("build_manifest", work, f"source.columns={json.dumps(columns)}")
    assert [row["Edema"] for row in rows(work, manifest.STUDY_LABELS)] == [1, 0]


# ---- Prepared images


def test_images_come_out_as_the_square_of_what_went_in(tmp_path: Path) -> None:
    source = release(10)
    work = build(tmp_path, source)
    run("prepare_images", work)
    images = PreparedImages(made(work, prepared.ARTIFACT))
    assert (len(images), images.size_px) == (10, 32)
    assert images.image_ids == sorted(row[0] for row in source.images)
    for row in rows(work, manifest.IMAGES):
        image = open_image(tmp_path / "source" / row["path"])
        at = images.row_of[row["image_id"]]
        assert images.original_size(at) == image.pixels.shape
        assert np.array_equal(images.pixels(at), square(image, 32, False))
    assert not images.pixels(0).flags.owndata
    with pytest.raises(IndexError):
        images.pixels(10)


def test_refused_images_are_rows_with_a_reason(tmp_path: Path) -> None:
    source = release(10)
    ids = [row[0] for row in source.images]
    constant = dicom_bytes(np.full((9, 9), 5, dtype=np.uint16))
    source.image = {ids[2]: constant, ids[5]: dicom_bytes(ramp())[:900]}
    work = build(tmp_path, source, max_reject_share=0.1)
    run("prepare_images", work, code=3)
    run("prepare_images", work, "source.max_reject_share=0.2")
    rejects = jobs.rows(work, prepared.ARTIFACT, manifest.REJECTS)
    reasons = [(row["id"], row["reason"]) for row in rejects]
    assert reasons == [(ids[2], "constant"), (ids[5], "truncated")]
    images = PreparedImages(made(work, prepared.ARTIFACT))
    assert images.image_ids == [name for name in ids if name not in {ids[2], ids[5]}]


def test_two_dask_workers_give_the_bytes_of_the_local_pool(tmp_path: Path) -> None:
    source = release(30)
    spoilt = {3: b"no image", 7: dicom_bytes(ramp())[:900]}
    source.image = {source.images[number][0]: data for number, data in spoilt.items()}
    here = build(tmp_path, source, "here")
    run("prepare_images", here)
    forkserver.context()  # has imported what the workers of the cluster need
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
    ):
        address = cluster.scheduler_address
        there = build(tmp_path, name="there", images={"dask_scheduler": address})
        run("prepare_images", there)
        with Client(cluster) as client:
            busy = client.run(_decode_workers)
    assert made(there, prepared.ARTIFACT).digest == made(here, prepared.ARTIFACT).digest
    assert len(busy) == 2
    assert sum(busy.values()) >= 1
    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):  # it has gone
        gone = (f"images.dask_scheduler={address}", "images.size_px=40")
        run("prepare_images", here, *gone, code=2)


def _decode_workers() -> int:
    return len(psutil.Process().children())


def test_image_that_changes_is_prepared_anew(tmp_path: Path) -> None:
    image = next(write(tmp_path, release(3)).rglob("*.dcm"))
    work = build(tmp_path)
    digests = []
    for pixels in (None, None, ramp()[::-1].copy()):
        if pixels is not None:
            image.write_bytes(dicom_bytes(pixels))
        run("prepare_images", work)
        digests.append(made(work, prepared.ARTIFACT).digest)
    assert digests[0] == digests[1] != digests[2]
