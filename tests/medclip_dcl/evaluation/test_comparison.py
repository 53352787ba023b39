import math

import numpy as np
import pytest

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.bootstrap import patient_weights, resampled_mean
from medclip_dcl.evaluation.compare import compare_sides, estimate_side, holm

PATIENTS = 60
FIGURES = 6


def simulated_runs(generator, cases, weights, runs, gain):
    """Runs whose figures vary by run (.05), by patient (.4, shared) and by both (.3)."""
    return {
        str(number): np.stack(
            [
                resampled_mean(
                    gain + case + generator.normal(0, 0.05) + generator.normal(0, 0.3, PATIENTS),
                    weights,
                )
                for _ in range(runs)
            ]
        )
        for number, case in enumerate(cases)
    }


def says_different(seed, runs, gain):
    generator = np.random.default_rng(seed)
    weights = patient_weights(PATIENTS, 120, generator)
    cases = generator.normal(0, 0.4, (FIGURES, PATIENTS))
    a = simulated_runs(generator, cases, weights, runs, gain)
    b = simulated_runs(generator, cases, weights, runs, 0.0)
    return any(item.is_different for item in compare_sides(a, b, generator).values())


@pytest.mark.parametrize("runs", [2, 3, 5])
def test_two_halves_of_one_recipe_seldom_differ(runs):
    # At most 5 % are promised; 11 or more of 100 would happen once in a hundred at 5 %.
    assert sum(says_different(seed, runs, 0.0) for seed in range(100)) <= 10


def test_a_real_difference_is_found():
    assert sum(says_different(seed, 3, 0.4) for seed in range(30)) == 30


def test_seeds_widen_what_patients_alone_leave_narrow():
    # Two models of one recipe, told apart by patients: the run-to-run spread is unseen.
    weights = patient_weights(PATIENTS, 200, np.random.default_rng(1))
    case = np.random.default_rng(2).normal(0, 0.01, PATIENTS)
    runs = np.stack([resampled_mean(case + shift, weights) for shift in (0.0, 0.1, 0.2, 0.3)])
    alone = compare_sides({"x": runs[3:]}, {"x": runs[:1]}, np.random.default_rng(0))["x"]
    assert alone.is_different
    assert "one run" in alone.estimate.reason
    halves = compare_sides({"x": runs[[0, 3]]}, {"x": runs[[1, 2]]}, np.random.default_rng(0))["x"]
    assert not halves.is_different
    assert halves.estimate.reason == ""


def test_the_error_of_a_mean_over_runs_is_not_too_small():
    # No patients' part: s^2 / n with s^2 = 1 (values -1, 0, 1) and n = 3, 2 degrees of freedom.
    runs = np.repeat([[-1.0], [0.0], [1.0]], 20001, axis=1)
    found = estimate_side(runs, np.random.default_rng(0))
    assert found.error == pytest.approx(math.sqrt(1 / 3), rel=0.02)
    assert found.degrees == pytest.approx(2)
    assert found.high == pytest.approx(4.303 * found.error, rel=1e-3)  # t(.975, 2)


def test_equal_runs_do_not_differ():
    same = {"x": np.full((2, 50), 0.5)}
    found = compare_sides(same, same, np.random.default_rng(0))["x"]
    assert (found.estimate.value, found.estimate.p, found.is_different) == (0.0, 1.0, False)


def test_a_figure_that_a_run_lacks_is_named_and_counts_for_nothing():
    a = {"x": np.array([[np.nan] * 9, [0.5] * 9]), "y": np.ones((2, 9))}
    b = {"x": np.full((2, 9), 0.5), "y": np.zeros((2, 9)), "only here": np.zeros((2, 9))}
    found = compare_sides(a, b, np.random.default_rng(0))
    assert list(found) == ["x", "y"]
    assert (found["x"].estimate.value, found["x"].corrected_p) == (None, None)
    assert found["x"].estimate.reason == "a run has no such figure"
    assert found["y"].corrected_p == 0.0


def test_a_figure_that_mostly_vanishes_under_resampling_has_no_verdict():
    lost = np.full((2, 11), np.nan)
    lost[:, :4] = 1.0
    found = compare_sides({"x": lost}, {"x": np.zeros((2, 11))}, np.random.default_rng(0))["x"]
    assert found.estimate.value == 1.0
    assert found.estimate.p is None
    assert "half of the resamples" in found.estimate.reason


def test_holm_by_hand():
    # Ascending .01 x 3, .02 x 2 = .04, .03 x 1 raised to .04.
    assert holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.usefixtures("unchecked_shapes")
def test_sides_must_be_resampled_alike():
    with pytest.raises(MetricError, match="9 and 5 samples"):
        compare_sides({"x": np.ones((2, 9))}, {"x": np.ones((2, 5))}, np.random.default_rng(0))
