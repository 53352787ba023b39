"""Columns of a table that nobody has mapped: found by names and contents, or refused in words."""

from pathlib import Path

import pytest

from medclip_dcl.errors import ConfigError, StudyError
from pipelines.column_guesses import TableGuess, guess_table

REPORT = "The heart is enlarged and there is no effusion."
GERMAN = "Kein Erguss. Herz normal groß, Lunge frei belüftet."


def table(
    folder: Path, header: str, row: str, *, rows: int = 8, files: str = "", encoding: str = "utf8"
) -> Path:
    """Write a table whose rows have their number in the place of `#`, and files of that name."""
    lines = [header, *(row.replace("#", str(number)) for number in range(rows))]
    path = folder / "studies.csv"
    path.write_bytes("\n".join(lines).encode(encoding))
    for number in range(rows if files else 0):
        file = folder / files.replace("#", str(number))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return path


def guess(path: Path, **given: str) -> TableGuess:
    return guess_table(path, None, given)


def test_english_names_next_to_the_images(tmp_path: Path) -> None:
    header = "dicom_path,PatientID,StudyInstanceUID,ViewPosition,Split,age,Report,notes"
    row = f'images/#.png,p#,s#,AP supine,val,50,"{REPORT}","{REPORT} {REPORT} #"'
    found = guess(table(tmp_path, header, row, files="images/#.png"))
    assert found.columns == {
        "subject_id": "PatientID", "study_id": "StudyInstanceUID", "path": "dicom_path",
        "report": "Report", "view": "ViewPosition", "split": "Split",
    }  # fmt: skip
    assert (found.root, found.prefix_strip) == (tmp_path, "")
    assert (found.separator, found.encoding, found.images_there) == (",", "", 1)
    assert (found.rows, found.patients, found.studies) == (8, 8, 8)
    assert found.split_sizes == {"validate": 8}
    assert found.frontal_views == ("AP SUPINE",)
    assert found.is_english


def test_a_german_export_of_excel(tmp_path: Path) -> None:
    row = f"#;Pat#;{GERMAN}"
    path = table(tmp_path, "Bild;Patienten-Nr;Befund", row, files="scans/#.jpg", encoding="cp1252")
    found = guess(path)
    assert found.columns == {
        "subject_id": "Patienten-Nr", "path": "{Bild}.jpg", "report": "Befund"
    }  # fmt: skip
    assert (found.separator, found.encoding) == (";", "cp1252")
    assert found.root == tmp_path / "scans"
    assert not found.is_english


def test_paths_of_another_machine_lose_what_is_not_here(tmp_path: Path) -> None:
    row = f'/mnt/theirs/data/p1/#.png,1,"{REPORT}"'
    found = guess(table(tmp_path, "file,patient,text", row, files="p1/#.png"))
    assert (found.root, found.prefix_strip) == (tmp_path, "/mnt/theirs/data/")


def test_a_folder_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    path = table(tmp_path / "tables", "file,patient,text", f'#.png,1,"{REPORT}"')
    for number in range(6):
        file = tmp_path / f"far/off/{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    with pytest.raises(StudyError, match=r"no column .* names images that are there; .* --images"):
        guess(path)
    found = guess_table(path, tmp_path / "far/off")
    assert (found.root, found.images_there) == (tmp_path / "far/off", 6 / 8)


def test_labels_are_columns_of_codes_or_a_column_that_lists_them(tmp_path: Path) -> None:
    head, start = "file,patient,text", f'#.png,1,"{REPORT}"'
    coded = table(
        tmp_path, f"{head},Edema,Effusion,Fracture", f"{start},1,-1.0,many", files="#.png"
    )
    assert guess(coded).labels == {"Edema": "Edema", "Pleural Effusion": "Effusion"}
    listed = table(tmp_path, f"{head},Finding Labels,age", f"{start},Edema|Effusion,4")
    assert guess(listed).labels == "Finding Labels"
    assert guess(table(tmp_path, f"{head},age", f"{start},4")).labels == ""


def test_sections_go_before_the_report_and_long_texts_before_nothing(tmp_path: Path) -> None:
    row = f'#.png,1,"{REPORT}","{REPORT}","{REPORT}"'
    found = guess(table(tmp_path, "file,pid,report,findings,impression", row, files="#.png"))
    assert {"report", "findings", "impression"} & set(found.columns) == {"findings", "impression"}
    row = f'#.png,1,"short words # here now","{REPORT} #"'
    assert guess(table(tmp_path, "file,pid,a,b", row)).columns["report"] == "b"


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    row = f'#.png,1,x#,"{REPORT}","{GERMAN} #"'
    path = table(tmp_path, "file,patient,site,report,befund", row, files="#.png")
    found = guess(path, subject_id="site", report="befund")
    assert (found.columns["subject_id"], found.columns["report"]) == ("site", "befund")
    with pytest.raises(ConfigError, match=r"no column \['nosuch'\]"):
        guess(path, report="nosuch")
    with pytest.raises(ConfigError, match=r"\['reprt'\] are no roles"):
        guess(path, reprt="befund")


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("0.png,1,x", f'#.png,1,"{REPORT}"', "first row of table .* seems to be data"),
        ("file,patient,age", "#.png,1,40", "no column of table .* holds reports"),
        ("file,patient,text", rf'scans\#.png,1,"{REPORT}"', "'file' have backslashes"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_a_remedy(
    tmp_path: Path, header: str, row: str, words: str
) -> None:
    path = table(tmp_path, header, row, files="#.png")
    with pytest.raises(StudyError, match=words):
        guess(path)
