from pathlib import Path

import pytest

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data.demographics import age_band, read_demographics, sex_of

IMAGES = [
    {"image_id": f"i{number}", "study_id": f"s{number}", "subject_id": subject}
    for number, subject in enumerate(("p1", "p1", "p2", "p3"))
]


@pytest.mark.parametrize(
    ("text", "band"),
    [
        *(("17", "under 18"), ("18", "18 to 39"), ("39.9", "18 to 39"), ("80", "80 and over")),
        *(
            ("045Y", "40 to 59"),
            ("008M", "under 18"),
            ("300M", "18 to 39"),
            ("", ""),
            ("adult", ""),
            ("-3", ""),
        ),
    ],
)
def test_an_age_falls_into_its_band(text: str, band: str) -> None:
    assert age_band(text) == band


def test_a_sex_is_read_however_it_is_written() -> None:
    assert [sex_of(text) for text in ("F", "m", " Female", "MALE", "O", "", "unknown")] == [
        *("female", "male", "female", "male", "", "", "")
    ]


def test_every_image_gets_what_the_table_says_of_its_patient(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    table.write_text("subject_id,gender,anchor_age\np1,F,71\np2,M,\np1,M,20\n")
    assert read_demographics(table, IMAGES) == {
        "sex": ["female", "female", "male", ""],
        "age": ["60 to 79", "60 to 79", "", ""],
    }


def test_a_table_may_be_about_images(tmp_path: Path) -> None:
    table = tmp_path / "images.csv"
    table.write_text("subject_id,image_id,sex\np1,i2,F\np1,i0,M\n")
    assert read_demographics(table, IMAGES) == {"sex": ["male", "", "female", ""]}


def test_a_table_without_its_columns_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    for columns, error, words in (
        ("subject_id,birth", ConfigError, "neither"),
        ("patient,gender", StudyError, "no column"),
    ):
        table.write_text(f"{columns}\np1,F\n")
        with pytest.raises(error, match=words):
            read_demographics(table, IMAGES)


def test_where_no_patient_joins_the_message_says_what_would(tmp_path: Path) -> None:
    table = tmp_path / "patients.csv"
    for name, sexes in ((" p1 ", ["female", "female", "", ""]), ("p9", [""] * 4)):
        table.write_text(f"subject_id,gender\n{name},F\n")
        assert read_demographics(table, IMAGES) == {"sex": sexes}
    table.write_text("subject_id,gender\nP1,F\nP2,M\n")
    with pytest.raises(StudyError, match="by subject_id; 2 of 3 would be found but for case"):
        read_demographics(table, IMAGES)
