import numpy as np
import pytest

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.bootstrap import estimate


def mean_of(values):
    return lambda rows: {"mean": float(values[rows].mean()) if len(rows) else None}


def test_the_interval_of_a_mean_has_its_known_width():
    values = np.random.default_rng(0).normal(size=400)
    subjects = [str(index) for index in range(400)]
    figure = estimate(mean_of(values), subjects, 2000, np.random.default_rng(1), "")["mean"]
    assert figure.value == pytest.approx(values.mean())
    assert (figure.high - figure.low) / 2 == pytest.approx(1.96 / 20, rel=0.1)
    assert (figure.n, figure.subjects, figure.reason) == (400, 400, "")


def test_repeated_images_of_a_patient_do_not_narrow_the_interval():
    values = np.random.default_rng(0).normal(size=50)
    once, often = (
        estimate(
            mean_of(np.repeat(values, copies)),
            [str(index) for index in np.repeat(np.arange(50), copies)],
            500,
            np.random.default_rng(1),
            "",
        )["mean"]
        for copies in (1, 8)
    )
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_a_resample_holds_all_images_of_each_drawn_patient():
    seen = []

    def watch(rows):
        seen.append(sorted(rows.tolist()))
        return {}

    estimate(watch, ["a", "b", "a"], 50, np.random.default_rng(0), "")
    possible = [[0, 0, 2, 2], [0, 1, 2], [1, 1]]
    assert seen[0] == [0, 1, 2]
    assert all(rows in possible for rows in seen)
    assert all(rows in seen for rows in possible)


def test_an_undefined_figure_says_why_and_has_no_interval():
    figure = estimate(
        lambda _: {"auc": None}, ["a", "b"], 20, np.random.default_rng(0), "no positives"
    )["auc"]
    assert figure.as_json() == {
        "value": None,
        "n": 2,
        "subjects": 2,
        "low": None,
        "high": None,
        "reason": "no positives",
    }


def test_a_figure_that_mostly_vanishes_under_resampling_has_no_interval():
    def rare(rows):
        return {"rare": 1.0 if set(rows) == {0, 1, 2, 3} else None}

    figure = estimate(rare, list("abcd"), 200, np.random.default_rng(0), "")["rare"]
    assert (figure.value, figure.low, figure.high) == (1.0, None, None)


def test_one_patient_has_no_interval():
    figure = estimate(mean_of(np.ones(3)), ["a"] * 3, 100, np.random.default_rng(0), "")["mean"]
    assert (figure.value, figure.low) == (1.0, None)


def test_no_rows_are_undefined_not_an_error():
    figure = estimate(mean_of(np.ones(0)), [], 100, np.random.default_rng(0), "no images")["mean"]
    assert (figure.value, figure.n, figure.reason) == (None, 0, "no images")


def test_equal_seeds_give_equal_intervals():
    values = np.arange(20.0)
    subjects = [str(index) for index in range(20)]
    runs = [
        estimate(mean_of(values), subjects, 100, np.random.default_rng(7), "") for _ in range(2)
    ]
    assert runs[0] == runs[1]


def test_a_negative_number_of_samples_is_refused():
    with pytest.raises(MetricError, match="-1 bootstrap samples"):
        estimate(mean_of(np.ones(1)), ["a"], -1, np.random.default_rng(0), "")
