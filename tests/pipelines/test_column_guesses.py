"""Columns of a table that nobody has mapped: found by names and contents, or refused in words."""

import json
from pathlib import Path

import pytest

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.files import path_under
from medclip_dcl.data.source_settings import SourceConfig, relative_to_root
from medclip_dcl.text.language import language_warning
from pipelines.init import TableGuess, guess_table, read_view

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
    assert (found.encoding, found.rows, set(found.languages)) == ("", 8, {"en"})
    assert found.views == {"AP SUPINE": "frontal"}
    assert found.unused == {"age": "50", "notes": "8 different values"}


def test_a_german_export_of_excel(tmp_path: Path) -> None:
    row = f"#;Pat#;{GERMAN}"
    path = table(tmp_path, "Bild;Patienten-Nr;Befund", row, files="scans/#.jpg", encoding="cp1252")
    found = guess(path)
    assert found.columns == {
        "subject_id": "Patienten-Nr", "path": "{Bild}.jpg", "report": "Befund"
    }  # fmt: skip
    assert found.encoding == "cp1252"
    assert found.root == tmp_path / "scans"
    assert language_warning(found.languages)


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
    assert guess_table(path, tmp_path / "far/off").root == tmp_path / "far/off"


def test_labels_are_columns_of_codes_or_a_column_that_lists_them(tmp_path: Path) -> None:
    head, start = "file,patient,text", f'#.png,1,"{REPORT}"'
    for codes in ("1,-1.0,many", "0,1,0?", "uncertain,Not mentioned,1?"):
        coded = table(
            tmp_path, f"{head},Edema,Effusion,Fracture", f"{start},{codes}", files="#.png"
        )
        assert guess(coded).labels == {"Edema": "Edema", "Pleural Effusion": "Effusion"}
    listed = table(tmp_path, f"{head},Finding Labels,age", f"{start},Edema|Effusion,4")
    assert guess(listed).labels == "Finding Labels"
    assert guess(table(tmp_path, f"{head},age", f"{start},4")).labels == ""


@pytest.mark.parametrize(
    ("header", "row", "chosen"),
    [
        ("report,findings,impression", f'"{REPORT}","{REPORT}","{REPORT}"',
         {"findings": "findings", "impression": "impression"}),
        ("a,b", f'"short words # here now","{REPORT} #"', {"report": "b"}),
        ("findings,impression", f'"{REPORT}",Normal',
         {"findings": "findings", "impression": "impression"}),
        ("Impression", "Cardiomegaly.", {"impression": "Impression"}),
        ("conclusion,code", "无异常,7", {"impression": "conclusion"}),
        # A section that the report has within it would replace it; one that it lacks is kept.
        ("report,impression", f'"{REPORT} Normal.",Normal.', {"report": "report"}),
        ("report,impression", f'"{REPORT}",Normal.',
         {"findings": "report", "impression": "impression"}),
        ("report,findings", f'reports/s#.txt,"{REPORT}"', {"findings": "findings"}),
        ("findings,narrative", f'Edema|Effusion,"{REPORT}"', {"report": "narrative"}),
    ],
)  # fmt: skip
def test_texts_are_the_sections_or_the_report_however_short(tmp_path, header, row, chosen):
    found = guess(table(tmp_path, f"file,pid,{header}", f"#.png,1,{row}", files="#.png"))
    texts = {role: found.columns.get(role) for role in ("report", "findings", "impression")}
    assert {role: name for role, name in texts.items() if name} == chosen


# As in ieee8023/covid-chestxray-dataset pull 151 (AP Seduto, Mobile), mlmed/torchxrayvision pull 45
# (L, LA), MIMIC-CXR's view codes, DICOM's ViewPosition, PadChest and CheXpert's two columns.
@pytest.mark.parametrize(
    ("shows", "values"),
    [
        ("frontal", "PA, AP, ap supine, Frontal, CHEST PA, Posteroanterior, postero-anterior, "
         "antero posterior, AP_horizontal, p.a., P-A, A/P, (AP) (Mobile) Sitting, "
         "AP Seduto a letto, Thorax p.a. stehend, "
         "Postero-anterior (PA), radiografía frontal, face, SUPINE"),
        ("lateral", "LL, L, LA, Lateral, LLAT, RL, left lateral, CHEST LAT, seitlich, "
         "XTABLE LATERAL, LLD, Lateral Decubitus, profil, RAO, latero-lateral"),
        ("", "0, Portable, PA and lateral, CHEST (PA and LAT), bilateral, R, AP LLD, erect"),
    ],
)  # fmt: skip
def test_views_are_read_by_what_they_mean(shows: str, values: str) -> None:
    assert {value: read_view(value) for value in values.split(", ")} == dict.fromkeys(
        values.split(", "), shows
    )


def test_a_column_of_views_is_found_by_what_it_holds_and_one_unread_is_shown(tmp_path):
    lines = ["file,pid,text,Frontal/Lateral,AP/PA,side,view"]
    views = ("Frontal,AP", "Lateral,", "Frontal,PA", "Lateral,")
    lines += [f'{n}.png,{n},"{REPORT}",{view},L,{n % 2}' for n, view in enumerate(views)]
    path = tmp_path / "chexpert.csv"
    path.write_text("\n".join(lines))
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(b"x")
    found = guess(path)
    assert found.columns["view"] == "Frontal/Lateral"
    assert found.views == {"FRONTAL": "frontal", "LATERAL": "lateral"}
    assert found.unused == {"AP/PA": "AP, PA, 2 blank", "side": "L", "view": "0, 1"}


@pytest.mark.parametrize(
    "written",
    ["/scans/#.png", "ROOT//scans/#.png", "//scans/#.png", "./scans/#.png", "ROOT/scans/#.png",
     "file://ROOT/scans/#.png", "C:/theirs/scans/#.png", "../scans/#.png"],
)  # fmt: skip
def test_a_path_is_there_as_the_run_reads_it(tmp_path: Path, written: str) -> None:
    written = written.replace("ROOT", str(tmp_path))
    found = guess(table(tmp_path, "file,pid,text", f'{written},1,"{REPORT}"', files="scans/#.png"))
    relative = relative_to_root(found.root, SourceConfig(prefix_strip=found.prefix_strip))
    for number in range(8):
        file = path_under(found.root, relative(written.replace("#", str(number))))
        assert file == tmp_path / f"scans/{number}.png"


def test_paths_in_lists_and_fields_of_objects_are_found(tmp_path: Path) -> None:
    table(tmp_path, "", "", files="scans/#.png")
    rows = [
        {"id": f"s{number}", "images": [f"scans/{number}.png"], "report": {"findings": REPORT}}
        for number in range(8)
    ]
    path = tmp_path / "annotation.json"
    path.write_text(json.dumps({"train": rows[:4], "val": rows[4:]}))
    assert guess(path).columns == {
        "study_id": "id", "split": "split", "findings": "report.findings", "image": "images"
    }  # fmt: skip


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
        ("file,file,text", f'#.png,1,"{REPORT}"', "two columns of the name 'file'; rename one"),
        ("file,patient,age", "#.png,1,40", "no column of table .* holds reports"),
        ("file,patient,text", rf'scans\#.png,1,"{REPORT}"', "'file' have backslashes"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_a_remedy(tmp_path, header, row, words):
    path = table(tmp_path, header, row, files="#.png")
    with pytest.raises(StudyError, match=words):
        guess(path)
