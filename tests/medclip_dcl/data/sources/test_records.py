"""What the contract says about inputs is what the readers read; tables become strings."""

import gzip
import json
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.data.boxes import MS_CXR_COLUMNS
from medclip_dcl.data.dicom import metadata, reader
from medclip_dcl.data.manifest import INPUTS, READERS
from medclip_dcl.data.sources.dicom_folder import FILES
from medclip_dcl.data.sources.records import BoxColumn, Column, SourceConfig, read_rows
from medclip_dcl.errors import StudyError

ROWS = [{"id": "007", "text": "one\ntwo"}, {"id": "8", "text": None}]
WANT = {"id": ["007", "8"], "text": ["one\ntwo", ""]}
CSV = 'text,id\n"one\ntwo",007\n,8\n'


def test_headers_of_a_folder_are_those_of_the_contract() -> None:
    assert set(FILES.names) == set(metadata.TAGS.values())


def test_no_tag_that_names_a_person_is_read_beside_the_patients_id() -> None:
    read = {*metadata.TAGS.values(), *reader.PUBLIC_TAGS, *reader.PIXEL_TAGS}
    personal = {name for name in read if name.startswith(("Patient", "Other", "Referring"))}
    assert personal == {"PatientID"}
    assert not {"StudyDescription", "AccessionNumber", "InstitutionName"} & read


def test_every_input_belongs_to_a_setting() -> None:
    kinds = set(SourceConfig.model_fields["kind"].annotation.__args__)
    assert {item.source for item in INPUTS} == kinds | {"source.boxes"}
    assert set(READERS) == kinds
    assert all(item.fields for item in INPUTS)
    assert len({(item.source, item.file) for item in INPUTS}) == len(INPUTS)
    assert any("annotations[].bbox" in item.names for item in INPUTS)


def test_every_role_of_a_column_is_explained() -> None:
    (table,) = (item for item in INPUTS if item.source == "table")
    named = [field.name for field in (*table.fields, *table.optional)]
    assert sorted(named) == sorted(f"source.columns.{role}" for role in get_args(Column))
    assert set(MS_CXR_COLUMNS) == set(get_args(BoxColumn))
    (boxes,) = (item for item in INPUTS if item.file.startswith("MS-CXR's CSV"))
    assert set(boxes.names) == set(MS_CXR_COLUMNS.values())


def test_all_formats_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(CSV)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    lines = "\n".join(json.dumps(row) for row in ROWS)
    (tmp_path / "t.jsonl").write_text(lines)
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "t.parquet")
    for name in ("t.csv", "t.csv.gz", "t.jsonl", "t.parquet"):
        assert read_rows(tmp_path / name, ["id", "text"]) == WANT, name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,text\n1,caf\xe9\n", "cannot be read"),
        (b"id,other\n1,2\n", "no column"),
        (b"", "cannot be read"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "pointer"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(StudyError, match=message):
        read_rows(tmp_path / "t.csv", ["id", "text"])


def test_nested_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": [1, 2]}\n')
    with pytest.raises(StudyError, match="lists"):
        read_rows(tmp_path / "t.jsonl", ["id"])
