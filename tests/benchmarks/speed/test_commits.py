"""Two commits are compared round by round, with an interval that order statistics give."""

import pytest

from benchmarks.speed.commits import compared, interval


def test_ratios_are_of_rounds_not_of_means() -> None:
    rounds = [({"a": 1.0, "b": 0.0}, {"a": 2.0, "b": 1.0}), ({"a": 10.0, "b": 1.0}, {"a": 5.0})]
    assert compared(rounds) == {"a": [2.0, 0.5]}


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Coverage by hand: five, 1 - 2/32 = .938; nine, 1 - 2 * 10/512 = .961, while leaving two
    # out at each end would give .820.
    [(5, 1, 5), (8, 1, 8), (9, 2, 8), (12, 3, 10)],
)
def test_interval_leaves_out_what_chance_allows(count: int, low: int, high: int) -> None:
    values = [float(value) for value in range(count, 0, -1)]
    assert interval(values) == ((count + 1) / 2, low, high)
