"""Damage: the same mutant for the same number, and damage that reaches what it is aimed at."""

import pytest

from benchmarks.reliability.fuzz import dicom_seeds, raster_seeds
from benchmarks.reliability.mutants import Seed, pick, read_seed


@pytest.fixture(scope="module")
def seeds() -> list[Seed]:
    return [read_seed(data) for data in (*dicom_seeds(), *raster_seeds())]


def test_a_number_names_a_mutant_for_good(seeds: list[Seed]) -> None:
    first = [pick(seeds, "run", number) for number in range(40)]
    assert first == [pick(seeds, "run", number) for number in range(40)]
    assert first != [pick(seeds, "another run", number) for number in range(40)]
    assert len(set(first)) > 35
