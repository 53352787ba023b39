"""A table has the columns that were declared, and a damaged page is noticed."""

from pathlib import Path

import pyarrow as pa
import pytest

from medclip_dcl.core import tables
from medclip_dcl.core.errors import ArtifactCorrupt
from medclip_dcl.core.files import sha256_file

FORM = tables.TableFormat(
    "numbers.parquet",
    (
        tables.Column("id", pa.string(), "name"),
        tables.Column("value", pa.float64(), "number, metres"),
    ),
)
ROWS = [{"id": f"row{number}", "value": float(number)} for number in range(50)]


def test_rows_come_back_in_order_and_other_columns_are_refused(tmp_path):
    tables.write_table(tmp_path, FORM, ROWS)
    assert tables.read_table(tmp_path, FORM).to_pylist() == ROWS
    assert tables.read_table(tmp_path, FORM, ["value"]).column_names == ["value"]
    tables.write_table(tmp_path, tables.TableFormat(FORM.file, FORM.columns[:1]), [{"id": "a"}])
    with pytest.raises(ArtifactCorrupt, match="other columns"):
        tables.read_table(tmp_path, FORM)


@pytest.mark.parametrize("row", [{"id": "a"}, {"id": "a", "value": 1.0, "more": 2}])
def test_row_with_other_columns_is_refused(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly the columns"):
        tables.write_table(tmp_path, FORM, [row])


def test_no_flipped_byte_passes_in_silence(tmp_path: Path) -> None:
    path = tables.write_table(tmp_path, FORM, ROWS)
    good = path.read_bytes()
    silent = 0
    for position in range(4, len(good), 7):
        data = bytearray(good)
        data[position] ^= 0x20
        path.write_bytes(bytes(data))
        try:
            silent += tables.read_table(tmp_path, FORM).to_pylist() != ROWS
        except ArtifactCorrupt:
            continue
    assert silent == 0


def test_parts_give_the_bytes_of_the_whole_and_cut_no_study(tmp_path, monkeypatch):
    form = tables.TableFormat("said.parquet", (tables.Column("study", pa.string(), ""),))
    whole = pa.table({"study": [f"s{row // 3}" for row in range(20)]})
    monkeypatch.setattr(tables, "_GROUP_ROWS", 4)
    digests = []
    for size in (1, 7, 20):
        with tables.TableWriter(tmp_path, form) as writer:
            for start in range(0, 20, size):
                writer.add(whole.slice(start, size))
        digests.append(sha256_file(tmp_path / form.file))
    assert len(set(digests)) == 1
    parts = list(tables.read_in_parts(tmp_path, form, ["study"], whole="study"))
    assert pa.concat_tables(parts).equals(whole)
    ends = [(len(part), part["study"][-1].as_py()) for part in parts]
    assert ends == [(3, "s0"), (3, "s1"), (3, "s2"), (6, "s4"), (3, "s5"), (2, "s6")]
