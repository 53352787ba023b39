"""Damage: the same mutant for the same number, and damage that reaches what it is aimed at."""

import contextlib
import random
import zlib

import numpy as np
import pytest

from benchmarks.reliability.fuzz import dicom_seeds, raster_seeds
from benchmarks.reliability.mutants import Seed, mutate, pick, read_seed
from tests.support.dicom import dicom_bytes, ramp, raster_bytes

DEFLATED = "1.2.840.10008.1.2.1.99"


@pytest.fixture(scope="module")
def seeds() -> list[Seed]:
    return [read_seed(data) for data in (*dicom_seeds(), *raster_seeds())]


def test_a_number_names_a_mutant_for_good(seeds: list[Seed]) -> None:
    first = [pick(seeds, "run", number) for number in range(40)]
    assert first == [pick(seeds, "run", number) for number in range(40)]
    assert first != [pick(seeds, "another run", number) for number in range(40)]
    assert len(set(first)) > 35


def test_damage_gets_behind_a_deflation_and_a_checksum() -> None:
    rng = random.Random(0)
    image = read_seed(dicom_bytes(ramp(), syntax=DEFLATED))
    sound = zlib.decompress(image.data[image.body :], -zlib.MAX_WBITS)
    inflated = 0
    for _ in range(40):
        mutant = mutate(image, image, rng)
        with contextlib.suppress(zlib.error):  # now and then the deflation itself is damaged
            inflated += zlib.decompress(mutant[image.body :], -zlib.MAX_WBITS) != sound
    assert inflated > 10
    png = read_seed(raster_bytes(ramp(9, 9, 255).astype(np.uint8), "png"))
    header = slice(12, 29)
    mended = sum(
        mutant[header] != png.data[header]
        and zlib.crc32(mutant[header]) == int.from_bytes(mutant[29:33], "big")
        for mutant in (mutate(png, png, rng) for _ in range(100))
    )
    assert mended > 5
