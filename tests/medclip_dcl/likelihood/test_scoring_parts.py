"""Parts of scores: there whole or not at all."""

import pyarrow as pa
import pytest

from medclip_dcl.likelihood.scoring import read_parts, write_part

KEYS = ["a" * 32, "b" * 32]


def rows(*keys):
    count = len(keys)
    columns = {"text_key": keys, "first": [0] * count, "last": [4] * count}
    return pa.table({**columns, "pll_nats": [-1.5] * count})


def parts(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_are_read_back_and_leave_nothing_else(tmp_path):
    for key in KEYS:
        write_part(tmp_path, rows(key))
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
        write_part(tmp_path, rows(key))
    target = next(tmp_path.iterdir())
    target.write_bytes(harm(target.read_bytes()))
    table, damaged = read_parts(tmp_path)
    assert (table.num_rows, damaged) == (1, 1)
