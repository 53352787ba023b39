"""Prepared images: repeated pictures, and shards as `datasets` loads them."""

from pathlib import Path

import datasets
import numpy as np

from medclip_dcl.core.artifact import make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.data import prepared
from medclip_dcl.data.prepared import PreparedImages, shards_ahead


def write(work: Path, pixels: np.ndarray) -> PreparedImages:
    names = [f"image{row}" for row in range(len(pixels))]
    sizes = np.full((len(pixels), 2), 9, dtype=np.int32)
    kind = prepared.ARTIFACT
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {}, {})) as writer:
        prepared.write_shard(writer.directory, 0, names[:3], pixels[:3], sizes[:3], [])
        prepared.write_shard(writer.directory, 1, names[3:], pixels[3:], sizes[3:], [])
        return PreparedImages(writer.commit({"size_px": pixels.shape[1]}))


def test_repeats_are_found_over_shards_and_pixel_by_pixel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 20, 20), dtype=np.uint8)
    pixels[4] = pixels[1]
    pixels[5] = pixels[0]
    pixels[5, 0, 0] ^= 1  # the middle is the same, a corner is not
    images = write(tmp_path, pixels)
    assert images.find_repeats([4, 5], [0, 1, 2, 3]) == {4: 1}
    assert images.find_repeats([0, 1, 2], [3, 4, 5]) == {1: 4}


def test_a_large_cluster_has_two_tasks_of_four_images_for_each_core() -> None:
    for cores, rows, shards in ((2, 512, 2), (64, 512, 2), (256, 512, 5), (1000, 512, 17)):
        assert shards_ahead(lambda cores=cores: cores, rows) == shards
        assert (shards - 1) * rows >= 2 * cores * 4


def test_datasets_loads_the_shards(tmp_path: Path) -> None:
    """As docs/python.md has it."""
    pixels = np.random.default_rng(0).integers(0, 256, (6, 64, 64), dtype=np.uint8)
    write(tmp_path, pixels)
    datasets.disable_progress_bars()
    where = {"data_files": f"{tmp_path}/prepared/shard-*.arrow", "cache_dir": f"{tmp_path}/cache"}
    images = datasets.load_dataset("arrow", split="train", **where)
    assert images["image_id"][:] == [f"image{row}" for row in range(6)]
    for row, image in enumerate(images):
        assert np.frombuffer(image["pixels"], "uint8").tobytes() == pixels[row].tobytes()
