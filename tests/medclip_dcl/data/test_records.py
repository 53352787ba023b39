"""Records of a source: the row that an id comes from, and the folder of its reports."""

from pathlib import Path

from medclip_dcl.data.records import RawStudies, TableRows


def test_an_id_is_found_in_its_file_and_a_repeated_one_where_it_stands_last() -> None:
    rows = TableRows(files=[(0, "a.csv"), (3, "b.csv")])  # a.csv has 3 rows
    for name, row in [("first", 0), ("second", 2), ("third", 3), ("second", 4), ("second", 5)]:
        rows.note(name, row)
    assert rows.find("first") == ("a.csv", 0)
    assert rows.find("third") == ("b.csv", 0)
    assert rows.find("second") == ("a.csv", 2)
    assert rows.find("second", repeated=True) == ("b.csv", 2)
    assert rows.find("first", repeated=True) == rows.find("nobody") == ("", None)


def test_reports_lie_below_the_root_unless_they_have_a_folder(tmp_path: Path) -> None:
    assert RawStudies(tmp_path).reports_root == tmp_path
    assert RawStudies(tmp_path, reports_folder=tmp_path / "b").reports_root == tmp_path / "b"
