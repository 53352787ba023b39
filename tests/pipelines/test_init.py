"""A config for one's own table: its columns are guessed, shown and tried."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.files import path_under
from medclip_dcl.data.source_settings import SourceConfig, relative_to_root
from medclip_dcl.text.language import language_warning
from pipelines.__main__ import main
from pipelines.config import Config, load_config
from pipelines.init import TableGuess, guess_table, read_view
from tests.support.dicom import dicom_bytes

REPORT = "The heart is enlarged and there is no effusion."
GERMAN = "Kein Erguss. Herz normal groß, Lunge frei belüftet."


def table(
    folder: Path, header: str, *rows: str, count: int = 8, files: str = "", encoding: str = "utf8"
) -> Path:
    """Write a table: `rows` in turn, their number in the place of `#`; and files so named."""
    lines = [rows[number % len(rows)].replace("#", str(number)) for number in range(count)]
    path = folder / "studies.csv"
    path.write_bytes("\n".join([header, *lines]).encode(encoding))
    for number in range(count if files else 0):
        file = folder / files.replace("#", str(number))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    return path


def guess(path: Path, **given: str) -> TableGuess:
    return guess_table(path, None, given)


def test_english_names_next_to_the_images(tmp_path: Path) -> None:
    header = "dicom_path,PatientID,StudyInstanceUID,ViewPosition,Split,age,Report,notes"
    row = f'images/#.png,p#,s#,AP supine,val,50,"{REPORT}","{REPORT} {REPORT} #"'
    guessed = guess(table(tmp_path, header, row, files="images/#.png"))
    assert guessed.columns == {
        "subject_id": "PatientID", "study_id": "StudyInstanceUID", "path": "dicom_path",
        "report": "Report", "view": "ViewPosition", "split": "Split",
    }  # fmt: skip
    assert (guessed.root, guessed.prefix_strip) == (tmp_path, "")
    assert (guessed.encoding, guessed.rows, set(guessed.languages)) == ("", 8, {"en"})
    assert guessed.views == {"AP SUPINE": "frontal"}
    assert guessed.unused == {"age": "50", "notes": "8 different values"}


def test_a_german_export_of_excel(tmp_path: Path) -> None:
    header, row = "Bild;Patienten-Nr;Befund", f"#;Pat#;{GERMAN}"
    guessed = guess(table(tmp_path, header, row, files="scans/#.jpg", encoding="cp1252"))
    assert guessed.columns == {
        "subject_id": "Patienten-Nr", "path": "{Bild}.jpg", "report": "Befund"
    }  # fmt: skip
    assert guessed.encoding == "cp1252"
    assert guessed.root == tmp_path / "scans"
    assert language_warning(guessed.languages)


def test_a_folder_elsewhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    row = f'#.png,1,"{REPORT}"'
    path = table(tmp_path / "tables", "file,patient,text", row, files="../far/off/#.png")
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
    guessed = guess(table(tmp_path, f"file,pid,{header}", f"#.png,1,{row}", files="#.png"))
    texts = {role: guessed.columns.get(role) for role in ("report", "findings", "impression")}
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
    for value in values.split(", "):
        assert read_view(value) == shows, value


def test_a_column_of_views_is_found_by_what_it_holds_and_one_unread_is_shown(tmp_path):
    views = ("Frontal,AP,L,0", "Lateral,,L,1", "Frontal,PA,L,0", "Lateral,,L,1")
    rows = [f'#.png,#,"{REPORT}",{view}' for view in views]
    header = "file,pid,text,Frontal/Lateral,AP/PA,side,view"
    guessed = guess(table(tmp_path, header, *rows, count=4, files="#.png"))
    assert guessed.columns["view"] == "Frontal/Lateral"
    assert guessed.views == {"FRONTAL": "frontal", "LATERAL": "lateral"}
    assert guessed.unused == {"AP/PA": "AP, PA, 2 blank", "side": "L", "view": "0, 1"}


@pytest.mark.parametrize(
    "written",
    ["/scans/#.png", "ROOT//scans/#.png", "//scans/#.png", "./scans/#.png", "ROOT/scans/#.png",
     "file://ROOT/scans/#.png", "C:/theirs/scans/#.png", "../scans/#.png",
     "/mnt/theirs/data/scans/#.png"],
)  # fmt: skip
def test_a_path_is_there_as_the_run_reads_it(tmp_path: Path, written: str) -> None:
    written = written.replace("ROOT", str(tmp_path))
    row = f'{written},1,"{REPORT}"'
    guessed = guess(table(tmp_path, "file,pid,text", row, files="scans/#.png"))
    relative = relative_to_root(guessed.root, SourceConfig(prefix_strip=guessed.prefix_strip))
    for number in range(8):
        file = path_under(guessed.root, relative(written.replace("#", str(number))))
        assert file == tmp_path / f"scans/{number}.png"


def test_paths_in_lists_and_fields_of_objects_are_found(tmp_path: Path) -> None:
    table(tmp_path, "", "", files="scans/#.png")
    rows = [
        {
            "id": f"s{number}",
            "images": [f"scans/{number}.png"],
            "report": {"findings": f"{REPORT} {number}"},
        }
        for number in range(8)
    ]
    path = tmp_path / "annotation.json"
    path.write_text(json.dumps({"train": rows[:4], "val": rows[4:]}))
    assert guess(path).columns == {
        "study_id": "id", "split": "split", "findings": "report.findings", "image": "images"
    }  # fmt: skip
    for row in rows:
        del row["id"]
    path.write_text(json.dumps(rows))
    with pytest.raises(StudyError, match=r"names patients or studies; add a column"):
        guess(path)
    path.write_text(json.dumps([row | {"patient": "p1"} for row in rows]))
    assert guess(path).columns["subject_id"] == "patient"


def test_class_labels_are_guessed_by_their_names_as_the_run_reads_them(tmp_path: Path) -> None:
    table(tmp_path, "", "", files="#.png")
    columns = {"file": [f"{number}.png" for number in range(8)], "text": [REPORT] * 8}
    features = {"side": {"_type": "ClassLabel", "names": ["PA", "LATERAL"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    rows = pa.table(columns | {"side": [0, 1] * 4}).replace_schema_metadata(metadata)
    pq.write_table(rows, tmp_path / "t.parquet")
    assert guess(tmp_path / "t.parquet").columns["view"] == "side"


def test_what_is_given_is_taken(tmp_path: Path) -> None:
    row = f'#.png,1,x#,"{REPORT}","{GERMAN} #"'
    path = table(tmp_path, "file,patient,site,report,befund", row, files="#.png")
    columns = guess(path, subject_id="site", report="befund").columns
    assert (columns["subject_id"], columns["report"]) == ("site", "befund")
    with pytest.raises(ConfigError, match=r"no column \['nosuch'\]"):
        guess(path, report="nosuch")
    with pytest.raises(ConfigError, match=r"\['reprt'\] are no roles"):
        guess(path, reprt="befund")


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("0.png,1,x", f'#.png,1,"{REPORT}"', "first row of table .* seems to be data"),
        ("file,file,text", f'#.png,1,"{REPORT}"', r"has column \['file'\] twice; rename one"),
        ("file,patient,age", "#.png,1,40", "no column of table .* holds reports"),
        ("file,patient,text", rf'scans\#.png,1,"{REPORT}"', "'file' have backslashes"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_a_remedy(tmp_path, header, row, words):
    path = table(tmp_path, header, row, files="#.png")
    with pytest.raises(StudyError, match=words):
        guess(path)


# ---- The config


Run = Callable[[Path], tuple[str, Config]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """What the command prints about a table, and the config that it writes."""
    monkeypatch.chdir(tmp_path)

    def init(path: Path) -> tuple[str, Config]:
        assert main(["init", str(path)]) == 0
        return capsys.readouterr().out, load_config(Path("studies.yaml"))

    return init


def sixty(folder: Path, patient: str = "patient", text: str = "The heart is large.") -> Path:
    """Write a table of sixty studies, a patient each."""
    return table(folder, f"file,{patient},words", f"#.png,#,{text} #", count=60, files="#.png")


def test_a_csv_becomes_a_config_that_is_checked_planned_and_run_without_an_edit(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row per image, semicolons, texts of several lines in a column."""
    header = "Patient ID;exam;File;View Position;Report"
    rows = [
        f'p#;s#;files/p#/s#.dcm;{view};"FINDINGS:\n{text}\n\nIMPRESSION:\nStudy # is {text}"'
        for view, text in (("AP", "normal heart size."), ("PA", "a small left effusion."))
    ]
    path = table(tmp_path, header, *rows, count=40, files="files/p#/s#.dcm")
    for number, file in enumerate(tmp_path.rglob("*.dcm")):
        pixels = np.random.default_rng(number).integers(0, 4096, (64, 64), dtype=np.uint16)
        file.write_bytes(dicom_bytes(pixels))
    shown, config = run(path)
    assert "100% of those tried are there" in shown
    following = [line.split() for line in shown.splitlines() if line.startswith("  medclip ")]
    assert [line[1] for line in following] == ["check_data", "plan", "run"]
    assert config.source.columns == {
        "subject_id": "Patient ID", "study_id": "exam", "path": "File", "report": "Report",
        "view": "View Position",
    }  # fmt: skip
    assert config.objective == load_config(Path("demo_cross")).objective  # the recommended one
    words = ["--config", "studies.yaml"]
    assert main(["check_data", *words]) == 0
    assert main(["plan", *following[1][2:], "--seconds", "0"]) == 0
    assert "fault" not in capsys.readouterr().out
    assert main(["build_manifest", *words]) == 0


def test_a_config_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = sixty(tmp_path)
    Path("studies.yaml").write_text("work: mine\n")
    assert main(["init", str(path)]) == 2
    assert Path("studies.yaml").read_text() == "work: mine\n"
    assert main(["init", str(path), "--out", "other.yaml", "--column", "report"]) == 2


def test_studies_without_patients_are_their_own_and_this_is_said(tmp_path, run):
    shown, config = run(sixty(tmp_path, patient="site"))
    assert "the same patient may be in training and in test" in shown
    assert config.source.columns["subject_id"] == "file"
    # 60 studies: 12 validate, 6 test, and a quarter of the other 42 is no less than 8
    assert config.source.validate_share == 0.2
    assert config.train.global_batch == 8
    assert config.train.best_metric == "validation_uncorrected_loss"


def test_reports_that_are_not_english_get_an_objective_without_claims(tmp_path, run):
    _, config = run(sixty(tmp_path, text="Kein Erguss; Herz normal"))
    assert (config.objective.kind, config.objective.relation) == ("infonce", "none")


def test_rows_that_cannot_be_used_are_counted_and_allowed_for(tmp_path, run, capsys):
    path = sixty(tmp_path)
    lines = path.read_text().splitlines()
    lines[1:3] = ["0.png,0,", "gone.png,1,The heart is large."]  # no text; no image
    path.write_text("\n".join(lines))
    (tmp_path / "7.png").write_bytes(b"")
    shown, config = run(path)
    assert "57 of 60 can be used" in shown
    for reason in ("empty_image", "empty_report", "missing_image", "no_report"):
        assert f"{reason} 1" in shown
    assert "3 of 60 rows cannot be used, which would end a run" in shown
    assert config.source.max_reject_share == 0.05
    build = ["build_manifest", "--config", "studies.yaml"]
    assert main([*build, "--set", "source.max_reject_share=0.01"]) == 3
    assert "source.max_reject_share is 0.01" in capsys.readouterr().err
    assert main(build) == 0


@pytest.mark.parametrize(
    ("count", "view", "content", "words"),
    [
        (0, "AP", b"x", "has a header and no row; export its rows as well"),
        (1, "AP", b"", "empty_image"),
        (60, "LL", b"x", "no image or report that is asked for"),
    ],
)
def test_a_table_of_which_nothing_is_left_gets_no_config(
    tmp_path, monkeypatch, capsys, count, view, content, words
):
    monkeypatch.chdir(tmp_path)
    row = f"#.png,#,{view},The heart is large. #"
    path = table(tmp_path, "file,patient,view,words", row, count=count, files="#.png")
    for file in tmp_path.glob("*.png"):
        file.write_bytes(content)
    assert main(["init", str(path)]) == 3
    assert words in capsys.readouterr().err
    assert not Path("studies.yaml").exists()


@pytest.mark.parametrize(
    ("texts", "metric"),
    [
        (["The heart is large with edema."], "validation_uncorrected_loss"),
        (["There is an effusion.", "There is no effusion."], "validation_report_auc"),
    ],
)
def test_the_step_is_chosen_by_findings_only_where_the_reports_differ_in_one(
    tmp_path, run, texts, metric
):
    rows = [f"#.png,#,{text}" for text in texts]
    _, config = run(table(tmp_path, "file,patient,report", *rows, count=240, files="#.png"))
    assert config.train.best_metric == metric


def test_labels_without_reports_are_spoken_by_a_template_and_sizes_fit_few_studies(
    tmp_path, monkeypatch, run
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    rows = [f"p#,#.png,{number % 2},{number % 3 // 2},#" for number in range(6)]
    header = "patient,file,Effusion,Cardiomegaly,age"
    shown, config = run(table(tmp_path, header, *rows, count=60, files="#.png"))
    assert "made of labels, as '{finding} in the chest X-ray.'" in shown
    assert "reports     60 of 60 patients" in shown
    assert "not used    age (60 different values)" in shown
    assert re.search(r"warning: \d+ studies to train on are few: .* base= in Python", shown)
    assert config.source.template == "{finding} in the chest X-ray."
    assert config.objective.relation == "claims"
    assert (config.train.steps, config.model.image.widths) == (500, (16, 32, 64))
