"""Box tables: columns by name, patients by image or path, boxes inside their images."""

import gzip
import json
from pathlib import Path

import pytest

from medclip_dcl.data.records import ImageRecord
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import StudyError
from medclip_sources.boxes import read_boxes

HEADER = "dicom_id,h,w,y,x,label_text,category_name,image_width,image_height\n"

LUNGS = {
    "image_id": "file",
    "category": "label",
    "phrase": "label",
    "image_width": "",
    "image_height": "",
}
"""A table of boxes with names alone, which states no size of an image."""


def image(width: int = 0, height: int = 0, subject: str = "p") -> ImageRecord:
    return ImageRecord("f", "s", subject, "PA", "images/f.jpg", width, height)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(HEADER + "f,4,3,2,1,left  base,Pneumonia,50,40\n")
    table = read_boxes(tmp_path / "b.csv", [image()])
    assert table.subjects == {"p"}
    (row,) = table.rows
    assert (row["x"], row["y"], row["width"], row["height"]) == (1, 2, 3, 4)
    assert row["phrase"] == "left base"


@pytest.mark.parametrize("numbers", ["4,60,2,1", "4,3,2,-1", "0,3,2,1", "nan,3,2,1", "x,3,2,1"])
def test_box_outside_its_image_is_refused(tmp_path: Path, numbers: str) -> None:
    (tmp_path / "b.csv").write_text(HEADER + f"f,{numbers},left base,Pneumonia,50,40\n")
    with pytest.raises(StudyError, match="row 0"):
        read_boxes(tmp_path / "b.csv", [image()])


def coco(**changes: object) -> dict[str, object]:
    image = {
        "id": 3,
        "file_name": "f.jpg",
        "width": 50,
        "height": 40,
        "path": "files/p10/p107/f.jpg",
    }
    box = {"id": 1, "image_id": 3, "category_id": 2, "bbox": [1, 2, 3, 4], "label_text": ["a  b"]}
    return {
        "info": {},
        "categories": [{"id": 2, "name": "Edema"}],
        "images": [image, image | {"id": 4, "file_name": "g.jpg", "path": "files/p10/p108/g"}],
        "annotations": [box | changes, box | {"image_id": 4}],
    }


@pytest.mark.parametrize("name", ["b.json", "b.json.gz"])
def test_json_form_gives_what_the_table_gives(tmp_path: Path, name: str) -> None:
    data = json.dumps(coco()).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (tmp_path / "b.csv").write_text(
        "dicom_id,path,h,w,y,x,label_text,category_name,image_width,image_height\n"
        "f,files/p10/p107/f.jpg,4,3,2,1,a b,Edema,50,40\n"
        "g,files/p10/p108/g.jpg,4,3,2,1,a b,Edema,50,40\n"
    )
    table = read_boxes(tmp_path / name, [image(subject="107")])
    assert table == read_boxes(tmp_path / "b.csv", [image(subject="107")])
    assert (table.subjects, table.unknown, len(table.rows)) == ({"107", "108"}, 1, 1)


@pytest.mark.parametrize(
    "changes",
    [{"image_id": 9}, {"bbox": [1, 2, 3]}, {"bbox": [1, 2, 60, 4]}, {"bbox": None}, {"bbox": "x"}],
)
def test_malformed_json_is_refused_without_its_words(tmp_path: Path, changes: object) -> None:
    (tmp_path / "b.json").write_text(json.dumps(coco(label_text="secret", **changes)))
    with pytest.raises(StudyError) as caught:
        read_boxes(tmp_path / "b.json", [image()])
    assert "secret" not in str(caught.value)


def test_other_columns_name_an_image_by_its_path_and_take_its_size(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        "file,label,x,y,w,h,ok\nimages/f.jpg,Left Lung,30,2.5,10,20,1\nf,Right Lung,1,2,10,20,1\n"
        "images/g.jpg,Left Lung,900,2,10,20,1\n"
    )
    table = read_boxes(tmp_path / "b.csv", [image(50, 40)], SourceConfig(box_columns=LUNGS))
    left, right = table.rows
    assert (left["image_id"], left["subject_id"], left["phrase"]) == ("f", "p", "Left Lung")
    assert (left["x"], left["y"], left["image_width"], left["image_height"]) == (30, 2.5, 50, 40)
    assert (right["image_id"], right["category"]) == ("f", "Right Lung")
    assert (table.subjects, table.unknown) == ({"p"}, 1)


@pytest.mark.parametrize(("sides", "reason"), [((0, 0), "size"), ((35, 40), "inside its image")])
def test_box_without_an_image_that_holds_it_is_refused(
    tmp_path: Path, sides: tuple[int, int], reason: str
) -> None:
    (tmp_path / "b.csv").write_text("file,label,x,y,w,h\nimages/f.jpg,Left Lung,30,2,10,20\n")
    with pytest.raises(StudyError, match=f"row 0.*{reason}"):
        read_boxes(tmp_path / "b.csv", [image(*sides)], SourceConfig(box_columns=LUNGS))
