"""Prepared images: right pixels and named rejects."""

import json
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import open_image
from medclip_dcl.data.prepared import PreparedImages
from pipelines.__main__ import main
from tests.support import forkserver
from tests.support.dicom import dicom_bytes, ramp
from tests.support.release import Release, release


def config_file(
    tmp_path: Path, source: Release, name: str = "work", *, most: float = 0.01, **images: Any
) -> Path:
    root = tmp_path / "source"
    if not root.exists():
        root.mkdir()
        source.write(root)
    settings = {"size_px": 32} | images
    path = tmp_path / f"{name}.yaml"
    given = {"root": str(root), "max_reject_share": most}
    tree = {"work": str(tmp_path / name), "source": given, "images": settings, "workers": 2}
    path.write_text(json.dumps(tree))
    assert main(["build_manifest", "--config", str(path)]) == 0
    return path


def made(work: Path) -> Artifact:
    return open_artifact(work / "prepared", prepared.ARTIFACT)


def test_images_come_out_as_the_square_of_what_went_in(tmp_path: Path) -> None:
    source = release(10)
    assert main(["prepare_images", "--config", str(config_file(tmp_path, source))]) == 0
    images = PreparedImages(made(tmp_path / "work"))
    assert (len(images), images.size_px) == (10, 32)
    assert images.image_ids == sorted(row[0] for row in source.images)
    table = read_table(tmp_path / "work/manifest", manifest.IMAGES).to_pylist()
    for row in table:
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
    path = config_file(tmp_path, source, most=0.1)
    assert main(["prepare_images", "--config", str(path)]) == 3
    command = ["--config", str(path), "--set", "source.max_reject_share=0.2"]
    assert main(["prepare_images", *command]) == 0
    rejects = read_table(made(tmp_path / "work").path, manifest.REJECTS).to_pylist()
    assert [(row["id"], row["reason"]) for row in rejects] == [
        (ids[2], "constant"),
        (ids[5], "truncated"),
    ]
    images = PreparedImages(made(tmp_path / "work"))
    assert images.image_ids == [name for name in ids if name not in {ids[2], ids[5]}]


def test_two_dask_workers_give_the_bytes_of_the_local_pool(tmp_path: Path) -> None:
    source = release(30)
    source.image = {
        source.images[3][0]: b"no image",
        source.images[7][0]: dicom_bytes(ramp())[:900],
    }
    here = config_file(tmp_path, source, "here", most=0.1)
    assert main(["prepare_images", "--config", str(here)]) == 0
    forkserver.context()  # has imported what the workers of the cluster need
    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
    ):
        there = config_file(
            tmp_path, source, "there", most=0.1, dask_scheduler=cluster.scheduler_address
        )
        assert main(["prepare_images", "--config", str(there)]) == 0
        with Client(cluster) as client:
            busy = client.run(_decode_workers)
    assert made(tmp_path / "there").digest == made(tmp_path / "here").digest
    assert len(busy) == 2
    assert sum(busy.values()) >= 1
    address = cluster.scheduler_address
    settings = ["--set", f"images.dask_scheduler={address}", "--set", "images.size_px=40"]
    with dask.config.set({"distributed.comm.timeouts.connect": "200ms"}):
        assert main(["prepare_images", "--config", str(here), *settings]) == 2  # it has gone


def _decode_workers() -> int:
    return len(psutil.Process().children())


def test_image_that_changes_is_prepared_anew(tmp_path: Path) -> None:
    path = config_file(tmp_path, release(3))
    assert main(["prepare_images", "--config", str(path)]) == 0
    first = made(tmp_path / "work").digest
    assert main(["prepare_images", "--config", str(path)]) == 0
    assert made(tmp_path / "work").digest == first
    image = next((tmp_path / "source").rglob("*.dcm"))
    image.write_bytes(dicom_bytes(ramp()[::-1].copy()))
    assert main(["prepare_images", "--config", str(path)]) == 0
    assert made(tmp_path / "work").digest != first
