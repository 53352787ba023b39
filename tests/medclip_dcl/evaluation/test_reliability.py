import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.metrics import brier_score, calibration_error, reliability

SAID = np.array([0.1, 0.2, 0.2, 0.7, 0.9, 1.0])
TRUE = np.array([False, False, True, True, True, False])


def test_the_error_is_the_one_worked_out_by_hand():
    # two bins: [0, .5) says 1/6 and finds 1/3; [.5, 1] says 2.6/3 and finds 2/3
    low, high = reliability(SAID, TRUE, bins=2)
    assert (low.images, low.probability, low.share) == (3, pytest.approx(0.5 / 3), 1 / 3)
    assert (high.images, high.probability, high.share) == (3, pytest.approx(2.6 / 3), 2 / 3)
    assert calibration_error(SAID, TRUE, bins=2) == pytest.approx(0.5 * (0.5 + 0.6) / 3, rel=1e-12)
    assert brier_score(SAID, TRUE) == pytest.approx((0.01 + 0.04 + 0.64 + 0.09 + 0.01 + 1) / 6)


def test_said_as_it_is_has_no_error_and_said_the_wrong_way_round_has_all():
    assert calibration_error(np.full(4, 0.5), np.array([True, False] * 2)) == 0
    assert calibration_error(TRUE.astype(float), TRUE) == 0
    assert calibration_error((~TRUE).astype(float), TRUE) == 1


def test_an_edge_belongs_to_the_bin_above_it():
    assert [item.images for item in reliability(np.array([0.0, 0.1, 1.0]), np.zeros(3, bool))] == [
        *(1, 1, 1)
    ]


def test_bins_and_scores_agree_with_scikit_learn():
    rng = np.random.default_rng(0)
    said = rng.uniform(size=500)
    true = rng.uniform(size=500) < said**2
    shares, means = calibration_curve(true, said, n_bins=10, strategy="uniform")
    found = reliability(said, true)
    assert [item.share for item in found] == pytest.approx(shares.tolist(), abs=1e-12)
    assert [item.probability for item in found] == pytest.approx(means.tolist(), abs=1e-12)
    sizes = np.histogram(said, bins=10, range=(0, 1))[0]
    expected = (sizes * np.abs(shares - means)).sum() / 500
    assert calibration_error(said, true) == pytest.approx(expected, abs=1e-12)
    assert brier_score(said, true) == pytest.approx(brier_score_loss(true, said), abs=1e-12)


def test_no_images_have_no_error():
    none = np.zeros(0), np.zeros(0, dtype=bool)
    assert (calibration_error(*none), brier_score(*none), reliability(*none)) == (None, None, [])


@pytest.mark.parametrize("said", [[-0.1, 0.5], [0.5, 1.1], [0.5, np.nan]])
def test_what_is_no_probability_is_refused(said: list[float]):
    with pytest.raises(MetricError):
        calibration_error(np.array(said), np.array([True, False]))
