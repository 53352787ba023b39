import json

import numpy as np
import pytest

from benchmarks.fixtures.oracle import oracle, shown
from medclip_dcl.evaluation.classification import (
    evaluate_classes,
    evaluate_findings,
    evaluate_reports,
)
from medclip_dcl.evaluation.inputs import BootstrapOptions, EvalResult
from medclip_dcl.evaluation.results import CLASSES, RANKS, SCORES
from medclip_dcl.evaluation.summary import UNKNOWN
from medclip_dcl.inference.zero_shot import Finding

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
IMAGES = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {}, {(3, 3): "fluid"})
SAMPLING = BootstrapOptions(20, 0)


def test_a_model_that_knows_the_answer_has_an_area_of_one():
    truth = np.array([[1, 0, 0, 1], [0, 1, 0, UNKNOWN]], dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    assert outcome.figures["mean_auc"].value == 1.0
    assert outcome.groups["cyst"]["auc"].n == 3
    assert outcome.absent == ""
    assert [row["truth"] for row in rows] == [1, 0, 0, 1, 0, 1, 0, None]
    assert set(rows[0]) == set(SCORES.schema.names)
    assert all(0 <= row["score"] <= 1 for row in rows)


def test_images_without_labels_are_scored_and_the_question_is_named_absent():
    truth = np.full((2, 4), UNKNOWN, dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    assert outcome.absent == "no image has a label"
    assert outcome.figures["mean_auc"].value is None
    assert len(rows) == 8


def test_a_report_that_names_what_an_image_shows_ranks_first():
    reports = [["Fluid."], ["Cyst.", "Cyst."], ["Fluid."]]
    outcome, _ = evaluate_reports(oracle(), IMAGES.select([0, 1, 3]), reports, SAMPLING)
    assert outcome.groups["image_to_report"]["recall_at_1"].value == 1.0
    assert outcome.groups["report_to_image"]["recall_at_1"].value == 1.0
    assert outcome.pool == {
        "report_to_image": 3,
        "report_to_image.own": 3,
        "image_to_report": 2,
        "image_to_report.own": 3,
    }


def test_reports_on_the_wrong_images_rank_last():
    images = shown({(0, 0): "fluid"}, {(1, 2): "cyst"})
    outcome, _ = evaluate_reports(oracle(), images, [["Cyst."], ["Fluid."]], SAMPLING)
    assert outcome.groups["image_to_report"]["recall_at_1"].value == 0.0
    assert outcome.groups["report_to_image"]["median_rank"].value == 2.0


def test_reports_of_the_same_sentences_answer_for_each_other():
    reports = [["Fluid.", "Normal."], ["Cyst."], ["Normal."], ["Normal.", "Fluid."]]
    outcome, _ = evaluate_reports(oracle(), IMAGES, reports, SAMPLING)
    assert outcome.chance["report_to_image.recall_at_1"] == (2 + 1 + 1 + 2) / 16
    assert outcome.chance["image_to_report.recall_at_1"] == pytest.approx(1 / 3)


def test_doubles_stand_before_a_query_s_own_report():
    reports = [["Fluid."], ["Cyst."], ["Fluid."]]
    outcome, rows = evaluate_reports(oracle(), IMAGES.select([0, 1, 3]), reports, SAMPLING)
    found = outcome.groups["image_to_report"]
    assert found["own_recall_at_1"].value == pytest.approx(1 / 3)  # the cyst's alone
    assert found["own_median_rank"].value == 2.0  # 2, 1, 2
    assert outcome.chance["image_to_report.own_recall_at_1"] == pytest.approx(1 / 3)
    ranks = {(row["direction"], row["image_id"]): (row["rank"], row["own_rank"]) for row in rows}
    assert ranks["image_to_report", "image-0"] == (1, 2)
    assert ranks["report_to_image", "image-1"] == (1, 1)
    assert set(rows[0]) == set(RANKS.schema.names)


def test_one_of_several_findings_is_named():
    images = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {(1, 1): "fluid"}, {})
    truth = np.array([[1, 0, 0, 0], [0, 1, UNKNOWN, 1]], dtype=np.int8)
    truth[0, 2] = 1
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, 10, SAMPLING)
    # The last image shows nothing, so both classes score alike: it is wrong.
    assert outcome.figures["accuracy"].value == 0.75
    assert outcome.figures["mean_recall"].value == 0.75  # fluid 2 of 2, cyst 1 of 2
    assert outcome.groups["cyst"]["recall"].value == 0.5
    assert outcome.chance["accuracy"] == 0.5
    assert [row["answer"] for row in rows] == ["fluid", "cyst", "fluid", None]
    assert set(rows[0]) == set(CLASSES.schema.names)


def test_images_of_several_findings_have_no_class_and_classes_are_drawn_alike():
    images = shown(*[{(0, 0): "fluid"}] * 5, {(0, 0): "cyst"}, {(0, 0): "cyst"})
    truth = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 1, 1]], dtype=np.int8)
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, 2, SAMPLING)
    assert [row["finding"] for row in rows].count("fluid") == 2
    assert "image-0" not in {row["image_id"] for row in rows}
    assert outcome.pool == {"images": 4, "classes": 2}


def test_one_class_is_no_question():
    truth = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], dtype=np.int8)
    outcome, rows = evaluate_classes(oracle(), IMAGES, FINDINGS, truth, 10, SAMPLING)
    assert "fewer than two findings" in outcome.absent
    assert rows == []
    assert evaluate_classes(oracle(), IMAGES, FINDINGS, truth, 0, SAMPLING)[0].absent


def test_an_outcome_is_plain_json_without_nan():
    truth = np.array([[1, 0, 0, 1], [0, 0, 0, 0]], dtype=np.int8)
    outcome, _ = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    tree = json.loads(json.dumps(outcome.as_json(), allow_nan=False))
    assert tree["groups"]["cyst"]["auc"]["value"] is None
    assert tree["groups"]["cyst"]["auc"]["reason"]


def test_an_absent_question_holds_its_reason_alone():
    assert EvalResult("no boxes").as_json() == {
        "absent": "no boxes",
        "pool": {},
        "chance": {},
        "figures": {},
        "groups": {},
    }


def test_chosen_images_keep_everything_that_is_theirs():
    chosen = IMAGES.select([3, 1])
    assert chosen.image_ids == ("image-3", "image-1")
    assert chosen.subject_ids == ("p-image-3", "p-image-1")
    assert (chosen.regions[0] == IMAGES.regions[3]).all()
