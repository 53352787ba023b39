import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.reliability.soak import anonymous_mib, slope

HOURS = np.linspace(0, 2, 721)


def test_slope_leaves_out_what_comes_first_and_states_its_doubt() -> None:
    climb_and_line = np.maximum(100 - 400 * HOURS, 0) + 3 * HOURS  # the climb ends after 15 minutes
    assert slope(HOURS, climb_and_line) == pytest.approx((3, 3, 3))
    assert slope(HOURS, np.full(721, 14.0)) == (0, 0, 0)
    until_the_middle = np.minimum(HOURS, 1)
    assert slope(HOURS, until_the_middle, left_out=1 / 2) == pytest.approx((0, 0, 0), abs=1e-12)


def test_intervals_of_a_slope_hold_it_as_often_as_they_say() -> None:
    noise = np.random.default_rng(0).normal(0, 5, (400, 721))
    found = [slope(HOURS, 2 * HOURS + row) for row in noise]
    assert np.mean([low <= 2 <= high for _, low, high in found]) == pytest.approx(0.95, abs=0.03)


def test_pages_of_a_mapped_file_are_not_taken_for_growth(tmp_path: Path) -> None:
    mib = 64
    (tmp_path / "index").write_bytes(os.urandom(1 << 20) * mib)
    before = anonymous_mib(os.getpid())
    with (tmp_path / "index").open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    assert sum(mapped[:: mmap.PAGESIZE]) > 0  # every page is touched
    assert anonymous_mib(os.getpid()) - before < mib / 4
    # Not by malloc, which may give again what an earlier test left it.
    with mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        assert anonymous_mib(os.getpid()) - before > mib * 3 / 4
    mapped.close()
