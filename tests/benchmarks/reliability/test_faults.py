"""The trials harm what they say, and know a clear error from a trace."""

import random
from pathlib import Path

import pytest

from benchmarks.reliability import faults
from benchmarks.reliability.faults import CORRUPTIONS, EVERY, _harmed, _is_clear


def test_harmed_bytes_differ_in_one_bit_or_end_early() -> None:
    whole, draw = bytes(range(200)), random.Random(0)
    harmed = [_harmed(whole, draw) for _ in range(300)]
    assert whole not in harmed
    cut = [data for data in harmed if len(data) < len(whole)]
    assert 50 < len(cut) < 150
    assert all(whole.startswith(data) for data in cut)
    for data in set(harmed) - set(cut):
        bits = sum((a ^ b).bit_count() for a, b in zip(data, whole, strict=True))
        assert bits == 1


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (4, "train: x could not be written: No space left\n", True),
        (1, "train: x could not be written: No space left\n", False),
        (4, "Traceback (most recent call last)\ntrain: x could not be written: y\n", False),
        (4, "train: something else\n", False),
    ],
)
def test_an_error_is_clear_when_one_line_says_it(
    tmp_path: Path, code: int, text: str, expected: bool
) -> None:
    (tmp_path / "log").write_text(text)
    assert _is_clear("train", code, tmp_path / "log") is expected


def test_the_long_tier_tries_every_write_and_five_hundred_corruptions() -> None:
    assert EVERY["long"] == 1
    assert CORRUPTIONS["long"] == 500
    assert CORRUPTIONS["quick"] * 10 == CORRUPTIONS["long"]
    assert faults.SIZES["long"] > faults.SIZES["quick"]
