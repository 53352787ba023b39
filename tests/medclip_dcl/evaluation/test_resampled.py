import numpy as np
import pytest

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.bootstrap import (
    patient_weights,
    resampled_auc,
    resampled_balanced_accuracy,
    resampled_mean,
    resampled_median,
    unit_weights,
)
from medclip_dcl.evaluation.metrics import balanced_accuracy, roc_auc

WEIGHTS = np.array([[1, 1, 1, 1], [2, 0, 1, 1], [0, 0, 4, 0]])


def repeated(values, weights):
    return [np.repeat(values, row) for row in weights]


def test_the_first_row_is_the_data_and_every_row_draws_as_many_patients():
    weights = patient_weights(7, 50, np.random.default_rng(0))
    assert weights.shape == (51, 7)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == 7).all()
    assert (weights[1:] == 0).any()


def test_all_units_of_a_patient_are_drawn_together():
    weights = unit_weights(np.array([[1, 1], [0, 2]]), ["x", "y"], ["y", "x", "y"])
    assert weights.tolist() == [[1, 1, 1], [2, 0, 2]]


def test_the_mean_by_hand_leaves_undefined_units_out():
    values = np.array([1.0, 5.0, np.nan, 4.0])
    mean = resampled_mean(values, WEIGHTS)
    assert mean[:2].tolist() == [10 / 3, 2.0]  # (1 + 5 + 4) / 3; (1 + 1 + 4) / 3
    assert np.isnan(mean[2])


def test_the_median_by_hand():
    values = np.array([4.0, 1.0, 3.0, 2.0])
    assert resampled_median(values, WEIGHTS).tolist() == [2.5, 3.5, 3.0]  # 1234, 2344, 3333
    assert np.isnan(resampled_median(np.zeros(0), np.zeros((3, 0), dtype=int))).all()


@pytest.mark.parametrize("seed", range(5))
def test_weights_give_what_repeated_rows_give(seed):
    generator = np.random.default_rng(seed)
    scores, positive = generator.integers(-4, 5, 40) / 4, generator.random(40) < 0.3
    weights = patient_weights(40, 30, generator)
    rows = [np.repeat(np.arange(40), row) for row in weights]
    pairs = {
        "auc": (resampled_auc(scores, positive, weights), roc_auc),
        "acc": (resampled_balanced_accuracy(scores, positive, weights), balanced_accuracy),
    }
    for found, plain in pairs.values():
        assert found == pytest.approx(
            [plain(scores[row], positive[row]) for row in rows], abs=1e-12
        )
    assert resampled_median(scores, weights) == pytest.approx(
        [np.median(values) for values in repeated(scores, weights)], abs=1e-12
    )


def test_a_sample_that_lacks_a_class_has_no_area():
    positive = np.array([True, False, False, False])
    scores = np.array([0.9, 0.1, 0.2, 0.3])
    assert np.isnan(resampled_auc(scores, positive, WEIGHTS)).tolist() == [False, False, True]
    assert np.isnan(resampled_balanced_accuracy(scores, positive, WEIGHTS)[2])


def test_nobody_cannot_be_drawn():
    with pytest.raises(MetricError, match="0 patients"):
        patient_weights(0, 10, np.random.default_rng(0))
