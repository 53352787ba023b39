"""The censored fit against simulated corpora with known a and k, and by hand."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import special

from benchmarks.method.eta_calibration.fit import (
    LARGEST_A,
    Evidence,
    Line,
    best_constant,
    censored_shares,
    correlation,
    eta_of_line,
    fit_line,
    log_error,
    resample_lines,
)
from medclip_dcl.errors import ScoreError

CAP, FLOOR = 0.2, 0.004


def simulate(a, k, sigma, seed, sentences=3000):
    """Sentences whose log rho is about log a + k log p; rho above 1 is cut off there."""
    rng = np.random.default_rng(seed)
    pll_nats = -rng.gamma(2, 6, sentences)
    rho = np.exp(math.log(a) + k * pll_nats + sigma * rng.normal(size=sentences))
    return Evidence(pll_nats, np.minimum(rho, 1), np.ones(sentences), FLOOR)


def assume_told(evidence):
    """A line can be found where a quarter of the shares are between floor and cap."""
    assume(np.mean((evidence.share >= FLOOR) & (evidence.share < CAP)) >= 0.25)


def least_squares(evidence, shown):
    k, log_a = np.polyfit(evidence.pll_nats[shown], np.log(evidence.share[shown]), 1)
    return math.exp(log_a), k


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    a=st.floats(0.05, 0.6),
    k=st.floats(0.03, 0.4),
    sigma=st.floats(0.2, 1.2),
    seed=st.integers(0, 10**6),
)
def test_known_a_and_k_are_found_again(a, k, sigma, seed):
    evidence = simulate(a, k, sigma, seed)
    assume_told(evidence)
    line = fit_line(evidence, CAP, "censored")
    assert abs(math.log(line.a / a)) < 0.3
    assert abs(line.k - k) < 0.03 + 0.1 * k
    assert abs(line.sigma / sigma - 1) < 0.15


def test_leaving_censored_sentences_out_or_capping_them_flattens_the_slope():
    a, k = 0.4, 0.25
    evidence = simulate(a, k, 1.0, 3)
    inside = (evidence.share >= FLOOR) & (evidence.share < CAP)
    capped = Evidence(
        evidence.pll_nats, np.clip(evidence.share, FLOOR, CAP), evidence.weight, FLOOR
    )
    everyone = np.ones(len(inside), dtype=bool)
    for others in (least_squares(evidence, inside), least_squares(capped, everyone)):
        assert others[1] < 0.75 * k
    assert fit_line(evidence, CAP, "censored").k == pytest.approx(k, rel=0.06)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    a=st.floats(0.05, 0.6),
    k=st.floats(0.03, 0.25),
    sigma=st.floats(0.0, 1.2),
    seed=st.integers(0, 10**6),
)
def test_no_other_a_and_k_comes_nearer_to_the_capped_shares(a, k, sigma, seed):
    evidence = simulate(a, k, sigma, seed, sentences=500)
    assume_told(evidence)
    measured = Evidence(
        evidence.pll_nats, np.maximum(evidence.share, FLOOR), evidence.weight, FLOOR
    )
    line = fit_line(measured, CAP, "capped")

    def error(other):
        return log_error(eta_of_line(measured.pll_nats, other, CAP), measured, CAP)

    least = error(line) - 1e-6
    assert error(fit_line(measured, CAP, "censored")) >= least
    assert error(Line(best_constant(measured, CAP), 0.0, 0.0)) >= least
    for log_a in np.linspace(math.log(line.a) - 0.5, 0, 15):
        for slope in np.linspace(0, 2 * k, 15):
            assert error(Line(min(math.exp(log_a), LARGEST_A), slope, 0.0)) >= least


@settings(max_examples=8, deadline=None, derandomize=True)
@given(a=st.floats(0.05, 0.6), k=st.floats(0.03, 0.3), seed=st.integers(0, 10**6))
def test_without_noise_the_capped_fit_finds_a_and_k_again(a, k, seed):
    evidence = simulate(a, k, 0.0, seed)
    assume_told(evidence)
    line = fit_line(evidence, CAP, "capped")
    assert line.a == pytest.approx(a, rel=0.01)
    assert line.k == pytest.approx(k, rel=0.01)
    assert line.sigma < 0.01


def test_the_capped_fit_is_pulled_by_rare_sentences_only_from_above_the_floor():
    evidence = simulate(0.2, 0.1, 0.0, 1, sentences=200)
    pll_nats = np.r_[evidence.pll_nats, np.full(200, -60.0)]
    rare = Evidence(pll_nats, np.r_[evidence.share, np.zeros(200)], np.ones(400), FLOOR)
    assert fit_line(rare, CAP, "capped").k == pytest.approx(0.1, rel=0.01)
    common = Evidence(np.r_[evidence.pll_nats, np.full(200, -10.0)], rare.share, rare.weight, FLOOR)
    assert fit_line(common, CAP, "capped").a < 0.19


def test_values_beyond_cap_and_below_floor_play_no_part():
    evidence = simulate(0.3, 0.15, 0.8, 5)
    share = evidence.share.copy()
    share[share >= CAP] = 0.9
    share[share < FLOOR] = 0.0
    moved = Evidence(evidence.pll_nats, share, evidence.weight, FLOOR)
    assert fit_line(moved, CAP, "censored") == fit_line(evidence, CAP, "censored")


def test_nothing_near_the_line_is_likelier():
    evidence = simulate(0.2, 0.2, 0.7, 8)

    def likelihood(line):
        mean = math.log(line.a) + line.k * evidence.pll_nats
        y = np.log(np.clip(evidence.share, FLOOR, CAP))
        z = (y - mean) / line.sigma
        below, above = evidence.share < FLOOR, evidence.share >= CAP
        density = -(z**2) / 2 - math.log(line.sigma)
        tails = np.where(below, special.log_ndtr(z), special.log_ndtr(-z))
        return np.where(below | above, tails, density).sum()

    line = fit_line(evidence, CAP, "censored")
    best = likelihood(line)
    for factor in (0.97, 1.03):
        assert likelihood(Line(line.a * factor, line.k, line.sigma)) < best
        assert likelihood(Line(line.a, line.k * factor, line.sigma)) < best
        assert likelihood(Line(line.a, line.k, line.sigma * factor)) < best


def test_weights_stand_for_repeats():
    evidence = simulate(0.3, 0.1, 0.5, 2, sentences=300)
    weight = np.random.default_rng(0).integers(0, 4, 300)
    weighted = Evidence(evidence.pll_nats, evidence.share, weight.astype(float), FLOOR)
    repeated = Evidence(
        np.repeat(evidence.pll_nats, weight),
        np.repeat(evidence.share, weight),
        np.ones(weight.sum()),
        FLOOR,
    )
    one, other = fit_line(weighted, CAP, "censored"), fit_line(repeated, CAP, "censored")
    assert one.a == pytest.approx(other.a, rel=1e-4)
    assert one.k == pytest.approx(other.k, rel=1e-4)


def test_the_line_stays_within_its_bounds():
    rising = simulate(0.1, 0.1, 0.1, 0)
    falling = Evidence(
        rising.pll_nats,
        np.flip(np.sort(rising.share))[np.argsort(np.argsort(rising.pll_nats))],
        rising.weight,
        FLOOR,
    )
    assert fit_line(falling, CAP, "censored").k == 0
    steep = Evidence(
        rising.pll_nats, np.minimum(np.exp(3 + 0.3 * rising.pll_nats), 1), rising.weight, FLOOR
    )
    assert fit_line(steep, CAP, "censored").a == pytest.approx(LARGEST_A)


def test_sentences_that_count_for_nothing_do_not_enter():
    evidence = simulate(0.2, 0.2, 0.5, 1, sentences=400)
    weight = np.r_[evidence.weight, np.zeros(3)]
    share = np.r_[evidence.share, 0.1, 0.1, 0.1]
    longer = Evidence(np.r_[evidence.pll_nats, -300.0, -300.0, -1.0], share, weight, FLOOR)
    assert fit_line(longer, CAP, "censored") == fit_line(evidence, CAP, "censored")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pll_nats": 0.1}, "1 sentences have no valid"),
        ({"pll_nats": math.nan}, "1 sentences have no valid"),
        ({"share": 1.1}, "1 sentences have no valid"),
        ({"weight": -1.0}, "1 sentences have no valid"),
        ({"floor": 0.2}, "below the cap"),
        ({"floor": 0.0}, "below the cap"),
        ({"floor": 0.199}, "and 10 are needed"),
    ],
)
def test_evidence_that_cannot_be_fitted_is_refused(change, said):
    whole = simulate(0.2, 0.2, 0.5, 1, sentences=100)
    parts = {name: getattr(whole, name) for name in ("pll_nats", "share", "weight", "floor")}
    for name, value in change.items():
        parts[name] = value if name == "floor" else np.r_[value, parts[name][1:]]
    with pytest.raises(ScoreError, match=said):
        fit_line(Evidence(**parts), CAP, "capped")


def test_shares_constant_and_error_by_hand():
    evidence = Evidence(
        np.array([-1.0, -2.0, -3.0, -4.0]),
        np.array([0.8, 0.05, 0.05, 0.001]),
        np.array([2.0, 1.0, 1.0, 4.0]),
        0.01,
    )
    shares = censored_shares(evidence, CAP)
    assert shares == {"above_cap": 0.25, "measured": 0.25, "below_floor": 0.5}
    assert best_constant(evidence, CAP) == pytest.approx(0.1)
    eta = np.array([0.4, 0.1, 0.05, 0.2])
    assert log_error(eta, evidence, CAP) == pytest.approx(math.sqrt(math.log(2) ** 2 / 4))
    expected = np.corrcoef([-1, -1, -2, -3], np.log([0.8, 0.8, 0.05, 0.05]))[0, 1]
    assert correlation(evidence) == pytest.approx(expected)


def test_nothing_measured_has_no_constant_and_no_error():
    evidence = Evidence(np.array([-1.0]), np.array([0.001]), np.array([1.0]), 0.01)
    assert math.isnan(log_error(np.array([0.1]), evidence, CAP))
    assert math.isnan(correlation(evidence))
    with pytest.raises(ScoreError, match="min-studies"):
        best_constant(evidence, CAP)


def test_eta_of_a_line_is_the_capped_formula():
    eta = eta_of_line(np.array([0.0, -1.0, -10.0]), Line(0.4, 0.5, 1.0), CAP)
    assert eta.tolist() == pytest.approx([0.2, 0.2, 0.4 * math.exp(-5)])


def test_bootstrap_samples_hold_whole_patients_and_cover_the_truth():
    evidence = simulate(0.25, 0.2, 0.6, 4, sentences=600)
    patient_of = np.arange(600) // 3
    seen = []

    def measure(weights):
        seen.append(weights)
        return Evidence(evidence.pll_nats, evidence.share, weights, FLOOR)

    lines = resample_lines(measure, patient_of, CAP, "censored", 40, np.random.default_rng(0))
    assert len(lines) == len(seen) == 40
    for weights in seen:
        assert weights.sum() == 600
        assert (weights.reshape(-1, 3) == weights[::3, None]).all()
    low, high = np.quantile([line.k for line in lines], [0.025, 0.975])
    assert low < 0.2 < high
    assert high - low < 0.1


def test_samples_without_enough_sentences_are_left_out():
    evidence = simulate(0.25, 0.2, 0.6, 4, sentences=14)

    def measure(weights):
        return Evidence(evidence.pll_nats, np.full(14, 0.1), weights, FLOOR)

    lines = resample_lines(measure, np.arange(14), CAP, "capped", 30, np.random.default_rng(0))
    assert 0 < len(lines) < 30
