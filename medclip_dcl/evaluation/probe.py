"""Linear probe: logistic regression on frozen features, by share of the labels.

Its penalty is chosen on the validation images, its figures are those of other images.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int8, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from medclip_dcl.errors import MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.classification import mean_finding_figures
from medclip_dcl.evaluation.inputs import UNKNOWN, EncodedImages, EvalResult, Rows
from medclip_dcl.evaluation.settings import ProbeConfig
from medclip_dcl.inference import Finding

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
        raise MetricError("a probe needs validation and test images; one of them has none")
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(features, labels)
    return not caught


def _recalls(labels: np.ndarray, found: np.ndarray, classes: int) -> np.ndarray:
    of_class = np.bincount(labels, minlength=classes)
    right = np.bincount(labels[labels == found], minlength=classes)
    recalls: np.ndarray = np.where(of_class > 0, right / np.maximum(of_class, 1), np.nan)
    return recalls


def draw_labelled(
    labels: Int64[np.ndarray, " images"], fraction: float, generator: np.random.Generator
) -> Int64[np.ndarray, " chosen"]:
    """Draw the images whose labels a probe is given.

    Args:
        labels: class of each image.
        fraction: share of each class that is drawn, in (0, 1].
        generator: source of randomness.

    Returns:
        Ascending rows; of each class round(fraction n) of its n images, at least one.
    """
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        chosen.append(generator.permutation(rows)[:count])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def image_features(images: EncodedImages) -> Float[np.ndarray, "images dim"]:
    """Give one vector of each image, the mean of its unit region vectors: length 1 at most."""
    features: np.ndarray = images.regions.flatten(1, 2).mean(dim=1).cpu().numpy()
    return features


def evaluate_probe(
    splits: Sequence[tuple[EncodedImages, Int8[np.ndarray, "findings _"]]],
    findings: Sequence[Finding],
    settings: ProbeConfig,
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Fit a linear classifier per finding with growing shares of the labels.

    Args:
        splits: images and truth (1 present, 0 absent, `UNKNOWN` not known) of
            training, validation and the evaluated split.
        findings: the findings, one row of each truth.
        settings: fractions, draws and penalties; the validation images choose the penalty.
        bootstrap: of the intervals, and of the draws.

    Returns:
        The outcome, with a group of `mean_auc` and `mean_balanced_accuracy` per fraction,
        and the rows of `results.PROBES`. Findings that lack a class in a split are left out.

    Source: Wang et al. 2023 probe CIFAR10 alone; ours: the same on images.
    """
    (train, _), _, (judged, _) = splits
    features = [image_features(images) for images, _ in splits]
    asked = [
        index
        for index in range(len(findings))
        if all({0, 1} <= set(truth[index].tolist()) for _, truth in splits)
    ]
    if not asked:
        return EvalResult("no finding has images of both classes in every split"), []
    groups: dict[str, dict[str, Figure]] = {}
    rows: Rows = []
    for step, fraction in enumerate(settings.fractions):
        margins, truths = [], []
        for draw in range(settings.draws if fraction < 1 else 1):
            sequence = np.random.SeedSequence([bootstrap.seed, step, draw])
            generator = np.random.Generator(np.random.Philox(sequence))
            for index in asked:
                labelled = [
                    _labelled(found, truth[index])
                    for found, (_, truth) in zip(features, splits, strict=True)
                ]
                few = draw_labelled(labelled[0].labels, fraction, generator)
                fitted = linear_probe(
                    Labelled(labelled[0].features[few], labelled[0].labels[few]),
                    labelled[1],
                    Labelled(features[2], np.zeros(len(features[2]), dtype=np.int64)),
                    settings.penalties,
                    2,
                    balanced=settings.balanced,
                )
                margins.append(fitted.margins)
                truths.append(splits[2][1][index])
                rows += _rows(fraction, draw, findings[index].name, judged, margins[-1], truths[-1])
        groups[f"{fraction:g}"] = mean_finding_figures(
            np.array(margins), np.array(truths), judged.subject_ids, bootstrap
        )
    pool = {
        "labelled": len(train.image_ids),
        "images": len(judged.image_ids),
        "findings": len(asked),
    }
    chance = {
        f"{group}.{name}": 0.5
        for group in groups
        for name in ("mean_auc", "mean_balanced_accuracy")
    }
    return EvalResult("", pool, chance, {}, groups), rows


def _labelled(features: np.ndarray, truth: np.ndarray) -> Labelled:
    known = truth != UNKNOWN
    return Labelled(features[known], truth[known].astype(np.int64))


def _rows(
    fraction: float,
    draw: int,
    finding: str,
    images: EncodedImages,
    margins: Sequence[float],
    truth: np.ndarray,
) -> Rows:
    return [
        {
            "image_id": images.image_ids[image],
            "subject_id": images.subject_ids[image],
            "finding": finding,
            "fraction": fraction,
            "draw": draw,
            "margin": margins[image],
            "truth": int(truth[image]),
        }
        for image in np.flatnonzero(truth != UNKNOWN).tolist()
    ]
