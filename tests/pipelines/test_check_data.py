"""The check of a source: every planted fault named, nothing invented, and no text let out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.tables import read_table
from medclip_dcl.synthetic.settings import GenerateConfig
from medclip_dcl.synthetic.tree import BOX_TABLE
from pipelines.build_manifest import main as build_manifest
from pipelines.check_data import PAGE, main
from pipelines.report import preflight
from pipelines.report.preflight import read_preflight
from tests.support.dicom import dicom_bytes, ramp
from tests.support.faults import compare, read_fault_list, write_spoilt_tree
from tests.support.published import publish
from tests.support.release import REPORT, Release, release

GENERATE = GenerateConfig(patients=38, size_px=64)


def write_config(work: Path, **sections: Any) -> Path:
    work.mkdir(exist_ok=True, parents=True)
    path = work.with_suffix(".yaml")
    path.write_text(json.dumps({"work": str(work), "workers": 1} | sections))
    return path


def check(tmp_path: Path, given: Release | None = None, **sections: Any) -> int:
    root = tmp_path / "source"
    if given is not None:
        root.mkdir()
        given.write(root)
    source = {"root": str(root), "boxes": "boxes.csv"} | sections.pop("source", {})
    return main(["--config", str(write_config(tmp_path / "work", source=source, **sections))])


def made(work: Path) -> Artifact:
    return open_artifact(preflight.ARTIFACT.at(work), preflight.ARTIFACT)


def tree(tmp_path: Path) -> dict[str, Any]:
    return read_preflight(made(tmp_path / "work"))


def found(work: Path) -> set[tuple[str, str]]:
    rows = read_table(made(work).path, preflight.FOUND).to_pylist()
    return {(row["code"], row["id"]) for row in rows}


def opened(work: Path) -> list[str]:
    rows = read_table(made(work).path, preflight.IMAGES).to_pylist()
    return [row["image_id"] for row in rows]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("archive") / "work"
    source = {"boxes": BOX_TABLE, "max_reject_share": 1.0}
    config_file = write_config(work, source=source)
    write_spoilt_tree(work / "studies", GENERATE, 1, 0)
    assert build_manifest(["--config", str(config_file)]) == 0
    assert main(["--config", str(config_file)]) == 3
    return work


def test_every_planted_fault_is_named_and_none_is_invented(archive: Path) -> None:
    figures, lines = compare(archive, GENERATE.patients)
    assert figures["planted"] == figures["kinds_of_fault"] == 16
    names = ("manifest_missed", "manifest_invented", "check_missed", "check_invented")
    assert {
        name: figures[name] for name in (*names, "bit_depths_differ", "leaks")
    } == dict.fromkeys((*names, "bit_depths_differ", "leaks"), 0)
    assert len(lines) > 16


def test_the_page_and_the_output_hold_no_id(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(archive.with_suffix(".yaml"))]) == 3
    printed = capsys.readouterr()
    ids = {getattr(p, name) for p in read_fault_list(archive / "studies") for name in p._fields[1:]}
    assert len(ids - {""}) > 40
    for text in (printed.out, printed.err, (archive / PAGE).read_text()):
        assert not [name for name in ids - {""} if name in text]
    assert '"state": "reused"' in printed.out


def test_a_sound_source_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = release(3)
    given.image = {row[0]: dicom_bytes(ramp(40 + n, 50)) for n, row in enumerate(given.images)}
    assert check(tmp_path, given) == 0
    facts = tree(tmp_path)
    assert facts["verdict"]["clean"]
    assert [(step["images"], step["patients"]) for step in facts["steps"]] == [(3, 3)] * 6
    assert facts["images"]["bits"] == {"12": 3}
    assert facts["labels"]["source"] == "table"
    assert facts["labels"]["findings"]["Atelectasis"]["present"] == 3
    assert facts["labels"]["findings"]["Cardiomegaly"]["absent"] == 3
    assert facts["duplicates"]["text"]["extra"] == 2
    printed = capsys.readouterr().out
    assert "with usable sentences" in printed
    assert printed.count("clean") >= 2


def test_patients_that_a_model_was_trained_on_are_found(tmp_path: Path) -> None:
    given = release(4)
    given.image = {row[0]: dicom_bytes(ramp(40 + n, 50)) for n, row in enumerate(given.images)}
    given.splits = {row[0]: "test" for row in given.images[:2]}
    publish(tmp_path / "work/model", [given.images[1][1], given.images[2][1]])
    assert check(tmp_path, given) == 3
    assert ("trained_patient", given.images[1][1]) in found(tmp_path / "work")
    assert tree(tmp_path)["verdict"]["leaks"] == 1


def test_a_sample_is_drawn_with_the_seed_and_said_to_be_one(tmp_path: Path) -> None:
    drawn: dict[str, Any] = {"check": {"sample": 3}, "source": {"max_reject_share": 1}}
    assert check(tmp_path, release(8), **drawn) == 0
    facts = tree(tmp_path)
    images = facts["images"]
    assert (images["listed"], images["opened"], facts["text"]["reports"]) == (8, 3, 3)
    assert images["bits"] == {"12": 3}
    assert not facts["source"]["all_images"]
    first = opened(tmp_path / "work")
    assert check(tmp_path, **drawn, seed=1) == 0
    assert first != opened(tmp_path / "work")
    assert "drawn at random" in (tmp_path / "work" / PAGE).read_text()


def test_no_text_and_no_name_leaves_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = release(2)
    said = REPORT.replace("The lungs are clear.", "PHISENTINEL has clear lungs.")
    given.report = {row[2]: said.encode() for row in given.images}
    given.image = {row[0]: dicom_bytes(ramp(), PatientName="PHISENTINEL") for row in given.images}
    assert check(tmp_path, given) == 3  # one picture, two patients
    printed = capsys.readouterr()
    assert "PHISENT" not in printed.out + printed.err
    page = tmp_path / "work" / PAGE  # which holds reports, for its owner alone
    assert page.stat().st_mode & 0o777 == 0o600
    assert "PHISENTINEL has clear lungs" in page.read_text()
    assert check(tmp_path, report={"private": True}) == 3
    for path in (tmp_path / "work").rglob("*"):
        assert not path.is_file() or b"PHISENT" not in path.read_bytes()


def table_of(tmp_path: Path, texts: list[str]) -> dict[str, Any]:
    (tmp_path / "source").mkdir()
    lines = [{"uid": n, "text": text} for n, text in enumerate(texts)]
    table = tmp_path / "source/reports.jsonl"
    table.write_text("\n".join(map(json.dumps, lines)) + "\n")
    columns = {"subject_id": "uid", "report": "text"}
    return {"kind": "table", "table": "reports.jsonl", "columns": columns, "boxes": ""}


def test_the_page_shows_how_reports_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = "HISTORY: Old fracture.\nFINDINGS: No left effusion. Unchanged.\nIMPRESSION: Edema."
    assert check(tmp_path, source=table_of(tmp_path, [report, "FINDINGS: Clear lungs."])) == 0
    page = (tmp_path / "work" / PAGE).read_text()
    assert '<mark class="r-out" title="left out: history"> Old fracture.\n</mark>' in page
    assert '<mark class="r-absent" title="findings">No left effusion.</mark>' in page
    assert '<mark class="r-out" title="left out: short">Unchanged.</mark>' in page
    assert '<small class="r-present">+Edema</small>' in page
    text = tree(tmp_path)["text"]
    assert text["dropped"] == {"history": 12, "short": 10}
    assert text["languages"] == {"en": 2}
    printed = capsys.readouterr()
    assert "fracture" not in printed.out + printed.err
    assert "left out though" in printed.out  # a tenth of the text is a short sentence


def test_a_corpus_of_another_language_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["Kein Pneumothorax. Herz normal groß.", "Pleuraerguss links.", "No effusion."]
    assert check(tmp_path, source=table_of(tmp_path, texts)) == 0
    assert "2 of 3 reports read like another language than English (German)" in (
        capsys.readouterr().out
    )
    labels = tree(tmp_path)["labels"]["findings"]
    assert labels["Pneumothorax"] == {"present": 0, "absent": 0, "uncertain": 0}
    assert labels["Pleural Effusion"] == {"present": 0, "absent": 1, "uncertain": 0}


def test_a_table_of_reports_alone_is_held_against_the_thresholds(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    lines = [{"uid": n, "text": text} for n, text in enumerate(["No edema.", "Mild edema.", ""])]
    table = tmp_path / "source/reports.jsonl"
    table.write_text("\n".join(map(json.dumps, lines)) + "\n")
    columns = {"subject_id": "uid", "report": "text"}
    source = {"kind": "table", "table": "reports.jsonl", "columns": columns, "boxes": ""}
    assert check(tmp_path, source=source | {"max_reject_share": 0.3}) == 3
    assert check(tmp_path, source=source | {"max_reject_share": 0.4}) == 0
    facts = tree(tmp_path)
    assert [step["studies"] for step in facts["steps"]] == [3, 2, 2]
    assert facts["labels"]["source"] == "reports"
    assert facts["labels"]["findings"]["Edema"] == {"present": 1, "absent": 1, "uncertain": 0}
    assert not re.search(r"<th[^>]*>images</th>", (tmp_path / "work" / PAGE).read_text())


def test_faults_name_the_row_of_their_table(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for split in ("train", "test"):
        lines = ["who,study,file,text", f"{split},{split}0,0.png,No edema.", f",{split}1,1.png,a"]
        lines += [f"{split},{split}2,2.png,", f"{split},{split}0,3.png,No edema."]
        (tmp_path / f"source/{split}.csv").write_text("\n".join(lines))
    columns = {"subject_id": "who", "study_id": "study", "path": "file", "report": "text"}
    columns["image_id"] = "study"
    table = {"train": "train.csv", "test": "test.csv"}
    source = {"kind": "table", "table": table, "columns": columns, "boxes": ""}
    assert check(tmp_path, source=source) == 3
    rows = read_table(made(tmp_path / "work").path, preflight.FOUND).to_pylist()
    named = {(row["code"], row["id"]): (row["table"], row["row"]) for row in rows}
    assert named["missing_image", "train0"] == ("train.csv", 0)
    assert named["no_subject", "test1"] == ("test.csv", 1)
    assert named["missing_image", "test2"] == ("test.csv", 2)
    assert named["duplicate_id", "test0"] == ("test.csv", 3)


@pytest.mark.real_data
def test_real_sources_are_checked(
    tmp_path: Path, test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_DATA", str(test_data))
    config = Path(__file__).parents[2] / "configs/covid_cxr.yaml"
    settings = ["--set", f"work={tmp_path}", "--set", "check.sample=30"]
    assert main(["--config", str(config), *settings]) == 0
    facts = read_preflight(made(tmp_path))
    assert facts["steps"][0]["images"] == 127
    assert facts["images"]["opened"] == 30
    assert facts["images"]["formats"] == {"jpeg": 30}
    assert facts["duplicates"]["pixels"]["groups"] == 0
