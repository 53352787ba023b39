import numpy as np

from benchmarks.method.compare import count_trials

SAMPLES = 60


def runs(count, middle, seed):
    """Runs of two figures that vary by run alone."""
    generator = np.random.default_rng(seed)
    return {
        name: np.repeat(middle + generator.normal(0, 0.02, (count, 1)), SAMPLES, axis=1)
        for name in ("zero_shot.mean_auc", "boxes.recall")
    }


def test_halves_are_silent_and_a_control_is_told():
    counts = count_trials(runs(8, 0.9, 1), runs(4, 0.5, 2), 20)
    assert counts["different_from_control"] == 20
    assert counts["silent_on_halves"] >= 17
    assert counts["single_runs_called_different"] == 1.0  # no spread over patients at all


def test_a_control_that_is_the_recipe_itself_is_seldom_told():
    assert count_trials(runs(8, 0.9, 1), runs(4, 0.9, 2), 20)["different_from_control"] <= 3
