"""Box tables: columns by name, patients by film or path, boxes inside their films."""

from pathlib import Path

import pytest

from medclip_dcl.errors import StudyError
from medclip_dcl.studies.boxes import read_boxes

HEADER = "dicom_id,h,w,y,x,label_text,category_name,image_width,image_height\n"


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(HEADER + "f,4,3,2,1,left  base,Pneumonia,50,40\n")
    table = read_boxes(tmp_path / "b.csv", {"f": "p"})
    assert table.subjects == {"p"}
    (row,) = table.rows
    assert (row["x"], row["y"], row["width"], row["height"]) == (1, 2, 3, 4)
    assert row["phrase"] == "left base"


@pytest.mark.parametrize("numbers", ["4,60,2,1", "4,3,2,-1", "0,3,2,1", "nan,3,2,1", "x,3,2,1"])
def test_box_outside_its_film_is_refused(tmp_path: Path, numbers: str) -> None:
    (tmp_path / "b.csv").write_text(HEADER + f"f,{numbers},left base,Pneumonia,50,40\n")
    with pytest.raises(StudyError, match="row 0"):
        read_boxes(tmp_path / "b.csv", {"f": "p"})
