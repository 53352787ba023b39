"""Prepared images in a bucket: what is read is what is in the folder, whatever the cache holds."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from medclip_dcl.artifact import HEADER, Artifact, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.data.shard_cache import StoredArtifact, open_stored, upload
from medclip_dcl.errors import ArtifactCorrupt, ArtifactMissing, ArtifactStale, ConfigError
from medclip_sources.object_store import ObjectStore

KIND = prepared.ARTIFACT
SHARDS, ROWS, PX = 6, 5, 64
BYTES = 25_000  # a shard takes a little less


def made(work: Path, seed: int = 0) -> Artifact:
    rng = np.random.default_rng(seed)
    with write_artifact(KIND.at(work), KIND, make_fingerprint(KIND, {"seed": seed}, {})) as writer:
        for number in range(SHARDS):
            ids = [f"{number}-{row}" for row in range(ROWS if number < SHARDS - 1 else 2)]
            pixels = rng.integers(256, size=(len(ids), PX, PX), dtype=np.uint8)
            sizes = rng.integers(1, 99, size=(len(ids), 2), dtype=np.int32)
            prepared.write_shard(writer.directory, number, ids, pixels, sizes, [("x", "empty")])
        return writer.commit({"size_px": PX, "images": (SHARDS - 1) * ROWS + 2})


def stored(tmp_path: Path, shards: int = SHARDS) -> StoredArtifact:
    store = ObjectStore(f"file://{tmp_path}/bucket", "images.store")
    return open_stored(store, KIND, tmp_path / "cache", shards * BYTES)


def held(tmp_path: Path) -> set[str]:
    return {shard.name for shard in tmp_path.glob("cache/*/shard-*")}


@pytest.fixture
def local(tmp_path: Path) -> PreparedImages:
    artifact = made(tmp_path)
    assert all(entry["bytes"] < BYTES for entry in artifact.files.values())
    (tmp_path / "bucket").mkdir()
    upload(artifact, ObjectStore(f"file://{tmp_path}/bucket"))
    return PreparedImages(artifact)


def test_a_bucket_gives_the_images_of_the_folder(tmp_path: Path, local: PreparedImages) -> None:
    there = PreparedImages(stored(tmp_path))
    assert held(tmp_path) == set()  # ids and sizes need no shard
    assert (len(there), there.image_ids, there.size_px) == (27, local.image_ids, PX)
    assert there.shard_of(np.array([0, 4, 5, 26])).tolist() == [0, 0, 1, 5]
    for row in (26, 0, 7):
        assert there.original_size(row) == local.original_size(row)
        assert there.pixels(row).tobytes() == local.pixels(row).tobytes()
    assert held(tmp_path) == {f"shard-0000{number}.arrow" for number in (0, 1, 5)}
    (tmp_path / "bucket").rename(tmp_path / "elsewhere")
    assert there.pixels(1).tobytes() == local.pixels(1).tobytes()  # it is here


def test_what_was_not_used_for_longest_leaves(tmp_path: Path, local: PreparedImages) -> None:
    there = PreparedImages(stored(tmp_path, shards=2))
    first = there.pixels(0)
    for row in (5, 10, 15):
        there.pixels(row)
        for age, name in enumerate(sorted(held(tmp_path), reverse=True)):
            path = next(tmp_path.glob(f"cache/*/{name}"))
            os.utime(path, (1e9 - age, 1e9 - age))  # the higher shard is the newer
    assert held(tmp_path) == {"shard-00002.arrow", "shard-00003.arrow"}
    assert first.tobytes() == local.pixels(0).tobytes()  # what is mapped stays readable
    again = PreparedImages(stored(tmp_path, shards=2))
    assert again.pixels(0).tobytes() == first.tobytes()


def read_all(folder: Path, seed: int) -> bytes:
    images = PreparedImages(stored(folder, shards=2))
    rows = np.random.default_rng(seed).permutation(len(images))
    pixels = {row: images.pixels(row).tobytes() for row in rows.tolist()}
    return b"".join(pixels[row] for row in sorted(pixels))


def test_many_processes_share_a_cache_of_two_shards(tmp_path: Path, local: PreparedImages) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        found = pool.starmap(read_all, [(tmp_path, seed) for seed in range(3)])
    assert set(found) == {b"".join(local.pixels(row).tobytes() for row in range(len(local)))}
    assert len(held(tmp_path)) <= 2
    assert not list(tmp_path.glob("cache/*/.staged*"))


def test_a_bucket_that_changed_is_refused(tmp_path: Path, local: PreparedImages) -> None:
    there, bucket = PreparedImages(stored(tmp_path)), tmp_path / "bucket"
    shard = bucket / "shard-00001.arrow"
    shard.write_bytes(shard.read_bytes().replace(b"1-0", b"1-9", 1))
    with pytest.raises(ArtifactCorrupt, match=r"shard-00001.arrow of .* is not what its header"):
        there.pixels(5)
    shard.unlink()
    with pytest.raises(ArtifactCorrupt, match=r"lacks shard-00001.arrow; copy"):
        there.pixels(5)
    upload(made(tmp_path / "other", seed=1), ObjectStore(f"file://{bucket}"))
    assert PreparedImages(stored(tmp_path)).pixels(5).tobytes() != local.pixels(5).tobytes()
    with pytest.raises(ConfigError, match=r"images.cache_gb is 1e-05, and a shard takes 2"):
        open_stored(ObjectStore(f"file://{bucket}"), KIND, tmp_path / "cache", 10_000)
    with pytest.raises(ArtifactStale, match="holds prepared version 2, version 2 of manifest"):
        open_stored(ObjectStore(f"file://{bucket}"), manifest.ARTIFACT, tmp_path / "c", 10**9)
    (bucket / HEADER).unlink()
    with pytest.raises(ArtifactMissing, match="run prepare_images first"):
        stored(tmp_path)
