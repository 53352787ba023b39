import numpy as np
import pytest

from medclip_dcl.image_only.data import Division, divide

LABELS = np.arange(400, dtype=np.int64) % 4  # 100 of each class


def division(r: float = 0.1, seed: int = 0, **changes: float) -> Division:
    settings = {"per_class": 0, "validate_share": 0.1, "test_per_class": 0, **changes}
    return divide(LABELS, {1, 3}, r, seed=seed, **settings)  # type: ignore[arg-type]


def counts(rows: np.ndarray) -> list[int]:
    return np.bincount(LABELS[rows], minlength=4).tolist()


def test_only_training_images_of_the_named_classes_become_rare() -> None:
    parts = division(test_per_class=20)
    assert counts(parts.test) == [20] * 4
    assert counts(parts.validate) == [8] * 4
    assert counts(parts.train) == [72, 7, 72, 7]


def test_no_image_is_in_two_splits() -> None:
    parts = division(r=1.0, test_per_class=20)
    rows = np.concatenate([parts.train, parts.validate, parts.test])
    assert sorted(rows.tolist()) == list(range(400))


@pytest.mark.parametrize("r", [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
def test_a_smaller_r_keeps_a_part_of_the_same_images(r: float) -> None:
    most, some = division(r=1.0), division(r=r)
    assert set(some.train.tolist()) <= set(most.train.tolist())
    assert some.validate.tolist() == most.validate.tolist()
    assert counts(some.train)[1] == round(90 * r)


def test_the_seed_decides_which() -> None:
    assert division().train.tolist() == division().train.tolist()
    assert division().train.tolist() != division(seed=1).train.tolist()


def test_classes_can_be_cut_to_a_size_before_they_are_thinned() -> None:
    assert counts(division(r=0.5, per_class=30).train) == [30, 15, 30, 15]


def test_a_thinned_class_never_vanishes() -> None:
    assert counts(division(r=0.001).train) == [90, 1, 90, 1]
