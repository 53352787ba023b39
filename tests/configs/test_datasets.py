"""The recipes of public sets read folders of their layouts: who, what, where and how many."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from medclip_dcl.core.tables import TableFormat
from medclip_dcl.data import manifest, prepared
from medclip_dcl.evaluation import results
from pipelines.__main__ import main
from pipelines.config import load_config
from tests.support import jobs
from tests.support.jobs import made
from tests.support.processes import options
from tests.support.public_sets import SETS
from tests.support.published import publish

ROOT = Path(__file__).parents[2]
SCRIPTS = ("evaluate/padchest_gr", "evaluate/tbx11k")
"""Sets whose table examples/public_sets.py makes."""

COUNTED = ("images", "reports", "patients", "labelled", "boxes")
EXPECTED = {
    "train/rexgradient": (4, 4, 4, 0, 0),
    "train/chexpert_plus": (3, 3, 2, 3, 0),
    "train/padchest": (15, 15, 8, 14, 0),
    "evaluate/padchest": (15, 0, 8, 14, 0),
    "evaluate/padchest_gr": (3, 3, 2, 0, 3),
    "evaluate/nih_chestxray14": (3, 0, 2, 3, 1),
    "evaluate/tbx11k": (4, 0, 4, 4, 3),
    "evaluate/vindr_cxr": (2, 0, 2, 2, 2),
}


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The work folder of every recipe, its manifest built and its images prepared."""
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for config, (variable, write) in SETS.items():
            folder = tmp_path_factory.mktemp(variable)
            write(folder / "data")
            monkeypatch.setenv(variable, str(folder / "data"))
            if config in SCRIPTS:
                name = config.removeprefix("evaluate/")
                monkeypatch.setattr(sys, "argv", ["public_sets", name, str(folder / "data")])
                runpy.run_path(str(ROOT / "examples/public_sets.py"), run_name="__main__")
            found[config] = folder / "work"
            settings = (f"work={folder / 'work'}", "images.size_px=32", "workers=1")
            arguments = ["--config", str(ROOT / f"configs/{config}.yaml")]
            arguments += options([*settings, "source.max_reject_share=1"])
            assert main(["build_manifest", *arguments]) == 0
            if config in {"train/rexgradient", "evaluate/vindr_cxr"}:
                assert main(["prepare_images", *arguments]) == 0
    return found


def rows(work: Path, form: TableFormat) -> list[dict[str, Any]]:
    return jobs.rows(work, manifest.ARTIFACT, form)


@pytest.mark.parametrize("config", EXPECTED)
def test_every_study_of_a_set_is_found_and_sets_for_evaluation_train_nobody(works, config):
    summary = made(works[config], manifest.ARTIFACT).summary
    assert tuple(summary[name] for name in COUNTED) == EXPECTED[config]
    splits = {row["split"] for row in rows(works[config], manifest.IMAGES)}
    assert splits == {"test"} or config.startswith("train/")


def test_rexgradient_s_lists_are_images_of_one_study(works: dict[str, Path]) -> None:
    work = works["train/rexgradient"]
    splits = {row["study_id"]: row["split"] for row in rows(work, manifest.IMAGES)}
    assert splits == {"1.a": "train", "1.b": "train", "1.c": "validate", "1.d": "test"}
    rejects = [row["reason"] for row in rows(work, manifest.REJECTS)]
    assert rejects == ["lateral"]
    images = made(work, prepared.ARTIFACT).summary
    assert (images["images"], images["rejected"]) == (4, 0)


def test_chexpert_plus_joins_labels_and_the_images_of_a_report(works: dict[str, Path]) -> None:
    work = works["train/chexpert_plus"]
    labels = {row["study_id"]: row["Edema"] for row in rows(work, manifest.STUDY_LABELS)}
    assert labels == {"patient00001-1": 0, "patient00001-2": 1, "patient00002-1": 0}
    reports = {row["study_id"]: row["findings"] for row in rows(work, manifest.REPORTS)}
    assert reports["patient00001-2"] == "Finding 1 2."


def test_padchest_lists_every_finding(works: dict[str, Path]) -> None:
    labels = rows(works["train/padchest"], manifest.STUDY_LABELS)
    codes = [list(row.values())[1:] for row in labels]
    assert [sum(column) for column in zip(*codes, strict=True)] == [1] * 14
    views = {row["view"] for row in rows(works["train/padchest"], manifest.IMAGES)}
    assert views == {"PA", "AP_horizontal"}


def test_padchest_gr_keeps_negative_sentences_and_patients(works: dict[str, Path]) -> None:
    work = works["evaluate/padchest_gr"]
    assert made(work, manifest.ARTIFACT).summary["phrases_without_box"] == 3
    boxes = rows(work, manifest.BOXES)
    assert {row["phrase"] for row in boxes} == {"Opacity 0 is seen.", "Opacity 1 is seen."}
    assert boxes[0]["width"] / boxes[0]["image_width"] == pytest.approx(0.3)
    (report,) = (row for row in rows(work, manifest.REPORTS) if row["study_id"] == "study0")
    text = report["last_paragraph"] + report["findings"]
    assert "No pleural effusion. Opacity 0 is seen." in text


def test_boxes_are_scaled_by_the_size_that_they_mean(works: dict[str, Path]) -> None:
    (box,) = rows(works["evaluate/nih_chestxray14"], manifest.BOXES)
    sides = [box[name] for name in ("x", "width", "image_width", "image_height")]
    assert sides == [256.0, 128.5, 1024, 1024]
    heart, effusion = rows(works["evaluate/vindr_cxr"], manifest.BOXES)
    assert [heart[name] for name in ("x", "y", "width", "height")] == [5.0, 10.0, 30.0, 20.5]
    assert effusion["phrase"] == "Pleural effusion"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("nih_chestxray14", {"Effusion": (1, 2), "Cardiomegaly": (2, 1), "No Finding": (1, 2)}),
        ("vindr_cxr", {"Cardiomegaly": (1, 1), "Tuberculosis": (0, 2), "No finding": (1, 1)}),
        ("tbx11k", {"Tuberculosis": (2, 2), "Active tuberculosis": (1, 3), "Healthy": (1, 3)}),
        ("padchest", {"pacemaker": (1, 13), "goiter": (0, 0), "normal": (1, 13)}),
    ],
)
def test_labels_have_a_set_s_own_names(works, config, expected):
    """Images with a finding, and without; one that no row lists is not labelled."""
    work = works[f"evaluate/{config}"]
    labels = manifest.read_labels(made(work, manifest.ARTIFACT))
    codes = {name: labels[name].to_pylist() for name in expected}
    assert {n: (codes[n].count(1), codes[n].count(0)) for n in codes} == expected
    source = load_config(ROOT / f"configs/evaluate/{config}.yaml").source
    assert manifest.label_names(labels) == source.findings


def test_a_model_is_asked_for_the_findings_of_a_set(works, tmp_path, monkeypatch):
    work = works["evaluate/tbx11k"]
    monkeypatch.setenv("MODEL", str(publish(tmp_path / "model").path))
    monkeypatch.setenv("TBX11K", str(work.parent / "data"))
    settings = (f"work={work}", "workers=1", "evaluate.bootstrap=0")
    words = ["--config", str(ROOT / "configs/evaluate/tbx11k.yaml"), *options(settings)]
    assert main(["evaluate", *words]) == 0
    tree = results.read_figures(made(work, results.ARTIFACT))
    assert (tree["truth"], tree["contaminated"]) == ("labels", 0)
    asked = tree["questions"]["zero_shot"]["groups"]
    assert set(asked) == {"Tuberculosis", "Active tuberculosis", "Latent tuberculosis", "Healthy"}
    assert all(figures["auc"]["n"] == 4 for figures in asked.values())
    assert tree["questions"]["grounding"]["figures"]["cnr"]["n"] == 2  # of a finding and image


@pytest.mark.parametrize("columns", [{"path": "image", "report": "text"}, {"report": "text"}])
def test_a_copy_of_mimic_without_patients_is_refused(tmp_path, capsys, columns):
    (tmp_path / "train.csv").write_text("image,text\n0.png,No effusion.\n")
    source = {"kind": "table", "root": str(tmp_path), "table": "train.csv", "columns": columns}
    jobs.config_for(tmp_path / "work", source=source)
    jobs.run("build_manifest", tmp_path / "work", code=2)
    assert "subject_id" in capsys.readouterr().err
