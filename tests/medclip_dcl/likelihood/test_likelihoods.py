"""Parts of scores: there whole or not at all, and soon enough."""

import errno
import os

import pyarrow as pa
import pytest

from medclip_dcl.likelihood.scoring import ScoreWriter, read_parts

KEYS = ["a" * 32, "b" * 32]


def rows(*keys):
    count = len(keys)
    columns = {"text_key": keys, "first": [0] * count, "last": [4] * count}
    return pa.table({**columns, "pll_nats": [-1.5] * count})


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.current = 100.0

    def __call__(self) -> float:
        return self.current


def parts(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_are_read_back_and_leave_nothing_else(tmp_path):
    for key in KEYS:
        ScoreWriter(tmp_path, 0).add(rows(key))
    table, damaged = read_parts(tmp_path)
    assert sorted(table["text_key"].to_pylist()) == KEYS
    assert table["pll_nats"].to_pylist() == [-1.5, -1.5]
    assert (len(parts(tmp_path)), damaged) == (2, 0)
    assert read_parts(tmp_path / "absent")[0].num_rows == 0


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-20], lambda data: b"", lambda data: b"x" * 99]
)
def test_a_damaged_part_is_left_out_and_counted(tmp_path, harm):
    for key in KEYS:
        ScoreWriter(tmp_path, 0).add(rows(key))
    victim = next(tmp_path.iterdir())
    victim.write_bytes(harm(victim.read_bytes()))
    table, damaged = read_parts(tmp_path)
    assert (table.num_rows, damaged) == (1, 1)


@pytest.mark.parametrize(
    ("unit_s", "units", "expected"),
    [(1.0, 40, [14, 28]), (7.0, 8, [14, 28, 42, 56]), (25.0, 3, [25, 50, 75]), (20.0, 1, [20])],
)
def test_scores_wait_no_longer_than_asked_or_than_one_unit_takes(tmp_path, unit_s, units, expected):
    clock = Clock()
    writer = ScoreWriter(tmp_path, 15, clock)
    written = []
    for number in range(units):
        clock.now += unit_s
        before = len(parts(tmp_path))
        writer.add(rows(f"{number:032d}"))
        if len(parts(tmp_path)) > before:
            written.append(clock.now - 100)
    assert written == expected
    writer.flush()
    assert read_parts(tmp_path)[0].num_rows == units


def test_what_could_not_be_written_is_written_by_the_next_flush_and_once(tmp_path, monkeypatch):
    writer = ScoreWriter(tmp_path, 0)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            writer.add(rows(*KEYS))
    assert parts(tmp_path) == []
    writer.flush()
    writer.flush()
    assert sorted(read_parts(tmp_path)[0]["text_key"].to_pylist()) == KEYS
    assert len(parts(tmp_path)) == 1
