"""Hostile files: each is refused by name, soon, and at no cost to who opened it."""

import time
from collections.abc import Iterator

import imagecodecs
import numpy as np
import psutil
import pytest

from benchmarks.fixtures.bombs import BOMBS
from benchmarks.fixtures.dicom import dicom_bytes, ramp, raster_bytes
from medclip_dcl.data.codestreams import read_jpeg, require_tiles
from medclip_dcl.data.images import REASONS, Decoder, ImagesConfig
from medclip_dcl.errors import ImageError


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    with Decoder(ImagesConfig(), 1) as pool:
        pool.open(dicom_bytes(ramp()))
        yield pool


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_refused_by_name(name: str, decoder: Decoder) -> None:
    data = BOMBS[name].make()
    caller = psutil.Process()
    before, start = caller.memory_info().rss, time.monotonic()
    with pytest.raises(ImageError) as refused:
        decoder.open(data)
    assert time.monotonic() - start < 10
    assert caller.memory_info().rss - before < 256 * 2**20
    assert refused.value.code in BOMBS[name].reasons <= set(REASONS)


def test_images_of_many_tiles_and_scans_are_no_bombs() -> None:
    image = ramp(64, 64)
    stream = bytearray(imagecodecs.jpeg2k_encode(image, codecformat="j2k", level=0))
    at = stream.index(b"\xff\x90")
    left, right = bytes(stream[at:-2]), bytearray(stream[at:-2])
    right[5] = 1  # the second tile
    stream[8:12] = (128).to_bytes(4, "big")  # two tiles of 64 columns side by side
    two = bytes(stream[:at]) + left + bytes(right) + b"\xff\xd9"
    require_tiles(two)
    pixels = imagecodecs.jpeg2k_decode(two)
    assert np.array_equal(pixels, np.hstack([image, image]))
    with pytest.raises(ImageError, match="truncated"):
        require_tiles(bytes(stream[:at]) + left + b"\xff\xd9")
    grey = ramp(60, 60, 255).astype(np.uint8)
    assert read_jpeg(raster_bytes(grey, "jpeg", progressive=True)).rows == 60
