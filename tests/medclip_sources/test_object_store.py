"""A source whose root is a bucket."""

import os
import pickle
from pathlib import Path

import pytest

from benchmarks.speed.scale_limits import bucket_figures, write_studies
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.manifest import write_manifest
from medclip_dcl.data.prepared import ListedImage, prepare_images
from medclip_dcl.data.records import BoxTable, Source
from medclip_dcl.data.row_images import stamp_files
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import ConfigError, StoreError, StudyError
from medclip_sources.object_store import ObjectStore, open_root
from medclip_sources.table import read_mapped_table

SETTINGS = SourceConfig(
    kind="table",
    table="studies.csv",
    columns={"path": "image", "study_id": "study", "subject_id": "patient", "report": "report"},
    max_reject_share=0.5,
)


def test_a_store_gives_the_manifest_and_the_images_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "studies"
    write_studies(folder, 4)
    (folder / "1.png").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "2.png").unlink()
    made = []
    for name, root in (("here", folder), ("there", ObjectStore(f"file://{folder}"))):
        work = tmp_path / name
        work.mkdir()
        raw = read_mapped_table(
            root, SETTINGS, lambda text, to=work: Path(text.replace("${WORK}", str(to)))
        )
        summary = write_manifest(work, Source(raw, BoxTable([], set(), 0)), SETTINGS)
        assert summary["reasons"] == {"missing_image": 1, "pointer_file": 1}
        listed = [ListedImage(f"{number}", f"{number}.png") for number in range(4)]
        images = ImagesConfig(size_px=32)
        assert prepare_images(work, listed, root, images, workers=1)["images"] == 2
        made.append({file.name: file.read_bytes() for file in work.iterdir() if file.is_file()})
    assert len(made[0]) > 5
    assert made[0] == made[1]


def test_an_object_is_named_by_a_plain_path_and_seen_to_change(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b c.png").write_bytes(b"123")
    store = ObjectStore(f"file://{tmp_path}")
    assert store.read("a/b c.png") == b"123"
    assert store.state("x") is None
    first = stamp_files(store, ["a/b c.png", "x"])
    for path in ("", "/a/b c.png", "../b", "a//b c.png", "./a"):
        with pytest.raises(StudyError, match="not plain"):
            store.read(path)
    with pytest.raises(StudyError, match="missing"):
        store.read("x")
    (tmp_path / "a" / "b c.png").write_bytes(b"1234")
    assert stamp_files(store, ["a/b c.png", "x"]) == first  # it is listed once
    sent = pickle.loads(pickle.dumps(store))
    assert stamp_files(sent, ["a/b c.png", "x"]) != first


def test_a_bucket_needs_a_table_and_a_store_that_answers() -> None:
    bucket = SETTINGS.model_copy(update={"root": "s3://studies/chest/"})
    assert open_root(bucket, Path) == ObjectStore("s3://studies/chest")
    assert open_root(SETTINGS.model_copy(update={"root": "/data"}), Path) == Path("/data")
    with pytest.raises(ConfigError, match="kind open_i needs a folder"):
        open_root(bucket.model_copy(update={"kind": "open_i"}), Path)
    for ask in (ObjectStore("s3://").read, ObjectStore("s3://").state):
        with pytest.raises(StoreError, match="correct the URL"):
            ask("a.png")


@pytest.mark.skipif("MOTO_SERVER" not in os.environ, reason="MOTO_SERVER names no moto server")
def test_a_server_that_fails_every_tenth_request_changes_no_byte(tmp_path: Path) -> None:
    found = bucket_figures(tmp_path, quick=True)
    assert (found["bucket_differs"], found["store_model_differs"]) == (0, 0)
    assert found["bucket_failed_on_purpose"] >= 6
