from dataclasses import asdict

import numpy as np
import pytest

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.metrics import (
    BootstrapOptions,
    estimate,
    mean,
    patient_weights,
    summarise,
)

SUBJECTS = ["a", "a", "b", "c", "d", "e", "f", "g"]
VALUES = np.arange(8.0)


def mean_of(values, subjects, samples, seed=1, undefined=""):
    options = BootstrapOptions(samples, seed)
    return estimate(lambda each: {"mean": mean(values, each)}, subjects, options, undefined)["mean"]


def test_the_interval_of_a_mean_has_its_known_width():
    values = np.random.default_rng(0).normal(size=400)
    figure = mean_of(values, [str(index) for index in range(400)], 2000)
    assert figure.value == pytest.approx(values.mean())
    assert (figure.high - figure.low) / 2 == pytest.approx(1.96 / 20, rel=0.1)
    assert (figure.n, figure.subjects, figure.reason) == (400, 400, "")


def test_the_interval_is_that_of_rows_repeated_as_often_as_they_are_drawn():
    figure = mean_of(VALUES, SUBJECTS, 200)
    generator, names = np.random.default_rng(1), np.array(SUBJECTS)
    patients, drawn = sorted(set(SUBJECTS)), []
    for _ in range(200):
        chosen = generator.integers(7, size=7)
        rows = np.concatenate([np.flatnonzero(names == patients[index]) for index in chosen])
        drawn.append(VALUES[rows].mean())
    assert (figure.n, figure.subjects) == (8, 7)
    assert [figure.low, figure.high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())


def test_samples_are_measured_a_block_at_a_time_and_give_the_same_interval(monkeypatch):
    whole, sizes = mean_of(VALUES, SUBJECTS, 100), []
    monkeypatch.setattr("medclip_dcl.evaluation.metrics._BLOCK", 31)

    def measure(each):
        sizes.append(len(each))
        return {"mean": mean(VALUES, each)}

    assert estimate(measure, SUBJECTS, BootstrapOptions(100, 1), "")["mean"] == whole
    assert sizes == [3] * 33 + [2]  # at most 31 weights of 8 units in a block


def test_repeated_images_of_a_patient_do_not_narrow_the_interval():
    values = np.random.default_rng(0).normal(size=50)
    once, often = (
        mean_of(np.repeat(values, copies), [str(i) for i in np.repeat(np.arange(50), copies)], 500)
        for copies in (1, 8)
    )
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_an_undefined_figure_says_why_and_has_no_interval():
    figure = mean_of(np.array([np.nan, np.nan]), ["a", "b"], 20, undefined="no positives")
    assert asdict(figure) == {
        "value": None,
        "n": 2,
        "subjects": 2,
        "low": None,
        "high": None,
        "reason": "no positives",
    }


def test_a_figure_that_mostly_vanishes_under_resampling_has_no_interval():
    def rare(weights):
        return {"rare": np.where((weights == 1).all(axis=1), 1.0, np.nan)}

    figure = estimate(rare, list("abcd"), BootstrapOptions(200, 0), "")["rare"]
    assert (figure.value, figure.low, figure.high) == (1.0, None, None)
    half = summarise(np.array([0.5, 0.4, np.nan]), SUBJECTS, "no images")
    assert (half.value, half.low) == (0.5, None)


def test_one_patient_has_no_interval_and_two_have_one():
    figure = mean_of(np.ones(3), ["a"] * 3, 100)
    assert (figure.value, figure.low) == (1.0, None)
    figure = mean_of(np.array([1.0, 2.0]), ["a", "b"], 100)
    assert (figure.value, figure.low, figure.high) == (1.5, 1.0, 2.0)


def test_nobody_and_a_negative_number_of_samples_are_refused():
    with pytest.raises(MetricError, match="0 patients"):
        patient_weights(0, 10, np.random.default_rng(0))
    with pytest.raises(MetricError, match="-1 bootstrap samples"):
        mean_of(np.ones(1), ["a"], -1)
