"""Settings of a source: the page of inputs says what readers read, and a lost table is named."""

import re
from pathlib import Path
from typing import get_args

import pytest

from medclip_dcl.data.dicom import metadata
from medclip_dcl.data.source_settings import (
    BoxColumn,
    Column,
    SourceConfig,
    find_file,
    relative_to_root,
)
from medclip_dcl.errors import StudyError
from medclip_dcl.plugins import SOURCES
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_sources.boxes import MS_CXR_COLUMNS
from medclip_sources.readers import READERS
from tests.house.tree import ROOT

PAGE = ROOT / "docs/artifacts.md"


def inputs() -> list[list[str]]:
    """The rows of the table of inputs on the page, cell by cell."""
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition("\n## Inputs\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `") or "| any |" in line]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names_of(*heads: str) -> set[str]:
    """What stands in code type in the last cell of the rows that begin so."""
    rows = [row for row in inputs() if any(" | ".join(row).startswith(head) for head in heads)]
    assert len(rows) == len(heads)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row[-1])}


def test_the_page_names_every_kind_of_source() -> None:
    kinds = set(SOURCES.own)
    assert {row[0].strip("`") for row in inputs() if len(row) == 4} == kinds | {"any"}
    assert set(READERS) == kinds


def test_the_page_names_every_column_and_tag_that_readers_require() -> None:
    labels = names_of("`mimic_cxr` | `*-chexpert.csv[.gz]`")
    assert labels == {"study_id", *LABELS}
    assert names_of("`dicom`") == {*metadata.TAGS.values(), "source.modalities"}
    boxes = names_of("any | `source.boxes`, MS-CXR's CSV")
    assert boxes == {*MS_CXR_COLUMNS.values(), "path"}


def test_every_role_of_a_column_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    roles = text.partition("The roles of `source.columns`")[2].partition("\n- **Views.**")[0]
    assert [role for role in get_args(Column) if f"`{role}`" not in roles] == []
    assert set(MS_CXR_COLUMNS) == set(get_args(BoxColumn))


def test_a_missing_table_says_where_it_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "studies.xlsx").touch()
    (tmp_path / "Doe_Jane.dcm").touch()
    with pytest.raises(StudyError) as refused:
        find_file("table", "studies.csv", tmp_path, Path)
    assert f"looked for studies.csv and {tmp_path}/studies.csv; there is studies.xlsx;" in str(
        refused.value
    )
    with pytest.raises(StudyError, match=r"labels names no file.*root is not a folder: .*/nowhere"):
        find_file("labels", "l.csv", tmp_path / "nowhere", Path)


def test_a_path_below_the_root_is_relative_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    relative = relative_to_root(tmp_path / "link", SourceConfig(prefix_strip="../png/"))
    named = ("a.png", f"{tmp_path}/link/a.png", f"{tmp_path}/real/a.png", "../png/a.png")
    assert [relative(path) for path in named] == ["a.png"] * 4
    assert relative("/elsewhere/a.png") == "/elsewhere/a.png"  # refused where it is opened
