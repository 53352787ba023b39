"""The section about eta: figures by hand, and what a private report omits."""

import numpy as np
import pytest

from pipelines.report.outcomes import describe_eta, diagnose
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


def sources(work, **settings):
    return find_sources(work, ReportConfig(**settings), False, NEGATIVES)


def test_expected_false_negatives_are_n_times_eta_of_the_recipe_s_batch(view):
    figures = view["figures"]
    assert figures["mean eta of a training sentence"] == pytest.approx(0.05)
    assert figures["expected false negatives among them, N · eta"] == pytest.approx(63 * 0.05)
    assert figures["distinct sentences"] == len(TEXTS)


def test_sentences_are_listed_unless_the_report_is_private(work, view):
    assert {row["text"] for row in view["most"] + view["least"]} <= set(TEXTS)
    assert len(view["most"]) == len(view["least"]) == 8
    private = describe_eta(sources(work, private=True))
    assert private["most"] == private["least"] == []
    assert not any(text in str(private) for text in TEXTS)


def test_diagnosis_of_four_sentences_by_hand():
    eta = np.array([0.2, 0.1, 0.0, 0.2])
    count = np.array([1, 2, 1, 0])
    found = diagnose(eta, count, examples=2)
    assert found.most_corrected.tolist() == [0, 1]
    assert found.least_corrected.tolist() == [2, 1]
    assert found.mean_eta == pytest.approx(0.1)
