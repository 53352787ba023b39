import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.probe import Labelled, ProbeFit, linear_probe

MIDDLES = np.array([[3.0, 0, 0], [0, 3.0, 0], [0, 0, 3.0]])


def split(count: int, seed: int, noise: float = 0.5) -> Labelled:
    """Three classes about three places."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % 3
    return Labelled(MIDDLES[labels] + noise * rng.standard_normal((count, 3)), labels)


def test_classes_that_a_plane_parts_are_told_apart() -> None:
    fit = linear_probe(split(30, 0), split(30, 1), split(60, 2), [0.01], 3)
    assert fit.accuracy([True] * 3) == 1.0
    assert fit.converged


def test_a_fit_is_sklearn_s_with_the_penalty_per_image() -> None:
    train, validate, test = (split(30, seed, noise=3.0) for seed in range(3))
    fit = linear_probe(train, validate, test, [0.1], 3)
    middle, spread = train.features.mean(axis=0), train.features.std(axis=0)
    model = LogisticRegression(C=1 / (0.1 * 30), max_iter=1000)
    model.fit((train.features - middle) / spread, train.labels)
    right = model.predict((test.features - middle) / spread) == test.labels
    assert list(fit.recalls) == pytest.approx([right[c::3].mean() for c in range(3)])


def test_validation_images_choose_and_test_images_do_not() -> None:
    train, test = split(12, 0, noise=4.0), split(30, 5, noise=4.0)
    penalties = [1e-4, 1e2]
    alone = [linear_probe(train, split(300, 1, 4.0), test, [p], 3) for p in penalties]
    chosen = linear_probe(train, split(300, 1, 4.0), test, penalties, 3)
    best = max(alone, key=lambda fit: fit.validation_accuracy)
    assert chosen.penalty == best.penalty
    mirrored = Labelled(test.features, (test.labels + 1) % 3)
    assert linear_probe(train, split(300, 1, 4.0), mirrored, penalties, 3).penalty == best.penalty


def test_rare_classes_count_as_much_as_common_ones() -> None:
    fit = ProbeFit(0.1, 0.5, (1.0, 0.5, float("nan"), 0.0), True)
    assert fit.accuracy([True] * 4) == pytest.approx(0.5)
    assert fit.accuracy([True, False, False, True]) == pytest.approx(0.5)
    assert np.isnan(fit.accuracy([False, False, True, False]))


def test_a_balanced_fit_does_not_give_up_on_rare_classes() -> None:
    train, validate, test = (split(600, seed, noise=3.0) for seed in range(3))
    kept = np.concatenate(
        [np.flatnonzero(train.labels != 2), np.flatnonzero(train.labels == 2)[:8]]
    )
    skewed = Labelled(train.features[kept], train.labels[kept])
    plain, balanced = (
        linear_probe(skewed, validate, test, [0.01], 3, balanced=choice) for choice in (False, True)
    )
    assert balanced.recalls[2] > plain.recalls[2] + 0.2


def test_a_feature_that_never_varies_is_left_out() -> None:
    def padded(labelled: Labelled) -> Labelled:
        flat = np.full((len(labelled.labels), 1), 7.0)
        return Labelled(np.concatenate([labelled.features, flat], axis=1), labelled.labels)

    fit = linear_probe(padded(split(30, 0)), padded(split(30, 1)), padded(split(30, 2)), [0.01], 3)
    assert fit.accuracy([True] * 3) == 1.0


def test_one_class_alone_teaches_nothing() -> None:
    one = Labelled(np.zeros((4, 3)), np.zeros(4, dtype=np.int64))
    with pytest.raises(MetricError, match="fewer than two classes"):
        linear_probe(one, split(3, 0), split(3, 1), [0.1], 3)
    with pytest.raises(MetricError, match="validation and test"):
        linear_probe(split(3, 0), Labelled(np.zeros((0, 3)), one.labels[:0]), one, [0.1], 3)
