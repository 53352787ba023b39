"""A config for one's own table, without a word of YAML."""

import csv
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from medclip_dcl.data.table_files import read_any
from pipelines.__main__ import main
from pipelines.config import Config, load_config
from tests.support.corpus import TINY_DEMO
from tests.support.processes import options


@pytest.fixture(scope="module")
def own_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated studies as somebody's export: a row per image, semicolons, texts in a column."""
    folder = tmp_path_factory.mktemp("own")
    drawn = [item for item in TINY_DEMO if item.startswith("generate.")]
    words = [*options([*drawn, f"work={folder}", f"source.root={folder}/export"])]
    assert main(["generate_studies", "--config", "demo", *words]) == 0
    metadata = read_any(next((folder / "export").glob("*metadata*"))).to_pylist()
    with (folder / "export/studies.csv").open("w", encoding="utf-8") as stream:
        writer = csv.writer(stream, delimiter=";")
        writer.writerow(["Patient ID", "exam", "File", "View Position", "Report"])
        for row in metadata:
            patient, study = f"p{row['subject_id']}", f"s{row['study_id']}"
            where = f"files/{patient[:3]}/{patient}/{study}"
            text = (folder / f"export/{where}.txt").read_text(encoding="utf-8")
            file = f"{where}/{row['dicom_id']}.dcm"
            writer.writerow([patient, study, file, row["ViewPosition"], text])
    return folder / "export/studies.csv"


def test_a_csv_becomes_a_config_that_is_checked_planned_and_run_without_an_edit(
    own_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(own_table)]) == 0
    shown = capsys.readouterr().out
    assert "100% of those tried are there" in shown
    following = [line.split() for line in shown.splitlines() if line.startswith("  medclip ")]
    assert [line[1] for line in following] == ["check_data", "plan", "run"]
    config = load_config(Path("studies.yaml"))
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


def test_a_config_is_not_overwritten(own_table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("studies.yaml").write_text("work: mine\n")
    assert main(["init", str(own_table)]) == 2
    assert Path("studies.yaml").read_text() == "work: mine\n"
    assert main(["init", str(own_table), "--out", "other.yaml", "--column", "report"]) == 2


def small_table(folder: Path, *, report: str, patient: str) -> Path:
    rows = [f"{n}.png,{n},{report} {n}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join([f"file,{patient},words", *rows]))
    for number in range(60):
        (folder / f"{number}.png").write_bytes(b"x")
    return folder / "t.csv"


def test_studies_without_patients_are_their_own_and_this_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="The heart is large.", patient="site")
    assert main(["init", str(table)]) == 0
    assert "the same patient may be in training and in test" in capsys.readouterr().out
    tree = yaml.safe_load(Path("t.yaml").read_text())
    assert tree["source"]["columns"]["subject_id"] == "file"
    # 60 studies: 12 validate, 6 test, and a quarter of the other 42 is no less than 8
    assert tree["source"]["validate_share"] == 0.2
    assert tree["train"]["global_batch"] == 8
    assert tree["train"]["best_metric"] == "validation_uncorrected_loss"


def test_reports_that_are_not_english_get_an_objective_without_claims(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="Kein Erguss; Herz normal", patient="patient")
    assert main(["init", str(table)]) == 0
    config = load_config(Path("t.yaml"))
    assert (config.objective.kind, config.objective.relation) == ("infonce", "none")


def write_rows(folder: Path, header: str, rows: list[str]) -> Path:
    (folder / "t.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return folder / "t.csv"


def run_init(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[str, Config]:
    monkeypatch.chdir(table.parent)
    assert main(["init", str(table)]) == 0
    return capsys.readouterr().out, load_config(Path("t.yaml"))


def test_rows_that_cannot_be_used_are_counted_and_allowed_for(tmp_path, monkeypatch, capsys):
    table = small_table(tmp_path, report="The heart is large.", patient="patient")
    lines = table.read_text().splitlines()
    lines[1:3] = ["0.png,0,", "gone.png,1,The heart is large."]  # no text; no image
    table.write_text("\n".join(lines))
    (tmp_path / "7.png").write_bytes(b"")
    shown, config = run_init(table, monkeypatch, capsys)
    assert "57 of 60 can be used" in shown
    for reason in ("empty_image", "empty_report", "missing_image", "no_report"):
        assert f"{reason} 1" in shown
    assert "3 of 60 rows cannot be used, which would end a run" in shown
    assert config.source.max_reject_share == 0.05
    assert (
        main(["build_manifest", "--config", "t.yaml", "--set", "source.max_reject_share=0.01"]) == 3
    )
    assert "source.max_reject_share is 0.01" in capsys.readouterr().err
    assert main(["build_manifest", "--config", "t.yaml"]) == 0


def test_a_table_of_which_nothing_is_left_gets_no_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="The heart is large.", patient="patient")
    table.write_text(table.read_text().replace(".png,", ".png,LL,").replace("file,", "file,view,"))
    rows = table.read_text().splitlines()
    assert main(["init", str(write_rows(tmp_path, rows[0], rows[1:]))]) == 3
    assert "no image or report that is asked for" in capsys.readouterr().err
    assert not Path("t.yaml").exists()


def test_the_step_is_chosen_by_findings_only_where_the_reports_differ_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small_table(tmp_path, report="", patient="patient")
    for texts, metric in (
        (["The heart is large with edema."] * 2, "validation_uncorrected_loss"),
        (["There is an effusion.", "There is no effusion."], "validation_report_auc"),
    ):
        rows = [f"{n % 60}.png,{n},{texts[n % 2]}" for n in range(240)]
        table = write_rows(tmp_path, "file,patient,report", rows)
        _, config = run_init(table, monkeypatch, capsys)
        assert config.train.best_metric == metric
        Path("t.yaml").unlink()


def test_labels_without_reports_are_spoken_by_a_template_and_sizes_fit_few_studies(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    rows = ["patient,file,Effusion,Cardiomegaly,age"]
    for number in range(60):
        Image.new("L", (40, 40), number).save(tmp_path / f"{number}.png")
        rows.append(f"p{number},{number}.png,{number % 2},{number % 3 // 2},{number}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    assert main(["init", "labels.csv"]) == 0
    shown = capsys.readouterr().out
    assert "made of labels, as '{finding} in the chest X-ray.'" in shown
    assert "reports     60 of 60 patients" in shown
    assert "not used    age (60 different values)" in shown
    assert re.search(r"warning: \d+ studies to train on are few: .* base= in Python", shown)
    config = load_config(Path("labels.yaml"))
    assert config.source.template == "{finding} in the chest X-ray."
    assert config.objective.relation == "claims"
    assert (config.train.steps, config.model.image.widths) == (500, (16, 32, 64))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "has a header and no row; export its rows as well"),
        (["1.png"], "empty_image"),
    ],
)
def test_a_table_without_anything_to_use_is_refused_with_the_reason(rows, said, tmp_path, capsys):
    (tmp_path / "1.png").touch()
    table = tmp_path / "mine.csv"
    lines = ["patient,path,report", *(f"p,{name},The lungs are clear." for name in rows)]
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["init", str(table), "--out", str(tmp_path / "mine.yaml")]) != 0
    assert said in capsys.readouterr().err
