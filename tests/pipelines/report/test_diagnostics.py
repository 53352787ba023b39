"""Diagnostics by hand and against scipy."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from pipelines.report.diagnostics import audit_parts, compare_with_truth, diagnose, spearman


def test_spearman_shares_ranks_among_ties():
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 8, 60), generator.integers(0, 8, 60)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert spearman([1, 2, 3], [10, 20, 30]) == 1
    assert spearman([1, 2, 3], [3, 2, 1]) == -1


def test_diagnosis_of_four_sentences_by_hand():
    eta = np.array([0.2, 0.1, 0.0, 0.2])
    count = np.array([1, 2, 1, 0])
    found = diagnose(eta, np.array([0.0, -2.0, -40.0, 0.0]), count, 10, examples=2)
    assert found.most_corrected.tolist() == [0, 1]
    assert found.least_corrected.tolist() == [2, 1]
    assert found.mean_eta == pytest.approx(0.1)
    assert found.expected_false_negatives == pytest.approx(1.0)
    logged = stats.spearmanr([0.0, -2.0, -40.0], count[:3]).statistic
    assert found.spearman_pll_count == pytest.approx(logged)
    assert found.truth is None
    assert found.spearman_eta_count == pytest.approx(stats.spearmanr(eta[:3], count[:3]).statistic)


def test_truth_is_compared_where_it_is_known():
    rho = np.array([0.4, 0.2, np.nan, 0.1])
    truth = compare_with_truth(np.array([0.2, 0.1, 0.7, 0.05]), rho, np.array([5, 1, 9, 1]))
    assert truth.sentences == 3
    assert truth.pearson_log == pytest.approx(1)
    assert truth.pearson_log_weighted == pytest.approx(1)
    assert truth.median_ratio == pytest.approx(0.5)
    assert math.isnan(truth.log_error)


def test_distance_from_the_capped_truth_by_hand():
    rho = np.array([0.8, 0.1, np.nan, 0.1])
    eta = np.array([0.2, 0.2, 0.2, 0.05])
    truth = compare_with_truth(eta, rho, np.array([2, 1, 9, 1]), cap=0.2)
    assert truth.log_error == pytest.approx(math.sqrt(2 * math.log(2) ** 2 / 4))


ETA = np.array([0.2, 0.1, 0.01, 0.02, 0.5])
RHO = np.array([0.3, np.nan, 0.02, 0.04, 0.9])
COUNT = np.array([2, 2, 3, 1, 0])


def test_expected_and_real_are_those_worked_out_by_hand() -> None:
    low, high = audit_parts(ETA, RHO, COUNT, negatives=10, parts=2)
    assert (low.sentences, low.said, low.low, low.high) == (2, 4, 0.01, 0.02)
    assert low.expected == pytest.approx(10 * (3 * 0.01 + 0.02) / 4)
    assert low.real == pytest.approx(10 * (3 * 0.02 + 0.04) / 4)
    assert (high.sentences, high.said, high.known) == (2, 4, 2)
    assert high.expected == pytest.approx(10 * 0.15)
    assert high.real == pytest.approx(10 * 0.3)  # the sentence that nobody knows has no part in it


def test_the_parts_hold_every_sentence_that_is_said_once() -> None:
    rng = np.random.default_rng(0)
    eta, count = rng.uniform(size=500), rng.integers(0, 9, 500)
    parts = audit_parts(eta, np.full(500, np.nan), count, 63)
    assert len(parts) == 10
    assert sum(part.said for part in parts) == count.sum()
    assert sum(part.sentences for part in parts) == (count > 0).sum()
    assert all(one.high < other.low for one, other in pairwise(parts))
    assert max(part.said for part in parts) < 1.2 * count.sum() / 10
    assert all(part.real is None for part in parts)
    whole = sum(part.said * part.expected for part in parts) / count.sum()
    assert whole == pytest.approx(63 * np.average(eta, weights=count))


def test_sentences_of_one_eta_stay_together() -> None:
    parts = audit_parts(np.full(50, 0.05), np.full(50, 0.05), np.ones(50, dtype=np.int64), 63)
    assert len(parts) == 1
    assert parts[0].expected == parts[0].real == pytest.approx(63 * 0.05)
