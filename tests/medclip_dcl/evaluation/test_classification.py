import json

import numpy as np
import pytest

from benchmarks.fixtures.oracle import oracle, shown
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.classification import (
    class_figures,
    evaluate_classes,
    evaluate_findings,
    finding_figures,
    mean_finding_figures,
)
from medclip_dcl.evaluation.inputs import UNKNOWN, EvalResult
from medclip_dcl.evaluation.results import CLASSES, SCORES
from medclip_dcl.inference import Finding

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


def test_one_of_several_findings_is_named():
    images = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {(1, 1): "fluid"}, {})
    truth = np.array([[1, 0, 0, 0], [0, 1, UNKNOWN, 1]], dtype=np.int8)
    truth[0, 2] = 1
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, SAMPLING, 10)
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
    outcome, rows = evaluate_classes(oracle(), images, FINDINGS, truth, SAMPLING, 2)
    assert [row["finding"] for row in rows].count("fluid") == 2
    assert "image-0" not in {row["image_id"] for row in rows}
    assert outcome.pool == {"images": 4, "classes": 2}


def test_one_class_is_no_question():
    truth = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], dtype=np.int8)
    outcome, rows = evaluate_classes(oracle(), IMAGES, FINDINGS, truth, SAMPLING, 10)
    assert "fewer than two findings" in outcome.absent
    assert rows == []


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


MARGINS = np.array([[0.4, -0.1, 0.2, -0.3], [0.1, 0.2, 0.3, 0.4]])
TRUTH = np.array([[1, 1, 0, 0], [1, UNKNOWN, 0, 1]], dtype=np.int8)
SUBJECTS = ["a", "b", "c", "d"]


def test_images_of_unknown_truth_are_left_out_of_a_finding():
    figures = finding_figures(MARGINS[1], TRUTH[1], SUBJECTS, BootstrapOptions(0, 0))
    assert figures["auc"].value == 0.5  # .1 < .3 < .4
    assert (figures["auc"].n, figures["auc"].subjects) == (3, 3)
    assert figures["accuracy"].value == pytest.approx(2 / 3)
    assert figures["balanced_accuracy"].value == 0.5


def test_a_finding_of_one_class_says_why_it_has_no_figure():
    truth = np.array([0, 0, UNKNOWN, 0], dtype=np.int8)
    figures = finding_figures(MARGINS[0], truth, SUBJECTS, BootstrapOptions(10, 0))
    assert figures["auc"].value is None
    assert "two classes" in figures["auc"].reason
    assert figures["accuracy"].value == pytest.approx(2 / 3)


def test_the_mean_is_over_findings_that_have_both_classes():
    truth = np.vstack([TRUTH, np.zeros((1, 4), dtype=np.int8)])
    margins = np.vstack([MARGINS, np.ones((1, 4))])
    figure = mean_finding_figures(margins, truth, SUBJECTS, BootstrapOptions(100, 0))["mean_auc"]
    assert figure.value == pytest.approx((0.75 + 0.5) / 2)
    assert 0 <= figure.low <= figure.high <= 1


def test_no_labels_at_all_give_no_mean():
    truth = np.full((2, 4), UNKNOWN, dtype=np.int8)
    figure = mean_finding_figures(MARGINS, truth, SUBJECTS, BootstrapOptions(10, 0))["mean_auc"]
    assert (figure.value, figure.reason) == (None, "no finding has images of both classes")


def test_classes_by_hand():
    answers, shown = np.array([0, 1, -1, 2, 2]), np.array([0, 1, 1, 2, 0])
    figures, recalls = class_figures(
        answers, shown, [0, 1, 2], list("abcde"), BootstrapOptions(20, 0)
    )
    assert figures["accuracy"].value == 0.6
    assert figures["mean_recall"].value == pytest.approx((0.5 + 0.5 + 1) / 3)
    assert recalls[2].value == 1.0
