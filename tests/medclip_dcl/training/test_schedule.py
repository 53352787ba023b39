import pytest

from medclip_dcl.training.optim import learning_rate_share


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    shares = [learning_rate_share(step, 4, 104) for step in range(4)]
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_cosine_starts_at_the_peak_and_is_half_in_the_middle() -> None:
    assert learning_rate_share(4, 4, 104) == 1.0
    assert learning_rate_share(54, 4, 104) == pytest.approx(0.5)
    assert 0 < learning_rate_share(103, 4, 104) < 0.001


def test_a_run_without_warm_up_starts_at_the_peak() -> None:
    assert learning_rate_share(0, 0, 10) == 1.0


def test_a_run_that_is_all_warm_up_stays_within_the_peak() -> None:
    assert all(0 < learning_rate_share(step, 10, 10) <= 1 for step in range(10))
