"""Box tables: columns by name, patients by image or path, boxes inside their images."""

from pathlib import Path

import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.records import ImageRecord
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.boxes import read_boxes

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


def test_columns_are_found_by_name_and_a_box_outside_its_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(HEADER + "f,4,3,2,1,left  base,Pneumonia,50,40\n")
    table = read_boxes(tmp_path / "b.csv", [image()])
    assert table.subjects == {"p"}
    (row,) = table.rows
    assert (row["x"], row["y"], row["width"], row["height"]) == (1, 2, 3, 4)
    assert row["phrase"] == "left base"
    for numbers in ("4,60,2,1", "4,3,2,-1", "0,3,2,1", "nan,3,2,1", "x,3,2,1"):
        (tmp_path / "b.csv").write_text(HEADER + f"f,{numbers},left base,Pneumonia,50,40\n")
        with pytest.raises(StudyError, match="row 0"):
            read_boxes(tmp_path / "b.csv", [image()])


def test_a_path_names_the_patient_where_the_image_is_not_at_hand(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(
        "dicom_id,path,h,w,y,x,label_text,category_name,image_width,image_height\n"
        "f,files/p10/p107/f.jpg,4,3,2,1,a b,Edema,50,40\n"
        "g,files/p10/p108/g.jpg,4,3,2,1,a b,Edema,50,40\n"
    )
    table = read_boxes(tmp_path / "b.csv", [image(subject="107")])
    assert (table.subjects, table.unknown, len(table.rows)) == ({"107", "108"}, 1, 1)


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
    for sides, reason in (((0, 0), "size"), ((35, 40), "inside its image")):
        with pytest.raises(StudyError, match=f"row 0.*{reason}"):
            read_boxes(tmp_path / "b.csv", [image(*sides)], SourceConfig(box_columns=LUNGS))


def test_where_no_image_joins_the_message_says_what_would(tmp_path: Path) -> None:
    """Ids are stripped; where all of a table are of other images, nothing is wrong."""
    for name, count in ((" f ", 1), ("other", 0)):
        (tmp_path / "b.csv").write_text(HEADER + f"{name},4,3,2,1,left base,Pneumonia,50,40\n")
        assert len(read_boxes(tmp_path / "b.csv", [image()]).rows) == count
    (tmp_path / "b.csv").write_text(HEADER + "F,4,3,2,1,left base,Pneumonia,50,40\n")
    with pytest.raises(StudyError, match=r"none of the 1 boxes .* 1 of 1 would be found but for"):
        read_boxes(tmp_path / "b.csv", [image()])
