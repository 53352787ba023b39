"""Linear probe: logistic regression on frozen features, by share of the labels.

Its penalty is chosen by cross-validation within that share, so that no other label is used; its
figures are those of other images.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int8, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.classification import UNKNOWN, mean_finding_figures
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.operating_point import (
    ThresholdRule,
    choose_thresholds,
    evaluate_decisions,
)
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.prompts import Finding

FRACTIONS = (0.01, 0.1, 1.0)
"""Shares of the training labels that a probe is given: those that ConVIRT and GLoRIA report."""
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""L2 penalties per labelled image among which cross-validation chooses."""

_BLOCK = 1024  # images that are averaged at a time
_FOLDS = 5
_DRAWS = 3  # of the labels at each fraction below 1
_ITERATIONS = 500


@dataclass(frozen=True)
class Labelled:
    """Features of some images, and what the images show: 1 the finding, 0 not."""

    features: Float[np.ndarray, "images features"]
    labels: Int64[np.ndarray, " images"]
    subject_ids: Sequence[str]
    """Patient of each image: all images of a patient are in one fold."""

    def take(self, rows: Int64[np.ndarray, " chosen"]) -> "Labelled":
        """Take some of the images."""
        subjects = [self.subject_ids[row] for row in rows.tolist()]
        return Labelled(self.features[rows], self.labels[rows], subjects)


def linear_probe(
    known: Labelled,
    judged: Float[np.ndarray, "judged features"],
    penalties: Sequence[float] = PENALTIES,
) -> tuple[Float[np.ndarray, " judged"], float]:
    """Train a linear classifier on frozen features and apply it to others.

    Features are standardised by the images that are fitted. The fit minimises the mean cross
    entropy plus penalty / 2 times the squared weights. The penalty is that of the best mean recall
    over five folds of the patients, or as many as the rarer class has patients; the first of
    `penalties` where recalls are equal, and where the rarer class has one patient alone.

    Returns:
        Log odds of the finding in every judged image, and the penalty.

    Raises:
        MetricError: a class is missing among the labelled images.

    Source: ours; the papers train the probe by Adam with a fixed weight decay.
    """
    if len(np.unique(known.labels)) < 2:
        raise MetricError("the labelled images show one class alone; give a probe more labels")
    strengths = {"logisticregression__C": [_strength(each, known) for each in penalties]}
    model = _logistic()
    folds = _folds(known)
    if folds:
        model = GridSearchCV(model, strengths, scoring="balanced_accuracy", cv=folds)
    else:
        model.set_params(logisticregression__C=strengths["logisticregression__C"][0])
    _fit(model, known)
    chosen = penalties[model.best_index_] if folds else penalties[0]
    return model.decision_function(judged).astype(np.float64), chosen


def fit_logistic(known: Labelled, penalty: float) -> dict[str, np.ndarray]:
    """Fit the probe's model with both classes at equal weight.

    Gives `weight` and `bias` of features as they are: their standardisation is within.
    """
    model = _logistic(class_weight="balanced")
    _fit(model.set_params(logisticregression__C=_strength(penalty, known)), known)
    scaler, logistic = model.named_steps.values()
    weight = logistic.coef_[0].astype(np.float64) / scaler.scale_
    bias = float(logistic.intercept_[0]) - float(weight @ scaler.mean_)
    return {"weight": weight, "bias": np.array([bias])}


def _logistic(class_weight: str | None = None) -> Pipeline:
    regression = LogisticRegression(max_iter=_ITERATIONS, class_weight=class_weight)
    return make_pipeline(StandardScaler(), regression)


def _strength(penalty: float, known: Labelled) -> float:
    # scikit-learn adds losses up where we average them, so its C holds the number of images.
    return 1 / (penalty * len(known.labels))


def _fit(model: Pipeline | GridSearchCV, known: Labelled) -> None:
    with warnings.catch_warnings():  # a fit that ends by its iterations is good enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(known.features, known.labels)


def _folds(known: Labelled) -> list[tuple[np.ndarray, np.ndarray]]:
    # Images to fit and to judge, in each fold both classes. A patient with the finding in one image
    # counts as a patient with it.
    subjects, owner = np.unique(np.array(known.subject_ids), return_inverse=True)
    shows = np.zeros(len(subjects), dtype=np.int64)
    np.maximum.at(shows, owner, known.labels)
    count = min(_FOLDS, int(np.bincount(shows, minlength=2).min()))
    if count < 2:
        return []
    parts = StratifiedKFold(count, shuffle=True, random_state=0).split(subjects, shows)
    return [
        (np.flatnonzero(np.isin(owner, fitted)), np.flatnonzero(np.isin(owner, judged)))
        for fitted, judged in parts
    ]


def draw_labelled(
    labels: Int64[np.ndarray, " images"], fraction: float, generator: np.random.Generator
) -> Int64[np.ndarray, " chosen"]:
    """Draw the images whose labels a probe is given, as ascending rows.

    Of each class round(fraction n) of its n images are drawn, at least one.
    """
    chosen = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        chosen.append(generator.permutation(rows)[:count])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def image_features(images: EncodedImages) -> Float[np.ndarray, "images dim"]:
    """Return one vector of each image, the mean of its regions.

    Of unit region vectors it has a length of 1 at most; features have one region.
    """
    blocks = torch.split(images.regions.flatten(1, 2), _BLOCK)
    means = torch.cat([block.float().mean(dim=1) for block in blocks])
    features: np.ndarray = means.cpu().numpy()
    return features


def evaluate_probe(
    splits: Sequence[tuple[EncodedImages, Int8[np.ndarray, "findings _"]]],
    findings: Sequence[Finding],
    fractions: Sequence[float],
    bootstrap: BootstrapOptions,
    rule: ThresholdRule,
) -> tuple[EvalResult, EvalResult, Rows]:
    """Fit a linear classifier per finding with growing shares of the labels.

    `splits` are images and truth of training, of the evaluated split and of validation, by which
    thresholds are chosen; their regions are features of the encoder, or vectors of the shared
    space. A share below 1 is drawn three times. Findings that lack a class in training or in the
    evaluated split are left out.

    Returns:
        The probes' figures by share; those of the decisions by finding, with the largest share, of
        its draws the first; and rows of `results.PROBES`.

    Source: Wang et al. 2023 probe CIFAR10 alone; ours: the same on images.
    """
    trained, (judged, judged_truth), (validation, validation_truth) = splits
    asked = [
        index
        for index in range(len(findings))
        if all({0, 1} <= set(truth[index].tolist()) for _, truth in splits[:2])
    ]
    if not asked:
        absent = EvalResult("no finding has images of both classes in every split")
        return absent, absent, []
    every = _labelled(*trained, asked)
    others = [image_features(images) for images in (judged, validation) if images.image_ids]
    asked_features, count = np.concatenate(others), len(judged.image_ids)
    groups: dict[str, dict[str, Figure]] = {}
    rows: Rows = []
    decisions = EvalResult()
    for step, fraction in enumerate(fractions):
        probed, margins, thresholds = [], [], []
        for draw in range(_DRAWS if fraction < 1 else 1):
            # A stream for each share and draw: another share leaves these draws as they are.
            sequence = np.random.SeedSequence([bootstrap.seed, step, draw])
            generator = np.random.Generator(np.random.Philox(sequence))
            for index in asked:
                labelled = every[index].take(
                    draw_labelled(every[index].labels, fraction, generator)
                )
                odds, _ = linear_probe(labelled, asked_features)
                probed.append(index)
                margins.append(odds[:count])
                asked_of = (odds[None, count:], validation_truth[[index]], validation.subject_ids)
                thresholds += choose_thresholds(*asked_of, rule)
                probe: dict[str, Any] = {"finding": findings[index].name, "draw": draw}
                probe |= {"fraction": fraction, "threshold": thresholds[-1].value}
                rows += _rows((judged, judged_truth[index], odds), probe)
        groups[f"{fraction:g}"] = mean_finding_figures(
            np.array(margins), judged_truth[probed], judged.subject_ids, bootstrap
        )
        if fraction == max(fractions):
            decisions = evaluate_decisions(
                [findings[index].name for index in asked],
                np.array(margins[: len(asked)]),
                judged_truth[asked],
                judged.subject_ids,
                thresholds[: len(asked)],
                bootstrap,
            )
    pool = {
        "labelled": len(trained[0].image_ids),
        "images": len(judged.image_ids),
        "findings": len(asked),
    }
    names = ("mean_auc", "mean_balanced_accuracy")
    chance = {f"{group}.{name}": 0.5 for group in groups for name in names}
    return EvalResult("", pool, chance, {}, groups), decisions, rows


def _rows(asked: tuple[EncodedImages, np.ndarray, np.ndarray], probe: dict[str, Any]) -> Rows:
    # Of images, truth and log odds; log odds of more images come after them.
    judged, truth, odds = asked
    return [
        {**judged.ids_of(image), **probe, "margin": float(odds[image]), "truth": int(truth[image])}
        for image in np.flatnonzero(truth != UNKNOWN).tolist()
    ]


def _labelled(
    images: EncodedImages, truth: Int8[np.ndarray, "findings _"], asked: Sequence[int]
) -> dict[int, Labelled]:
    # The images of known truth, by finding.
    features = image_features(images)
    return {
        index: Labelled(features, truth[index].astype(np.int64), images.subject_ids).take(
            np.flatnonzero(truth[index] != UNKNOWN)
        )
        for index in asked
    }
