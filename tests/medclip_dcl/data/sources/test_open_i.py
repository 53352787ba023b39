"""Open-i: both forms give the same images, matched by their numbers; views come from the list."""

import json
import os
from pathlib import Path

import pytest
from sklearn.metrics import cohen_kappa_score

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.selection import select
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.open_i import image_name, read_headings, read_open_i
from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support import public_sets

SETTINGS = SourceConfig(kind="open_i")


NAMES = {  # of an image, as lists and files have it
    "1_IM-0001-3001": ["CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-3001.png", "1_IM-0001-3001.dcm.png"],
    "3_IM-1384-1001": ["CXR3_IM-1384-1001", "3_IM-1384-1001.dcm.png"],
    "5_IM-2117-1003002": ["5_IM-2117-1003002.dcm.png"],
    "3999_IM-2049-1001-0001": ["CXR3999_IM-2049-1001-0001"],
    "": ["IM-0001-3001", "../CXR1_IM-0001", ""],
}


def test_images_have_one_name_in_all_lists() -> None:
    for name, texts in NAMES.items():
        assert [image_name(text) for text in texts] == [name] * len(texts)


@pytest.mark.parametrize(
    ("headings", "labels"),
    [
        (["normal"], dict.fromkeys(LABELS, 0) | {"No Finding": 1}),
        ([], {}),
        (["No Indexing"], {}),
        (
            ["Cardiomegaly/borderline", "Scoliosis"],
            {"Cardiomegaly": -1, "Edema": 0}
            | dict.fromkeys(["No Finding", "Enlarged Cardiomediastinum"]),
        ),
        (
            ["Pneumonia/upper lobe/left", "Catheters, Indwelling/right"],
            {"Pneumonia": 1, "Support Devices": 1, "No Finding": 0, "Lung Opacity": None},
        ),
        (["Cardiac Shadow/mild/enlarged"], {"Cardiomegaly": 1}),
        (["Cardiac Shadow/left"], {"Cardiomegaly": 0}),
        (["Thickening/lung", "Thickening/pleura/left"], {"Pleural Other": 1}),
        (["Hydropneumothorax"], {"Pneumothorax": 1, "Pleural Effusion": -1}),
    ],
)
def test_headings_are_read_as_labels(headings: list[str], labels: dict[str, int | None]) -> None:
    found = read_headings(headings)
    assert {name: found.get(name) for name in labels} == labels
    assert bool(found) == bool(labels)


@pytest.mark.real_data
def test_open_i_s_headings_agree_with_other_people_s_labels(test_data: Path) -> None:
    """Kappa of each finding with the labels that NegBio's authors made of the same headings."""
    lines = (test_data / "openi/reports.jsonl").read_text(encoding="utf-8").splitlines()
    gold = {f"CXR{row['uid']}": row["gold"] for row in map(json.loads, lines)}
    ours = read_open_i(test_data / "openi").labels.to_pylist()
    assert len(ours) > 2300
    names = {"Effusion": "Pleural Effusion", "normal": "No Finding"}
    for theirs in ("Atelectasis", "Cardiomegaly", "Edema", "Pneumothorax", *names):
        finding = names.get(theirs, theirs)
        known = [row for row in ours if row[finding] in {0, 1}]
        codes = [[row[finding] for row in known], [gold[row["study_id"]][theirs] for row in known]]
        assert cohen_kappa_score(*codes) > 0.85, finding


def test_xml_reports_and_images_come_through(tmp_path: Path) -> None:
    public_sets.write_open_i_xml(tmp_path)
    public_sets.write_open_i_projections(tmp_path)
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
    public_sets.write_open_i_xml(tmp_path / "root")
    report = next((tmp_path / "root").rglob("*.xml"))
    elsewhere = report.rename(tmp_path / "elsewhere.xml")
    report.with_name("77.xml").symlink_to(elsewhere)
    report.with_name("78.xml").symlink_to("78.xml")
    os.mkfifo(report.with_name("79.xml"))
    rejects = {tuple(item) for item in read_open_i(tmp_path / "root").rejects}
    assert rejects >= {(f"CXR{number}", "bad_report") for number in (77, 78, 79)}


def test_csv_form_gives_the_same_images(tmp_path: Path) -> None:
    public_sets.write_open_i_csv(tmp_path)
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
        public_sets.write_image(tmp_path / f"images/{name}.dcm.jpg")
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
