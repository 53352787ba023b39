"""Repeated pictures among prepared films."""

from pathlib import Path

import numpy as np

from medclip_dcl.artifact import drafting, make_recipe
from medclip_dcl.data import prepared
from medclip_dcl.data.prepared import PreparedImages


def write(work: Path, pixels: np.ndarray) -> PreparedImages:
    names = [f"film{row}" for row in range(len(pixels))]
    sizes = np.full((len(pixels), 2), 9, dtype=np.int32)
    with drafting(work / "prepared", prepared.KIND, make_recipe(prepared.KIND, {}, {})) as draft:
        prepared.write_shard(draft.directory, 0, names[:3], pixels[:3], sizes[:3], [])
        prepared.write_shard(draft.directory, 1, names[3:], pixels[3:], sizes[3:], [])
        return PreparedImages(draft.seal({"size_px": pixels.shape[1]}))


def test_repeats_are_found_over_shards_and_pixel_by_pixel(tmp_path: Path) -> None:
    films = np.random.default_rng(0).integers(0, 256, (6, 20, 20), dtype=np.uint8)
    films[4] = films[1]
    films[5] = films[0]
    films[5, 0, 0] ^= 1  # the middle is the same, a corner is not
    images = write(tmp_path, films)
    assert images.find_repeats([4, 5], [0, 1, 2, 3]) == {4: 1}
    assert images.find_repeats([0, 1, 2], [3, 4, 5]) == {1: 4}


def test_a_film_does_not_repeat_itself(tmp_path: Path) -> None:
    images = write(tmp_path, np.zeros((4, 20, 20), dtype=np.uint8))
    assert images.find_repeats([1], [1]) == {}
    assert images.find_repeats([1], [1, 2, 3]) == {1: 2}
