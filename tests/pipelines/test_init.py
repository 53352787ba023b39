"""A config for one's own table: from a CSV file to a model without a word of YAML."""

import csv
import importlib
from pathlib import Path

import pytest
import yaml

from medclip_dcl import model_package
from medclip_dcl.artifact import open_artifact
from medclip_dcl.data.table_files import read_any
from pipelines.__main__ import main
from pipelines.config import load_config
from testing.corpus import TINY_DEMO
from testing.processes import options

STAGES = ("build_manifest", "prepare_images", "split_sentences", "read_claims",
          "fit_language_model", "score_sentences", "build_eta_cache", "train")  # fmt: skip
TINY = [item for item in TINY_DEMO if not item.startswith("generate.")]


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


def test_a_csv_becomes_a_model_in_five_commands_without_an_edit(
    own_table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(own_table), "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "separated by semicolons, UTF-8" in shown
    assert "100% of those tried are there" in shown
    page = Path("studies.html")
    assert page.stat().st_mode & 0o777 == 0o600
    assert page.read_text().count('src="data:image/jpeg') == 5
    following = [line.split() for line in shown.splitlines() if line.startswith("  medclip ")]
    assert [line[1] for line in following] == ["check_data", "plan", "run"]
    config = load_config(Path("studies.yaml"))
    assert config.source.columns == {
        "subject_id": "Patient ID", "study_id": "exam", "path": "File", "report": "Report",
        "view": "View Position",
    }  # fmt: skip
    recommended = ["objective.image_anchor=same", "objective.place_weight=0"]
    assert config.objective == load_config(Path("demo_cross"), recommended).objective
    words = ["--config", "studies.yaml"]
    assert main(["check_data", *words]) == 0
    assert main(["plan", *following[1][2:], "--seconds", "0"]) == 0
    assert "fault" not in capsys.readouterr().out
    for stage in STAGES:
        job = importlib.import_module(f"pipelines.{stage}")
        assert job.main([*words, *options(TINY)]) == 0
    model = open_artifact(model_package.ARTIFACT.at(Path("runs/studies")), model_package.ARTIFACT)
    assert model.origin["seconds"] > 0


def test_a_config_is_not_overwritten(
    own_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("studies.yaml").write_text("work: mine\n")
    assert main(["init", str(own_table)]) == 2
    assert Path("studies.yaml").read_text() == "work: mine\n"
    assert main(["init", str(own_table), "--out", "other.yaml", "--column", "report"]) == 2


def small_table(folder: Path, *, report: str, patient: str) -> Path:
    rows = [f"{n}.png,{n},{report} {n}" for n in range(60)]
    (folder / "t.csv").write_text("\n".join([f"file,{patient},words", *rows]))
    for number in range(60):
        (folder / f"{number}.png").touch()
    return folder / "t.csv"


def test_studies_without_patients_are_their_own_and_this_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="The heart is large.", patient="site")
    assert main(["init", str(table), "--yes"]) == 0
    assert "the same patient may be in training and in test" in capsys.readouterr().out
    tree = yaml.safe_load(Path("t.yaml").read_text())
    assert tree["source"]["columns"]["subject_id"] == "file"
    # 60 studies: 12 validate, 6 test, and a quarter of the other 42 is no less than 8
    assert tree["source"]["validate_share"] == 0.2
    assert tree["train"]["global_batch"] == 8
    assert tree["train"]["best_metric"] == "validation_uncorrected_loss"


def test_reports_that_are_not_english_get_an_objective_without_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="Kein Erguss; Herz normal", patient="patient")
    assert main(["init", str(table), "--yes"]) == 0
    config = load_config(Path("t.yaml"))
    assert (config.objective.kind, config.objective.relation) == ("infonce", "none")
    assert config.eta.fit == "none"


def test_a_terminal_is_asked_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = small_table(tmp_path, report="The heart is large.", patient="site")
    answers = iter(["site", "y"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("typer._click.termui.visible_prompt_func", lambda _: next(answers))
    assert main(["init", str(table)]) == 0
    assert next(answers, None) is None
    assert load_config(Path("t.yaml")).source.columns["subject_id"] == "site"
