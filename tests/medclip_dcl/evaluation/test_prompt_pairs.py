import numpy as np
import pytest

from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.classification import UNKNOWN, evaluate_findings, pair_figures
from medclip_dcl.evaluation.prompt_pairs import (
    CORRELATION_LIMIT,
    LEAST_IMAGES,
    REMEDY,
    check_pair,
    check_pairs,
    pair_correlation,
)
from medclip_dcl.inference.prompts import Finding
from tests.support.oracle import oracle, shown

RISING = np.arange(10.0) / 10
"""Scores 0, .1 to .9 of ten images: variance 8.25 / 100."""


def test_scores_that_differ_by_a_shift_correlate_fully():
    assert pair_correlation(RISING, RISING - 0.3) == pytest.approx(1.0, abs=1e-12)
    assert pair_correlation(RISING, 0.5 - RISING) == pytest.approx(-1.0, abs=1e-12)


def test_the_correlation_of_pairs_that_change_places_is_that_of_the_hand():
    # Neighbours change places: every (x - y)**2 is .01, so sum xy = sum xx - 10 * .01 / 2, and the
    # correlation is 1 - .05 / .825.
    swapped = RISING.reshape(5, 2)[:, ::-1].ravel()
    assert pair_correlation(RISING, swapped) == pytest.approx(1 - 0.05 / 0.825, abs=1e-12)


def test_constant_scores_and_few_images_have_no_correlation():
    assert pair_correlation(RISING, np.full(10, 0.2)) is None
    assert pair_correlation(np.full(10, 0.2), np.full(10, 0.2)) is None
    assert pair_correlation(RISING[: LEAST_IMAGES - 1], RISING[: LEAST_IMAGES - 1]) is None
    assert pair_correlation(np.zeros(0), np.zeros(0)) is None


def test_a_pair_is_warned_of_above_the_limit_alone():
    assert check_pair("edema", CORRELATION_LIMIT, 0.8) is None
    assert check_pair("edema", 0.94, 0.5) is None
    assert check_pair("edema", None, None) is None
    close = check_pair("edema", 0.98, 0.9)
    assert (close.is_undecided, close.is_inverted) == (True, False)
    assert "correlation of 0.980, above 0.97" in close.reason
    assert close.message == f"edema: {close.reason}; {REMEDY}"
    assert "objective.relation: claims" in close.message


def test_an_area_below_one_half_is_upside_down():
    found = check_pair("edema", 0.4, 0.17)
    assert (found.is_undecided, found.is_inverted) == (False, True)
    assert "AUC is 0.170, below 0.5" in found.reason
    both = check_pair("edema", 1.0, 0.17)
    assert "do not decide" in both.reason
    assert "upside down" in both.reason


def test_the_interval_of_a_correlation_is_over_patients():
    subjects = [str(number // 2) for number in range(10)]
    swapped = RISING.reshape(5, 2)[:, ::-1].ravel()
    figure = pair_figures(RISING, swapped, subjects, BootstrapOptions(200, 0))["prompt_correlation"]
    assert figure.value == pytest.approx(1 - 0.05 / 0.825)
    assert figure.low < figure.value < figure.high
    assert (figure.n, figure.subjects) == (10, 5)
    flat = pair_figures(RISING, np.ones(10), subjects, BootstrapOptions(20, 0))
    assert flat["prompt_correlation"].value is None
    assert "all images alike" in flat["prompt_correlation"].reason
    few = pair_figures(RISING[:4], RISING[:4], subjects[:4], BootstrapOptions(20, 0))
    assert few["prompt_correlation"].reason == "fewer than 10 images"


def test_findings_are_checked_by_their_figures():
    def figures(correlation, auc):
        return {"prompt_correlation": Figure(correlation, 10, 10), "auc": Figure(auc, 10, 10)}

    groups = {"edema": figures(0.5, 0.9), "cyst": figures(0.99, None), "mass": figures(None, 0.4)}
    assert [item.finding for item in check_pairs(groups)] == ["cyst", "mass"]


def test_a_pair_of_one_sentence_correlates_fully_and_one_of_two_does_not():
    images = shown(*[{(0, 0): "fluid"}] * 6, *[{(1, 1): "cyst"}] * 6)
    findings = (
        Finding("fluid", ("Fluid.",), ("Cyst.",)),
        Finding("same", ("Fluid.",), ("Fluid.",)),
    )
    truth = np.full((2, 12), UNKNOWN, dtype=np.int8)  # no label is needed
    outcome, rows = evaluate_findings(oracle(), images, findings, truth, BootstrapOptions(0, 0))
    found = [outcome.groups[item.name]["prompt_correlation"].value for item in findings]
    assert found == pytest.approx([-1.0, 1.0])
    assert [item.finding for item in check_pairs(outcome.groups)] == ["same"]
    kept = np.array(
        [[row["positive"], row["negative"]] for row in rows if row["finding"] == "fluid"]
    )
    assert pair_correlation(*kept.T) == pytest.approx(-1.0)
    assert kept[:, 0] - kept[:, 1] == pytest.approx([row["margin"] for row in rows[:12]], abs=1e-7)
