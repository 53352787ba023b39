from itertools import pairwise

import numpy as np
import pytest

from medclip_reporting.diagnostics import audit_parts

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
