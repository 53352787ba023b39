import json
import shutil

import numpy as np
import pytest

from medclip_dcl.data import prepared
from medclip_dcl.data.images import open_image
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.evaluation import results
from medclip_dcl.evaluation.results import read_figures
from medclip_dcl.inference.adoption import adopt
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.inference.predictor import load
from medclip_dcl.inference.prompts import read_prompts
from pipelines.config import Config
from pipelines.job import main_of
from tests.support.dicom import raster_bytes
from tests.support.jobs import made, rows, run_here, write_evaluated
from tests.support.public_checkpoints import PROCESSORS, write_pair

main = main_of("evaluate")


@pytest.fixture(autouse=True)
def in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROGRESS_FORMAT")  # the table of figures is for people


@pytest.fixture
def work(evaluated, tmp_path):
    return shutil.copytree(evaluated, tmp_path / "copy/work")


def figures(work):
    return read_figures(made(work, results.ARTIFACT))


def scores(work):
    return rows(work, results.ARTIFACT, results.SCORES)


def test_every_question_is_answered_with_what_it_rests_on(evaluated):
    tree = figures(evaluated)
    assert (tree["images"], tree["patients"], tree["contaminated"]) == (10, 8, 0)
    assert tree["repeated_images"] == 0
    assert tree["truth"] == "labels"
    questions = tree["questions"]
    assert set(questions) == {
        *("zero_shot", "probe", "grounding", "boxes", "reports"),
        *("decisions", "probe_decisions", "probabilities"),
    }
    auc = questions["zero_shot"]["groups"]["pneumonia"]["auc"]
    assert 0 <= auc["low"] <= auc["value"] <= auc["high"] <= 1
    assert (auc["n"], auc["subjects"]) == (10, 8)
    assert questions["grounding"]["figures"]["cnr"]["n"] == 6
    assert questions["boxes"]["pool"]["sentence_to_box"] == 6
    assert questions["reports"]["pool"]["report_to_image"] == 8  # one image a study


def test_scores_have_the_level_of_their_prompts_and_a_threshold_of_the_validation_images(evaluated):
    """`test_results.py` compares what follows from such rows with the figures."""
    asked = [row for row in scores(evaluated) if row["finding"] == "pneumonia"]
    (offset,) = {row["offset"] for row in asked}
    prompts = read_prompts(evaluated / "prompts.yaml")
    levels = load(evaluated / "model", "cpu").offsets_of(prompts)
    assert offset == pytest.approx(levels[1], abs=1e-7)
    groups = figures(evaluated)["questions"]["decisions"]["groups"]
    threshold = groups["pneumonia"]["threshold"]
    assert threshold["n"] == 10  # of eight validation patients
    assert {row["threshold"] for row in asked} == {threshold["value"]}
    assert groups["effusion"]["sensitivity"]["value"] is None


def test_data_without_labels_and_boxes_is_still_evaluated(tmp_path, capsys):
    work = run_here("evaluate", write_evaluated(tmp_path / "work", with_truth=False))
    questions = figures(work)["questions"]
    assert questions["grounding"]["absent"]
    assert questions["boxes"]["absent"]
    assert questions["reports"]["groups"]["image_to_report"]["recall_at_1"]["value"] is not None
    assert "absent" in capsys.readouterr().out


def test_patients_and_pictures_that_were_trained_on_are_refused_unless_allowed(tmp_path, capsys):
    trained = ["p032", "p039", "p000", "p001"]
    work = write_evaluated(tmp_path / "work", subjects=trained, repeated=("p001", "p033"))
    run_here("evaluate", work, code=4)
    words = "2 of 8 evaluated patients, and on the picture of 1 of 10 evaluated images"
    assert words in capsys.readouterr().err
    assert not results.ARTIFACT.at(work).exists()
    run_here("evaluate", work, "evaluate.allow_contaminated=true")
    tree = figures(work)
    assert (tree["contaminated"], tree["repeated_images"]) == (2, 1)
    shown = capsys.readouterr().out
    assert "CONTAMINATED" in shown
    assert "on the picture of 1 of these images" in shown


def test_other_people_s_model_is_put_to_the_same_questions(work, tmp_path, capsys):
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"\x07")
    adapter = {"model": "tests.support.clip:Clip", "weights": str(weights)}
    run_here("evaluate", work, evaluate={"adapter": adapter})
    tree = figures(work)
    unknown = (tree["contaminated"], tree["repeated_images"])
    assert (unknown, tree["geometry"]) == ((None, None), "whole")
    printed = capsys.readouterr().out
    assert "it is not known which patients" in printed
    # the scale of its scores is not known, so there is no offset
    assert "absent, no mean_balanced_accuracy_offset" in printed
    assert "mean_balanced_accuracy_offset" not in tree["questions"]["zero_shot"]["figures"]
    assert tree["questions"]["grounding"]["figures"]["cnr"]["value"] > 0
    before = tree["model"]
    weights.write_bytes(b"\x08")
    run_here("evaluate", work, evaluate={"adapter": adapter})
    assert figures(work)["model"] != before


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tests.support.clip", "must read module:callable"),
        ("biovil", "make a package of the checkpoint: medclip adopt"),
        ("tests.support.nowhere:Clip", "cannot be imported"),
        ("tests.support.clip:nothing", "cannot be imported"),
        ("tests.support.clip:MEAN", "is not callable"),
        ("builtins:object", "has no embed_images"),
    ],
)
def test_an_adapter_that_cannot_be_built_is_a_configuration_error(work, capsys, model, message):
    run_here("evaluate", work, f"evaluate.adapter.model={model}", code=2)
    assert message in capsys.readouterr().err


def test_a_probe_reads_training_images(work, capsys):
    run_here("evaluate", work, "evaluate.probe_images=1000")
    probe = figures(work)["questions"]["probe"]
    assert probe["pool"]["labelled"] > 20
    assert 0 <= probe["figures"]["mean_auc"]["value"] <= 1
    assert "probe of the encoder, AUC, mean" in capsys.readouterr().out
    decided = figures(work)["questions"]["probe_decisions"]["groups"]["pneumonia"]
    assert decided["threshold"]["n"] == 10


def another_source(folder, model):
    """Write a table of three labelled images, and a config that evaluates a model on them."""
    root = folder / "images"
    lines = ["image,patient,heart,effusion"]
    for number, subject in enumerate("abc"):
        pixels = np.full((90, 80), 40 * number, np.uint8)
        pixels[10 * number : 30 + 10 * number] = 255
        (root / f"{number}.png").parent.mkdir(parents=True, exist_ok=True)
        (root / f"{number}.png").write_bytes(raster_bytes(pixels, "PNG"))
        lines.append(f"{number}.png,{subject},{number % 2},{int(number == 1)}")
    (root / "images.csv").write_text("\n".join(lines) + "\n")
    columns = {"path": "image", "subject_id": "patient", "view": "=PA", "split": "=test"}
    columns["labels"] = {"Pneumonia": "heart", "Pleural Effusion": "effusion"}
    source = {"kind": "table", "root": str(root), "table": "images.csv", "columns": columns}
    config = folder / "elsewhere.yaml"
    config.write_text(json.dumps({"source": source, "evaluate": {"model": str(model)}}))
    return config


def test_a_model_of_another_run_is_evaluated_on_a_source_that_a_config_names_alone(
    tmp_path, work, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = another_source(tmp_path, work)  # the run's folder
    own = ("images.reject_burned_in=false", "images.max_megapixels=9", "images.equalize=true")
    assert main(["--config", str(config), *(word for item in own for word in ("--set", item))]) == 0
    elsewhere = tmp_path / "runs/elsewhere"
    tree = figures(elsewhere)
    predictor = load(work / "model", "cpu")
    assert tree["model"] == predictor.digest
    assert (tree["images"], tree["truth"]) == (3, "labels")
    asked = {finding.name for finding in predictor.findings}
    assert set(tree["questions"]["zero_shot"]["groups"]) == asked
    trained = read_model_package(work / "model").config.images.size_px
    images = made(elsewhere, prepared.ARTIFACT)
    assert PreparedImages(images).size_px == trained != Config(work="x").images.size_px
    settings = images.fingerprint["settings"]["images"]
    # what is refused is the user's; what an image becomes is the model's
    names = ("reject_burned_in", "max_megapixels", "equalize")
    assert [settings[name] for name in names] == [False, 9, False]
    auc = tree["questions"]["zero_shot"]["groups"]["effusion"]["auc"]["value"]
    margins = [row["margin"] for row in scores(elsewhere) if row["finding"] == "effusion"]
    assert auc == np.mean([margins[1] > margins[0], margins[1] > margins[2]])


def test_an_adopted_checkpoint_is_evaluated_as_it_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pair(tmp_path / "clip", "clip", PROCESSORS["clip"])
    adopt(tmp_path / "clip", tmp_path / "package")
    config = another_source(tmp_path, tmp_path / "package")
    assert main(["--config", str(config)]) == 0
    elsewhere = tmp_path / "runs/elsewhere"
    tree, predictor = figures(elsewhere), load(tmp_path / "package", "cpu")
    assert (tree["model"], tree["geometry"]) == (predictor.digest, "crop")
    assert tree["contaminated"] is None  # nobody here knows whom it was trained on
    images = [tmp_path / f"images/{number}.png" for number in range(3)]
    for row in scores(elsewhere):
        image = open_image(images[int(row["image_id"].partition("-")[2])])
        own = predictor.classify(image)[row["finding"]]
        assert row["margin"] == pytest.approx(own.margin, abs=1e-5)


def test_two_models_at_once_are_refused(tmp_path, work, capsys):
    config = another_source(tmp_path, work)
    assert main(["--config", str(config), "--set", "evaluate.adapter.model=a:b"]) == 2
    assert "name two models" in capsys.readouterr().err
