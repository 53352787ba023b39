"""The section about eta: figures by hand and against scipy, truth, what a private report omits."""

import math

import numpy as np
import pytest
from scipy import stats

from medclip_dcl.text.sentences import text_key
from pipelines.report import charts
from pipelines.report.correction import compare_with_truth, describe_eta, diagnose, spearman
from pipelines.report.preflight import ReportConfig
from pipelines.report.sources import find_sources
from tests.support.corpus import KINDS
from tests.support.evaluated import write_texts

NEGATIVES = 63
TEXTS = [text for _, *said in KINDS for text in said]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("described") / "work")


@pytest.fixture(scope="module")
def view(work):
    return describe_eta(sources(work))


@pytest.fixture
def undrawn(monkeypatch):
    """Charts without their pictures, which take most of the time."""
    monkeypatch.setattr(charts, "_svg", lambda *_: "")


def sources(work, rho=None, **settings):
    return find_sources(work, ReportConfig(**settings), False, rho or {}, NEGATIVES)


def caption(view, title):
    return next(chart["meaning"] for chart in view["charts"] if chart["title"] == title)


def test_expected_false_negatives_are_n_times_eta_of_the_recipe_s_batch(view):
    figures = view["figures"]
    assert figures["mean eta of a training sentence"] == pytest.approx(0.05)
    assert figures["expected false negatives among them, N · eta"] == pytest.approx(63 * 0.05)
    assert figures["distinct sentences"] == len(TEXTS)
    assert figures["rank correlation of eta and occurrences"] is None


@pytest.mark.usefixtures("undrawn")
def test_eta_is_held_against_the_truth_where_there_is_one(work, view):
    rho = {text_key(text): 0.1 for text in TEXTS}
    found = caption(describe_eta(sources(work, rho)), "Is it right?")
    assert "true class probability" in found
    assert "median of eta / rho 0.5" in found
    assert "by a factor of 2." in found
    assert "Is it right?" not in [chart["title"] for chart in view["charts"]]


def test_sentences_are_listed_unless_the_report_is_private(work, view):
    assert {row["text"] for row in view["most"] + view["least"]} <= set(TEXTS)
    assert len(view["most"]) == len(view["least"]) == 8
    private = describe_eta(sources(work, private=True))
    assert private["most"] == private["least"] == []
    assert not any(text in str(private) for text in TEXTS)


def test_spearman_shares_ranks_among_ties():
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 8, 60), generator.integers(0, 8, 60)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert spearman([1, 2, 3], [10, 20, 30]) == 1
    assert spearman([1, 2, 3], [3, 2, 1]) == -1


def test_diagnosis_of_four_sentences_by_hand():
    eta = np.array([0.2, 0.1, 0.0, 0.2])
    count = np.array([1, 2, 1, 0])
    found = diagnose(eta, np.array([0.0, -2.0, -40.0, 0.0]), count, examples=2)
    assert found.most_corrected.tolist() == [0, 1]
    assert found.least_corrected.tolist() == [2, 1]
    assert found.mean_eta == pytest.approx(0.1)
    logged = stats.spearmanr([0.0, -2.0, -40.0], count[:3]).statistic
    assert found.spearman_pll_count == pytest.approx(logged)
    assert found.spearman_eta_count == pytest.approx(stats.spearmanr(eta[:3], count[:3]).statistic)


def test_truth_is_compared_where_it_is_known():
    rho = np.array([0.4, 0.2, np.nan, 0.1])
    truth = compare_with_truth(np.array([0.2, 0.1, 0.7, 0.05]), rho, np.array([5, 1, 9, 1]), 1.0)
    assert truth.sentences == 3
    assert truth.pearson_log == pytest.approx(1)
    assert truth.pearson_log_weighted == pytest.approx(1)
    assert truth.median_ratio == pytest.approx(0.5)
    assert truth.log_error == pytest.approx(math.log(2))


def test_distance_from_the_capped_truth_by_hand():
    rho = np.array([0.8, 0.1, np.nan, 0.1])
    eta = np.array([0.2, 0.2, 0.2, 0.05])
    truth = compare_with_truth(eta, rho, np.array([2, 1, 9, 1]), cap=0.2)
    assert truth.log_error == pytest.approx(math.sqrt(2 * math.log(2) ** 2 / 4))
