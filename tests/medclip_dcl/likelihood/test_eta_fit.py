"""a and k against simulated corpora with known ones, and measured shares against counting."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from medclip_dcl.core.errors import ScoreError
from medclip_dcl.likelihood.eta_fit import (
    LARGEST_A,
    LEAST_STUDIES,
    Fits,
    Line,
    Occurrences,
    Shares,
    best_constant,
    compare,
    count_fits,
    fit_line,
    log_error,
    mean_eta,
)
from medclip_dcl.losses.relations import encode_claims
from medclip_dcl.text.labeler.labels import read_claims

CAP, FLOOR = 0.2, 0.004
SENTENCES, STUDIES, MEANINGS, COLUMNS = 12, 40, 5, 9


def simulate(a, k, sigma, seed, sentences=3000):
    """Sentences whose log share is about log a + k log p; shares above 1 are cut off there."""
    rng = np.random.default_rng(seed)
    pll_nats = -rng.gamma(2, 6, sentences)
    rho = np.exp(math.log(a) + k * pll_nats + sigma * rng.normal(size=sentences))
    return pll_nats, Shares(np.minimum(rho, 1), np.ones(sentences), FLOOR)


def assume_told(shares):
    """A line can be found where a quarter of the shares are between floor and cap."""
    assume(np.mean((shares.share >= FLOOR) & (shares.share < CAP)) >= 0.25)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    a=st.floats(0.05, 0.6),
    k=st.floats(0.03, 0.25),
    sigma=st.floats(0.0, 1.2),
    seed=st.integers(0, 10**6),
)
def test_no_other_a_and_k_comes_nearer_to_the_capped_shares(a, k, sigma, seed):
    pll_nats, evidence = simulate(a, k, sigma, seed, sentences=500)
    assume_told(evidence)
    measured = Shares(np.maximum(evidence.share, FLOOR), evidence.weight, FLOOR)
    line = fit_line(pll_nats, measured, CAP)

    def error(other):
        return log_error(other.eta(pll_nats, CAP), measured, CAP)

    least = error(line) - 1e-6
    assert error(Line(best_constant(measured, CAP), 0.0)) >= least
    for log_a in np.linspace(math.log(line.a) - 0.5, 0, 15):
        for slope in np.linspace(0, 2 * k, 15):
            assert error(Line(min(math.exp(log_a), LARGEST_A), slope)) >= least


@settings(max_examples=8, deadline=None, derandomize=True)
@given(a=st.floats(0.05, 0.6), k=st.floats(0.03, 0.3), seed=st.integers(0, 10**6))
def test_without_noise_a_and_k_are_found_again(a, k, seed):
    pll_nats, shares = simulate(a, k, 0.0, seed)
    assume_told(shares)
    line = fit_line(pll_nats, shares, CAP)
    assert line.a == pytest.approx(a, rel=0.01)
    assert line.k == pytest.approx(k, rel=0.01)


def test_rare_sentences_pull_only_from_above_the_floor():
    pll_nats, shares = simulate(0.2, 0.1, 0.0, 1, sentences=200)
    rare = Shares(np.r_[shares.share, np.zeros(200)], np.ones(400), FLOOR)
    at = np.r_[pll_nats, np.full(200, -60.0)]
    assert fit_line(at, rare, CAP).k == pytest.approx(0.1, rel=0.01)
    common = np.r_[pll_nats, np.full(200, -10.0)]
    assert fit_line(common, rare, CAP).a < 0.19


def test_weights_stand_for_repeats():
    pll_nats, shares = simulate(0.3, 0.1, 0.5, 2, sentences=300)
    weight = np.random.default_rng(0).integers(0, 4, 300)
    weighted = fit_line(pll_nats, Shares(shares.share, weight.astype(float), FLOOR), CAP)
    said = Shares(np.repeat(shares.share, weight), np.ones(weight.sum()), FLOOR)
    repeated = fit_line(np.repeat(pll_nats, weight), said, CAP)
    assert weighted.a == pytest.approx(repeated.a, rel=1e-4)
    assert weighted.k == pytest.approx(repeated.k, rel=1e-4)


def test_the_line_stays_within_its_bounds():
    pll_nats, rising = simulate(0.1, 0.1, 0.1, 0)
    falling = np.flip(np.sort(rising.share))[np.argsort(np.argsort(pll_nats))]
    assert fit_line(pll_nats, Shares(falling, rising.weight, FLOOR), CAP).k == 0
    steep = np.minimum(np.exp(3 + 0.3 * pll_nats), 1)
    assert fit_line(pll_nats, Shares(steep, rising.weight, FLOOR), 0.99).a == LARGEST_A


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pll_nats": 0.1}, "1 sentences have no valid"),
        ({"pll_nats": math.nan}, "1 sentences have no valid"),
        ({"share": 1.1}, "1 sentences have no valid"),
        ({"weight": -1.0}, "1 sentences have no valid"),
        ({"floor": 0.2}, "below the cap"),
        ({"floor": 0.0}, "below the cap"),
        ({"floor": 0.199}, "and 10 are needed.*eta.fit to none"),
    ],
)
def test_shares_that_cannot_be_fitted_are_refused(change, said):
    pll_nats, whole = simulate(0.2, 0.2, 0.5, 1, sentences=100)
    parts = {"pll_nats": pll_nats, "share": whole.share, "weight": whole.weight, "floor": FLOOR}
    for name, value in change.items():
        parts[name] = value if name == "floor" else np.r_[value, parts[name][1:]]
    with pytest.raises(ScoreError, match=said):
        fit_line(parts.pop("pll_nats"), Shares(**parts), CAP)


def test_constant_error_and_means_by_hand():
    shares = Shares(np.array([0.8, 0.05, 0.05, 0.001]), np.array([2.0, 1.0, 1.0, 4.0]), 0.01)
    assert best_constant(shares, CAP) == pytest.approx(0.1)
    eta = np.array([0.2, 0.1, 0.05, 0.2])
    assert log_error(eta, shares, CAP) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4))
    assumed, measured = mean_eta(eta, shares, CAP)
    assert assumed == pytest.approx((2 * 0.2 + 0.1 + 0.05 + 4 * 0.2) / 8)
    assert measured == pytest.approx((2 * 0.2 + 0.05 + 0.05 + 4 * 0.001) / 8)
    nobody = Shares(np.array([0.001]), np.array([0.0]), 0.01)
    assert math.isnan(log_error(np.array([0.1]), nobody, CAP))
    assert all(map(math.isnan, mean_eta(np.array([0.1]), nobody, CAP)))


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
    table = Fits(of_sentence, of_study, np.packbits(fits, axis=1), COLUMNS)
    return Occurrences(sentence, study, SENTENCES), table, said, fits


def share_by_counting(saying, fitting, known):
    """Mean over the studies that say it: share of the other studies that fit."""
    total = rest = 0
    for own in np.flatnonzero(saying):
        for other in range(STUDIES):
            if other != own and known[other]:
                total += fitting[other]
                rest += 1
    return total / rest if rest else 0.0


def test_a_meaning_is_measured_by_the_other_studies_it_fits(corpus):
    occurrences, table, said, fits = corpus
    found = count_fits(occurrences, table)
    known = table.of_study >= 0
    for index in range(SENTENCES):
        meaning = table.of_sentence[index]
        assert found.weight[index] == (said[index].sum() if meaning >= 0 else 0)
        if found.weight[index]:
            fitting = known & fits[meaning, table.of_study]
            assert found.share[index] == pytest.approx(
                share_by_counting(said[index], fitting, known)
            )
    assert found.floor == pytest.approx(LEAST_STUDIES / (known.sum() - 1))


def test_the_share_is_unbiased_for_a_sentence_of_a_random_report():
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(300):
        said = rng.random(60) < 0.1
        if said.any():
            study = np.flatnonzero(said)
            table = Fits(np.zeros(1, int), said.astype(int), np.packbits([[0, 1]], axis=1), 2)
            found = count_fits(Occurrences(np.zeros(len(study), int), study, 1), table)
            shares.append((found.share[0], found.weight[0]))
    share, weight = np.array(shares).T
    assert np.average(share, weights=weight) == pytest.approx(0.1, abs=0.006)


def test_reports_fit_by_what_they_say_or_leave_open():
    said = ["No pneumothorax.", "Large left pleural effusion.", "Comparison is made."]
    reports = ["Left effusion.", "No pneumothorax.", "Pneumothorax.", "Right effusion."]
    known = np.array([True, True, True, False])
    table = compare(
        encode_claims([read_claims(text) for text in said]),
        encode_claims([read_claims(text) for text in reports]),
        known,
    )
    assert table.of_study[3] == -1
    assert table.of_sentence[2] == -1  # nothing recognized
    fits = np.unpackbits(table.table, axis=1, count=table.columns).astype(bool)
    rows = [fits[table.of_sentence[index], table.of_study[:3]].tolist() for index in (0, 1)]
    assert rows == [[True, True, False], [True, False, False]]
