import pytest

from medclip_dcl.training.optim import learning_rate_share
from medclip_dcl.training.settings import TrainConfig


def test_warm_up_is_linear_and_ends_at_the_peak() -> None:
    shares = [learning_rate_share(step, 4, 104) for step in range(4)]
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_cosine_starts_at_the_peak_and_is_half_in_the_middle() -> None:
    assert learning_rate_share(4, 4, 104) == 1.0
    assert learning_rate_share(54, 4, 104) == pytest.approx(0.5)
    assert 0 < learning_rate_share(103, 4, 104) < 0.001


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 100_000),
        ({"steps": 7}, 7),
        ({"epochs": 3}, 30),
        ({"epochs": 0.25}, 2),
        ({"epochs": 0.01}, 1),
        ({"epochs": 3, "steps": None}, 30),
    ],
)
def test_epochs_are_passes_of_full_batches(given: dict[str, float], steps: int) -> None:
    settings = TrainConfig.model_validate(given).counted(steps_per_epoch=10)
    assert (settings.total_steps, settings.epochs) == (steps, None)
    assert TrainConfig.model_validate(settings.model_dump()) == settings
