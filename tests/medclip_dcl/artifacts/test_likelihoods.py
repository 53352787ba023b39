"""Units of scores: there whole with the keys that are asked, or not at all."""

import pyarrow as pa
import pytest

from medclip_dcl.artifacts.likelihoods import read_unit, write_unit

KEYS = ["a" * 32, "b" * 32]


@pytest.fixture
def unit(tmp_path):
    scores = {"text_key": KEYS, "pll_nats": [-1.5, -0.25], "tokens": [3, 4]}
    write_unit(tmp_path, "unit-0", pa.table(scores))
    return tmp_path / "unit-0.parquet"


def test_a_unit_is_read_back(unit):
    table = read_unit(unit.parent, "unit-0", KEYS)
    assert table is not None
    assert table.to_pydict()["pll_nats"] == [-1.5, -0.25]
    assert [path.name for path in unit.parent.iterdir()] == ["unit-0.parquet"]


def test_a_missing_truncated_flipped_or_foreign_unit_counts_as_none(unit):
    whole = unit.read_bytes()
    assert read_unit(unit.parent, "unit-1", KEYS) is None
    assert read_unit(unit.parent, "unit-0", KEYS[:1]) is None
    unit.write_bytes(whole[:-20])
    assert read_unit(unit.parent, "unit-0", KEYS) is None
    unit.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    assert read_unit(unit.parent, "unit-0", KEYS) is None
