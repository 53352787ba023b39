"""Settings of a source: the page of inputs says what readers read, and a lost table is named."""

import re
from pathlib import Path

import pytest
import yaml

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.plugins import SOURCES
from medclip_dcl.data.dicom import metadata
from medclip_dcl.data.source_settings import find_file
from medclip_dcl.data.sources.boxes import MS_CXR_COLUMNS
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.house.tree import ROOT

INPUTS = yaml.safe_load((ROOT / "docs/inputs.yaml").read_text(encoding="utf-8"))


def names_of(kind: str, file: str) -> set[str]:
    """What stands in code type in the description of one input."""
    (row,) = (row for row in INPUTS if row["kind"] == kind and file in row["file"])
    return set(re.findall(r"`([^`]+)`", row["read"]))


def test_the_page_names_every_kind_of_source_and_every_column_and_tag_that_readers_require():
    kinds = set(SOURCES.own)
    assert {row["kind"] for row in INPUTS} == kinds | {"any", "dicomweb"}  # one of hospital/
    assert all(callable(SOURCES[kind]) for kind in kinds)
    assert names_of("mimic_cxr", "chexpert") == {"study_id", *LABELS}
    assert names_of("dicom", "any file") == {*metadata.TAGS.values()}
    assert names_of("any", "source.boxes") == {*MS_CXR_COLUMNS.values(), "path"}


def test_a_missing_table_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"looked for studies.csv and {tmp_path}/studies.csv;"):
        find_file("table", "studies.csv", tmp_path, Path)
    with pytest.raises(StudyError, match=r"labels names no file.*root is not a folder: .*/nowhere"):
        find_file("labels", "l.csv", tmp_path / "nowhere", Path)
