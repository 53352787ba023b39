"""Linear probe: logistic regression on frozen features, its penalty chosen on other images."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from medclip_dcl.errors import MetricError

Features = Float[np.ndarray, "images features"]
Labels = Int64[np.ndarray, " images"]

_ITERATIONS = 500


@dataclass(frozen=True)
class Labelled:
    """Features of some images and what the images show."""

    features: Features
    labels: Labels


@dataclass(frozen=True)
class ProbeFit:
    """What a probe came to."""

    penalty: float
    """The penalty that the validation images chose; of equals the largest."""
    validation_accuracy: float
    """Mean recall over the classes of the validation images."""
    recalls: tuple[float, ...]
    """Share of each class's test images that are recognised; not a number: it has none."""
    converged: bool
    """Whether the chosen fit ended by itself, and not by its 500 iterations."""
    margins: tuple[float, ...] = ()
    """Of two classes: log odds of the second for every test image; of more: empty."""

    def accuracy(self, classes: Sequence[bool]) -> float:
        """Average the recalls of some classes.

        Args:
            classes: which.

        Returns:
            Mean recall; over all classes of a balanced test split, the accuracy. Not a number
            where none of them has a test image.
        """
        chosen = [value for value, is_in in zip(self.recalls, classes, strict=True) if is_in]
        known = [value for value in chosen if value == value]  # not a number: no test image
        return sum(known) / len(known) if known else float("nan")


def linear_probe(
    train: Labelled,
    validate: Labelled,
    test: Labelled,
    penalties: Sequence[float],
    classes: int,
    *,
    balanced: bool = False,
) -> ProbeFit:
    """Train a linear classifier on frozen features and examine it.

    Args:
        train: labelled images.
        validate: images that choose the penalty.
        test: images that judge, and choose nothing.
        penalties: L2 penalties per labelled image: the fit minimises the mean cross entropy
            plus penalty / 2 times the squared weights. Features are standardised by the
            labelled images.
        classes: number of classes; labels are below it.
        balanced: whether classes weigh the same in the fit, however many images they have.

    Returns:
        The fit with the best mean recall on `validate`.

    Raises:
        MetricError: the labelled images show fewer than two classes, or a split is empty.

    Source: ours; the papers train the probe by Adam with a fixed weight decay.
    """
    if len(np.unique(train.labels)) < 2:
        raise MetricError(
            "the labelled images show fewer than two classes; give a probe more labels"
        )
    if not len(validate.labels) or not len(test.labels):
        raise MetricError("a probe needs validation and test images; the image set lacks some")
    middle, spread = train.features.mean(axis=0), train.features.std(axis=0)
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1), 0)

    def standard(split: Labelled) -> np.ndarray:
        features: np.ndarray = (split.features - middle) * scale
        return features

    known, judged = standard(validate), standard(test)
    best: tuple[float, ProbeFit] | None = None
    weight = "balanced" if balanced else None
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True, class_weight=weight)
    for penalty in sorted(penalties, reverse=True):
        model.set_params(C=1 / (penalty * len(train.labels)))
        converged = _fit(model, standard(train), train.labels)
        right = _recalls(validate.labels, model.predict(known), classes)
        score = float(np.nanmean(right))
        if best is None or score > best[0]:
            recalls = _recalls(test.labels, model.predict(judged), classes)
            odds = model.decision_function(judged) if classes == 2 else np.zeros(0)
            margins = tuple(odds.tolist())
            best = score, ProbeFit(penalty, score, tuple(recalls.tolist()), converged, margins)
    if best is None:
        raise MetricError("a probe needs one penalty at least; name some")
    return best[1]


def _fit(model: LogisticRegression, features: np.ndarray, labels: np.ndarray) -> bool:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(features, labels)
    return not told


def _recalls(labels: np.ndarray, found: np.ndarray, classes: int) -> np.ndarray:
    of_class = np.bincount(labels, minlength=classes)
    right = np.bincount(labels[labels == found], minlength=classes)
    recalls: np.ndarray = np.where(of_class > 0, right / np.maximum(of_class, 1), np.nan)
    return recalls
