import numpy as np
import pytest

from benchmarks.reliability.soak import slope

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
