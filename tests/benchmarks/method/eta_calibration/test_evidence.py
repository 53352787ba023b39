"""Measured class probabilities against counting with three loops."""

import numpy as np
import pytest

from benchmarks.method.eta_calibration.evidence import (
    MatchTable,
    Occurrences,
    measure_meanings,
    measure_wordings,
)

SENTENCES, STUDIES, MEANINGS, COLUMNS = 12, 40, 5, 9


@pytest.fixture
def corpus():
    rng = np.random.default_rng(0)
    said = rng.random((SENTENCES, STUDIES)) < 0.15
    said[0] = False
    sentence, study = np.nonzero(said)
    of_sentence = rng.integers(-1, MEANINGS, SENTENCES)
    of_sentence[1:3] = 0, -1
    of_study = rng.integers(-1, COLUMNS, STUDIES)
    fits = rng.random((MEANINGS, COLUMNS)) < 0.4
    meanings = MatchTable(of_sentence, of_study, np.packbits(fits, axis=1), COLUMNS)
    return Occurrences(sentence, study, SENTENCES, STUDIES), meanings, said, fits


def share_by_counting(saying, fitting, known, weights):
    """Mean over the draws of studies that say it: share of the other studies that fit."""
    total = rest = 0.0
    for own in np.flatnonzero(saying):
        for other in range(STUDIES):
            if other != own and known[other]:
                total += weights[own] * weights[other] * fitting[other]
                rest += weights[own] * weights[other]
    return total / rest if rest else 0.0


@pytest.mark.parametrize("is_sample", [False, True])
def test_a_meaning_is_measured_by_the_other_studies_it_fits(corpus, is_sample):
    occurrences, meanings, said, fits = corpus
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 4, STUDIES).astype(float) if is_sample else np.ones(STUDIES)
    pll_nats = -np.arange(SENTENCES, dtype=float)
    found = measure_meanings(pll_nats, occurrences, meanings, weights, 2)
    known = meanings.of_study >= 0
    for index in range(SENTENCES):
        meaning = meanings.of_sentence[index]
        reported = meaning >= 0 and (weights * said[index]).sum() > 0
        assert (found.weight[index] > 0) == reported
        if reported:
            assert found.weight[index] == (weights * said[index]).sum()
            fitting = known & fits[meaning, meanings.of_study]
            expected = share_by_counting(said[index], fitting, known, weights)
            assert found.share[index] == pytest.approx(expected)
    assert found.floor == pytest.approx(2 / ((weights * known).sum() - 1))
    assert (found.pll_nats == pll_nats).all()


@pytest.mark.parametrize("is_sample", [False, True])
def test_a_wording_is_measured_by_the_other_studies_that_use_it(corpus, is_sample):
    occurrences, _, said, _ = corpus
    rng = np.random.default_rng(2)
    weights = rng.integers(0, 4, STUDIES).astype(float) if is_sample else np.ones(STUDIES)
    found = measure_wordings(-np.ones(SENTENCES), occurrences, weights, 1)
    for index in range(SENTENCES):
        everyone = np.ones(STUDIES, dtype=bool)
        expected = share_by_counting(said[index], said[index], everyone, weights)
        assert found.share[index] == pytest.approx(expected)
    assert found.weight[0] == 0


def test_a_sentence_said_once_is_measured_without_its_own_study(corpus):
    occurrences = Occurrences(np.array([0, 1]), np.array([0, 1]), 2, 10)
    found = measure_wordings(-np.ones(2), occurrences, np.ones(10), 1)
    assert found.share.tolist() == [0, 0]
    assert not found.is_measured.any()


def test_the_share_is_unbiased_for_a_sentence_of_a_random_report():
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(300):
        said = rng.random(60) < 0.1
        if said.any():
            study = np.flatnonzero(said)
            occurrences = Occurrences(np.zeros(len(study), int), study, 1, 60)
            found = measure_wordings(-np.ones(1), occurrences, np.ones(60), 1)
            shares.append((found.share[0], found.weight[0]))
    share, weight = np.array(shares).T
    assert np.average(share, weights=weight) == pytest.approx(0.1, abs=0.006)
