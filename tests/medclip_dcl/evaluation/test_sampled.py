import numpy as np
import pytest

from medclip_dcl.evaluation.bootstrap import draw_weights, estimate, sampled_figure

SUBJECTS = ["a", "a", "b", "c", "d", "e", "f", "g"]
VALUES = np.arange(8.0)


def test_images_of_one_patient_are_drawn_together() -> None:
    weights = draw_weights(SUBJECTS, 50, np.random.default_rng(0))
    assert weights.shape == (51, 8)
    assert (weights[0] == 1).all()
    assert (weights[:, 0] == weights[:, 1]).all()
    assert (weights[1:, 1:].sum(axis=1) == 7).all()  # seven patients, seven draws


def test_the_interval_is_that_of_the_bootstrap_one_by_one() -> None:
    weights = draw_weights(SUBJECTS, 4000, np.random.default_rng(0))
    figure = sampled_figure(weights @ VALUES / weights.sum(axis=1), SUBJECTS, "")
    slow = estimate(
        lambda rows: {"mean": float(VALUES[rows].mean())},
        SUBJECTS,
        4000,
        np.random.default_rng(1),
        "",
    )["mean"]
    assert (figure.value, figure.n, figure.subjects) == (slow.value, 8, 7)
    assert [figure.low, figure.high] == pytest.approx([slow.low, slow.high], abs=0.15)


def test_what_is_undefined_has_its_reason_and_what_is_rare_no_interval() -> None:
    undefined = sampled_figure(np.array([np.nan, 1.0]), SUBJECTS, "no images")
    assert (undefined.value, undefined.reason) == (None, "no images")
    rare = sampled_figure(np.array([0.5, 0.4, np.nan]), SUBJECTS, "no images")
    assert (rare.value, rare.low) == (0.5, None)
    alone = sampled_figure(np.array([0.5, 0.4, 0.6]), ["a", "a"], "no images")
    assert alone.high is None
