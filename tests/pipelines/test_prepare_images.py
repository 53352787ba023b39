"""Prepared images: right pixels and named rejects."""

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
from tests.support import forkserver
from tests.support.dicom import dicom_bytes, ramp
from tests.support.jobs import config_for, made, rows, run
from tests.support.release import Release, release


def listed(
    tmp_path: Path, source: Release, name: str = "work", *, most: float = 0.01, **images: Any
) -> Path:
    """A work folder with the manifest of a source."""
    root, work = tmp_path / "source", tmp_path / name
    if not root.exists():
        root.mkdir()
        source.write(root)
    given = {"root": str(root), "max_reject_share": most}
    config_for(work, source=given, images={"size_px": 32} | images, workers=2)
    run("build_manifest", work)
    return work


def prepare(work: Path, *settings: str, code: int = 0) -> None:
    run("prepare_images", work, *settings, code=code)


def test_images_come_out_as_the_square_of_what_went_in(tmp_path: Path) -> None:
    source = release(10)
    work = listed(tmp_path, source)
    prepare(work)
    images = PreparedImages(made(work, prepared.ARTIFACT))
    assert (len(images), images.size_px) == (10, 32)
    assert images.image_ids == sorted(row[0] for row in source.images)
    for row in rows(work, manifest.ARTIFACT, manifest.IMAGES):
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
    source.image = {
        ids[2]: dicom_bytes(np.full((9, 9), 5, dtype=np.uint16)),
        ids[5]: dicom_bytes(ramp())[:900],
    }
    work = listed(tmp_path, source, most=0.1)
    prepare(work, code=3)
    prepare(work, "source.max_reject_share=0.2")
    rejects = rows(work, prepared.ARTIFACT, manifest.REJECTS)
    assert [(row["id"], row["reason"]) for row in rejects] == [
        (ids[2], "constant"),
        (ids[5], "truncated"),
    ]
    images = PreparedImages(made(work, prepared.ARTIFACT))
    assert images.image_ids == [name for name in ids if name not in {ids[2], ids[5]}]


def test_two_dask_workers_give_the_bytes_of_the_local_pool(tmp_path: Path) -> None:
    source = release(30)
    source.image = {
        source.images[3][0]: b"no image",
        source.images[7][0]: dicom_bytes(ramp())[:900],
    }
    here = listed(tmp_path, source, "here", most=0.1)
    prepare(here)
    forkserver.context()  # has imported what the workers of the cluster need
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
    ):
        address = cluster.scheduler_address
        there = listed(tmp_path, source, "there", most=0.1, dask_scheduler=address)
        prepare(there)
        with Client(cluster) as client:
            busy = client.run(_decode_workers)
    assert made(there, prepared.ARTIFACT).digest == made(here, prepared.ARTIFACT).digest
    assert len(busy) == 2
    assert sum(busy.values()) >= 1
    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):  # it has gone
        prepare(here, f"images.dask_scheduler={address}", "images.size_px=40", code=2)


def _decode_workers() -> int:
    return len(psutil.Process().children())


def test_image_that_changes_is_prepared_anew(tmp_path: Path) -> None:
    work = listed(tmp_path, release(3))
    digests = []
    for is_changed in (False, False, True):
        if is_changed:
            image = next((tmp_path / "source").rglob("*.dcm"))
            image.write_bytes(dicom_bytes(ramp()[::-1].copy()))
        prepare(work)
        digests.append(made(work, prepared.ARTIFACT).digest)
    assert digests[0] == digests[1] != digests[2]
