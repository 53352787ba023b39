"""Open-i: both forms give the same images, matched by their numbers; views come from the list."""

import json
import os
from pathlib import Path

import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.selection import select
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.open_i import image_name, read_open_i
from tests.support.public_sets import (
    write_image,
    write_open_i_csv,
    write_open_i_projections,
    write_open_i_xml,
)

SETTINGS = SourceConfig(kind="open_i")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("CXR1_1_IM-0001-3001", "1_IM-0001-3001"),
        ("CXR1_1_IM-0001-3001.png", "1_IM-0001-3001"),
        ("1_IM-0001-3001.dcm.png", "1_IM-0001-3001"),
        ("CXR3_IM-1384-1001", "3_IM-1384-1001"),
        ("3_IM-1384-1001.dcm.png", "3_IM-1384-1001"),
        ("5_IM-2117-1003002.dcm.png", "5_IM-2117-1003002"),
        ("CXR3999_IM-2049-1001-0001", "3999_IM-2049-1001-0001"),
        ("IM-0001-3001", ""),
        ("../CXR1_IM-0001", ""),
        ("", ""),
    ],
)
def test_images_have_one_name_in_all_lists(text: str, name: str) -> None:
    assert image_name(text) == name


def test_xml_reports_and_images_come_through(tmp_path: Path) -> None:
    write_open_i_xml(tmp_path)
    write_open_i_projections(tmp_path)
    raw = read_open_i(tmp_path)
    assert [study.study_id for study in raw.studies] == ["CXR1", "CXR2", "CXR10"]
    found = select(raw, SETTINGS)
    (image,) = found.images
    assert (image.image_id, image.study_id) == ("1_IM-0001-4001", "CXR1")
    assert (image.view, image.path) == ("FRONTAL", "NLMCXR_png/CXR1_1_IM-0001-4001.png")
    assert found.texts.keys() == {"CXR1"}
    assert found.texts["CXR1"].impression == "Normal chest x-XXXX."
    assert {tuple(item) for item in found.rejects} == {
        ("CXR3", "bad_report"),
        ("CXR4", "bad_report"),
        ("1_IM-0001-3001", "lateral"),
        ("CXR2", "empty_report"),
        ("2_IM-0652-1001", "no_report"),
    }


def test_a_report_that_is_no_file_below_the_root_is_not_read(tmp_path: Path) -> None:
    write_open_i_xml(tmp_path / "root")
    report = next((tmp_path / "root").rglob("*.xml"))
    elsewhere = report.rename(tmp_path / "elsewhere.xml")
    report.with_name("77.xml").symlink_to(elsewhere)
    report.with_name("78.xml").symlink_to("78.xml")
    os.mkfifo(report.with_name("79.xml"))
    rejects = {tuple(item) for item in read_open_i(tmp_path / "root").rejects}
    assert rejects >= {(f"CXR{number}", "bad_report") for number in (77, 78, 79)}


def test_csv_form_gives_the_same_images(tmp_path: Path) -> None:
    write_open_i_csv(tmp_path)
    found = select(read_open_i(tmp_path), SETTINGS)
    (image,) = found.images
    assert image.image_id == "1_IM-0001-4001"
    assert image.path == "images/images_normalized/1_IM-0001-4001.dcm.png"
    assert found.texts["CXR1"].findings == "Clear, no\nchange."
    assert found.subjects == {"CXR1": "CXR1"}


def test_rows_of_json_name_their_images_and_views(tmp_path: Path) -> None:
    names = {"Frontal": "1_IM-0001-4001", "Lateral": "1_IM-0001-3001"}
    shown = [{"filename": f"{name}.dcm.png", "projection": view} for view, name in names.items()]
    row = {"uid": 1, "findings": "Clear.", "impression": None, "mesh": ["Cardiomegaly/mild"]}
    other = {"uid": 2, "findings": "No image.", "impression": "", "mesh": []}
    rows = [row | {"images": shown}, other | {"images": []}]
    (tmp_path / "reports.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in names.values():
        write_image(tmp_path / f"images/{name}.dcm.jpg")
    raw = read_open_i(tmp_path)
    (image,) = select(raw, SETTINGS).images
    assert (image.image_id, image.view) == ("1_IM-0001-4001", "FRONTAL")
    assert image.path == "images/1_IM-0001-4001.dcm.jpg"
    assert [study.study_id for study in raw.studies] == ["CXR1", "CXR2"]
    labels = raw.labels.select(["study_id", "Cardiomegaly"]).to_pylist()
    assert labels == [{"study_id": "CXR1", "Cardiomegaly": 1}]
    for images in ([{"name": "a"}], ["1_IM-0001-4001.png"]):
        (tmp_path / "reports.jsonl").write_text(json.dumps(other | {"images": images}))
        with pytest.raises(StudyError, match="filename and projection"):
            read_open_i(tmp_path)
