"""Box tables: columns by name, patients by image or path, boxes inside their images."""

from pathlib import Path

import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.records import BoxTable, ImageRecord
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.boxes import read_boxes

HEADER = "dicom_id,h,w,y,x,label_text,category_name,image_width,image_height"


def read(folder: Path, *lines: str, of=("p", 0, 0), **columns: str) -> BoxTable:
    """Read a table about an image of one patient, width and height."""
    subject, width, height = of
    image = ImageRecord("f", "s", subject, "PA", "images/f.jpg", width, height)
    (folder / "b.csv").write_text("\n".join(lines))
    return read_boxes(folder / "b.csv", [image], SourceConfig(box_columns=columns))


def test_columns_are_found_by_name_and_a_box_outside_its_image_is_refused(tmp_path: Path) -> None:
    table = read(tmp_path, HEADER, "f,4,3,2,1,left  base,Pneumonia,50,40")
    assert table.subjects == {"p"}
    (row,) = table.rows
    assert (row["x"], row["y"], row["width"], row["height"]) == (1, 2, 3, 4)
    assert row["phrase"] == "left base"
    for numbers in ("4,60,2,1", "4,3,2,-1", "0,3,2,1", "nan,3,2,1", "x,3,2,1"):
        with pytest.raises(StudyError, match="row 0"):
            read(tmp_path, HEADER, f"f,{numbers},left base,Pneumonia,50,40")


def test_a_path_names_the_patient_where_the_image_is_not_at_hand(tmp_path: Path) -> None:
    rows = [
        f"{name},4,3,2,1,a b,Edema,50,40,files/p10/p10{n}/x" for n, name in ((7, "f"), (8, "g"))
    ]
    table = read(tmp_path, f"{HEADER},path", *rows, of=("107", 0, 0))
    assert (table.subjects, table.unknown, len(table.rows)) == ({"107", "108"}, 1, 1)


def test_other_columns_name_an_image_by_its_path_and_take_its_size(tmp_path: Path) -> None:
    names = {"image_id": "file", "category": "label", "phrase": "label"}
    names |= {"image_width": "", "image_height": ""}  # nobody states the size of an image
    lines = (
        "file,label,x,y,w,h,ok",
        "images/f.jpg,Left Lung,30,2.5,10,20,1",
        "f,Right Lung,1,2,10,20,1",
        "images/g.jpg,Left Lung,900,2,10,20,1",
    )
    table = read(tmp_path, *lines, of=("p", 50, 40), **names)
    left, right = table.rows
    assert (left["image_id"], left["subject_id"], left["phrase"]) == ("f", "p", "Left Lung")
    assert (left["x"], left["y"], left["image_width"], left["image_height"]) == (30, 2.5, 50, 40)
    assert (right["image_id"], right["category"]) == ("f", "Right Lung")
    assert (table.subjects, table.unknown) == ({"p"}, 1)
    for width, height, reason in ((0, 0, "size"), (35, 40, "inside its image")):
        with pytest.raises(StudyError, match=f"row 0.*{reason}"):
            read(tmp_path, *lines, of=("p", width, height), **names)


def test_where_no_image_joins_the_message_says_what_would(tmp_path: Path) -> None:
    """Ids are stripped; where all of a table are of other images, nothing is wrong."""
    box = "4,3,2,1,left base,Pneumonia,50,40"
    for name, count in ((" f ", 1), ("other", 0)):
        assert len(read(tmp_path, HEADER, f"{name},{box}").rows) == count
    with pytest.raises(StudyError, match=r"none of the 1 boxes .* 1 of 1 would be found but for"):
        read(tmp_path, HEADER, f"F,{box}")
