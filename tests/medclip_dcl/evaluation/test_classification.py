import numpy as np
import pytest

from medclip_dcl.evaluation.classification import (
    CORRELATION_LIMIT,
    LEAST_IMAGES,
    REMEDY,
    UNKNOWN,
    check_pairs,
    evaluate_findings,
    exact_truth,
    figures_of,
    labelled_truth,
    mean_finding_figures,
    pair_correlation,
    ranking,
)
from medclip_dcl.evaluation.metrics import BootstrapOptions, Figure
from medclip_dcl.evaluation.results import SCORES
from medclip_dcl.inference.prompts import Finding
from tests.support.oracle import oracle, shown

FINDINGS = (Finding("fluid", ("Fluid.",), ("Normal.",)), Finding("cyst", ("Cyst.",), ("Normal.",)))
IMAGES = shown({(0, 0): "fluid"}, {(1, 2): "cyst"}, {}, {(3, 3): "fluid"})
SAMPLING, NO_DRAWS = BootstrapOptions(20, 0), BootstrapOptions(0, 0)


def test_a_model_that_knows_the_answer_has_an_area_of_one():
    truth = np.array([[1, 0, 0, 1], [0, 1, 0, UNKNOWN]], dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, truth, SAMPLING)
    assert outcome.figures["mean_auc"].value == 1.0
    assert outcome.groups["cyst"]["auc"].n == 3
    assert outcome.absent == ""
    assert set(outcome.chance.values()) == {0.5}
    assert outcome.pool == {"images": 4, "findings": 2}
    assert [row["truth"] for row in rows] == [1, 0, 0, 1, 0, 1, 0, None]
    assert set(rows[0]) == set(SCORES.schema.names)
    assert all(0 <= row["score"] <= 1 for row in rows)
    blank = np.full((2, 4), UNKNOWN, dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), IMAGES, FINDINGS, blank, SAMPLING)
    assert (outcome.absent, outcome.figures["mean_auc"].value) == ("no image has a label", None)
    assert len(rows) == 8  # scored all the same


MARGINS = np.array([[0.4, -0.1, 0.2, -0.3], [0.1, 0.2, 0.3, 0.4]])
TRUTH = np.array([[1, 1, 0, 0], [1, UNKNOWN, 0, 1]], dtype=np.int8)
SUBJECTS = ["a", "b", "c", "d"]


def test_images_of_unknown_truth_are_left_out_of_a_finding():
    figures = figures_of(ranking, MARGINS[1], TRUTH[1], SUBJECTS, None, NO_DRAWS)
    assert figures["auc"].value == 0.5  # .1 < .3 < .4
    assert (figures["auc"].n, figures["auc"].subjects) == (3, 3)
    assert figures["balanced_accuracy"].value == 0.5


def test_an_offset_moves_the_decision_and_nothing_else():
    # margins .4 and -.1 with the finding, .2 and -.3 without
    plain, moved = (
        figures_of(ranking, MARGINS[0], TRUTH[0], SUBJECTS, offset, NO_DRAWS)
        for offset in (None, -0.2)
    )
    assert plain["balanced_accuracy"].value == 0.5
    assert "balanced_accuracy_offset" not in plain
    assert moved["balanced_accuracy_offset"].value == 0.75  # .4, -.1 above; -.3 below
    assert {name: moved[name] for name in plain} == plain


def test_the_mean_is_over_findings_that_have_both_classes():
    truth = np.vstack([TRUTH, np.zeros((1, 4), dtype=np.int8)])
    margins = np.vstack([MARGINS, np.ones((1, 4))])
    figure = mean_finding_figures(margins, truth, SUBJECTS, BootstrapOptions(100, 0))["mean_auc"]
    assert figure.value == pytest.approx((0.75 + 0.5) / 2)
    assert 0 <= figure.low <= figure.high <= 1


LABELLED = (
    Finding("effusion", ("a",), ("b",), "Pleural Effusion"),
    Finding("gout", ("a",), ("b",)),
)


def test_exact_truth_knows_every_type_and_nothing_else():
    truth = exact_truth(LABELLED, ["i", "j", "k"], {"i": {"effusion"}, "j": set()})
    assert truth.tolist() == [[1, 0, UNKNOWN], [UNKNOWN] * 3]


def test_uncertain_and_blank_labels_are_dropped():
    labels = [
        {"study_id": str(number), "Pleural Effusion": value}
        for number, value in enumerate([1, 0, -1, None])
    ]
    truth = labelled_truth(LABELLED, ["0", "1", "2", "3", "unlabelled"], labels)
    assert truth.tolist() == [[1, 0, UNKNOWN, UNKNOWN, UNKNOWN], [UNKNOWN] * 5]


TWELVE = shown(*[{(0, 0): "fluid"}] * 6, *[{(1, 1): "cyst"}] * 6)


def test_a_finding_without_a_negative_prompt_is_ranked_by_the_mean_of_its_positives() -> None:
    prompts = {"fluid": ("Fluid.",), "cyst": ("Cyst.",), "either": ("Fluid.", "Cyst.")}
    findings = [Finding(name, texts) for name, texts in prompts.items()]
    truth = np.array([[1] * 6 + [0] * 6] * 3, dtype=np.int8)
    outcome, rows = evaluate_findings(oracle(), TWELVE, findings, truth, NO_DRAWS)
    assert [outcome.groups[name]["auc"].value for name in prompts] == [1.0, 0.0, 0.5]
    fluid, cyst, either = np.array([row["margin"] for row in rows]).reshape(3, 12)
    assert either == pytest.approx((fluid + cyst) / 2)
    assert {row["negative"] for row in rows} == {0.0}  # of a model that is not ours no level
    found = outcome.groups["fluid"]["prompt_correlation"]
    assert (found.value, found.reason) == (None, "a prompt scores all images alike")


def test_the_correlation_of_few_or_constant_scores_is_none():
    rising, constant = np.linspace(0, 1, LEAST_IMAGES), np.full(LEAST_IMAGES, 0.2)
    assert pair_correlation(rising, 0.5 - rising) == pytest.approx(-1.0, abs=1e-12)
    few = rising[1:]
    for pair in (rising, constant), (constant, constant), (few, few), (few[:0], few[:0]):
        assert pair_correlation(*pair) is None


def warnings_of(correlation, auc):
    """Messages about a finding with these figures, but for its name and the remedy."""
    figures = {"prompt_correlation": Figure(correlation, 10, 10), "auc": Figure(auc, 10, 10)}
    found = check_pairs({"edema": figures})
    assert all(item.message == f"edema: {item.reason}; {REMEDY}" for item in found)
    return [item.reason for item in found]


def test_pairs_above_the_limit_and_areas_below_one_half_are_warned_of():
    for sound in ((CORRELATION_LIMIT, 0.8), (0.94, 0.5), (None, None)):
        assert warnings_of(*sound) == []
    assert "correlation of 0.980, above 0.97" in warnings_of(0.98, None)[0]
    assert "AUC is 0.170, below 0.5" in warnings_of(0.4, 0.17)[0]
    (both,) = warnings_of(1.0, 0.17)
    assert "do not decide" in both
    assert "upside down" in both
    assert "objective.relation: claims" in REMEDY


def test_a_pair_of_one_sentence_correlates_fully_and_one_of_two_does_not():
    prompts = {"fluid": "Cyst.", "same": "Fluid."}
    findings = [Finding(name, ("Fluid.",), (text,)) for name, text in prompts.items()]
    truth = np.full((2, 12), UNKNOWN, dtype=np.int8)  # no label is needed
    outcome, rows = evaluate_findings(oracle(), TWELVE, findings, truth, NO_DRAWS)
    correlations = [outcome.groups[name]["prompt_correlation"].value for name in prompts]
    assert correlations == pytest.approx([-1.0, 1.0])
    assert [item.finding for item in check_pairs(outcome.groups)] == ["same"]
    for row in rows:
        assert row["positive"] - row["negative"] == pytest.approx(row["margin"], abs=1e-7)
