"""Diagnostics by hand and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from medclip_reporting.diagnostics import compare_with_truth, diagnose, spearman


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
