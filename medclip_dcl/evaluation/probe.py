"""Linear heads on frozen features: probes of an encoder, and heads that a model is published with.

Both are a logistic regression with both classes at equal weight, fitted to training patients. Its
penalty is that of the best AUC on the validation images, which also give the threshold, and of a
head the calibration. Figures are those of test images.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float, Int8, Int64
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from medclip_dcl.core.errors import MetricError
from medclip_dcl.evaluation.classification import (
    UNKNOWN,
    figures_of,
    mean_finding_figures,
    ranking,
)
from medclip_dcl.evaluation.decisions import (
    calibrate_finding,
    choose_threshold,
    decision_figures,
    evaluate_decisions,
    probability_figures,
)
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.metrics import BootstrapOptions, roc_auc, value_of
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference.heads import Head, HeadCard, HeadFigure, head_margins
from medclip_dcl.inference.prompts import Finding
from medclip_dcl.models.settings import ProbabilitiesConfig

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
"""L2 penalties per labelled image that are tried, the strongest first."""

_BLOCK = 1024  # images that are averaged at a time
_ITERATIONS = 500

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Labelled:
    """Features of some images, and what the images show: 1 the finding, 0 not."""

    features: Float[np.ndarray, "images features"]
    labels: Int8[np.ndarray, " images"]
    subject_ids: Sequence[str]

    def take(self, rows: Int64[np.ndarray, " chosen"]) -> "Labelled":
        """Take some of the images."""
        subjects = [self.subject_ids[row] for row in rows.tolist()]
        return Labelled(self.features[rows], self.labels[rows], subjects)


def fit_logistic(labelled: Labelled, penalty: float) -> dict[str, np.ndarray]:
    """Fit a logistic regression with both classes at equal weight.

    It minimises the mean cross entropy plus penalty / 2 times the squared weights of features that
    are standardised by the images that are fitted.

    Returns:
        `weight` and `bias` of features as they are: their standardisation is within.

    Raises:
        MetricError: a class is missing among the images.
    """
    if len(np.unique(labelled.labels)) < 2:
        raise MetricError("the labelled images show one class alone; give a probe more labels")
    # scikit-learn adds losses up where we average them, so its C holds the number of images.
    strength = 1 / (penalty * len(labelled.labels))
    logistic = LogisticRegression(C=strength, max_iter=_ITERATIONS, class_weight="balanced")
    scaler = StandardScaler()
    with warnings.catch_warnings():  # a fit that ends by its iterations is good enough
        warnings.simplefilter("ignore", ConvergenceWarning)
        # In float64, as margins are computed.
        make_pipeline(scaler, logistic).fit(labelled.features.astype(np.float64), labelled.labels)
    weight = logistic.coef_[0].astype(np.float64) / scaler.scale_
    bias = float(logistic.intercept_[0]) - float(weight @ scaler.mean_)
    return {"weight": weight, "bias": np.array([bias])}


def fit_chosen(train: Labelled, validate: Labelled) -> tuple[Arrays, float]:
    """Fit by the penalty of the best AUC on validation images; arrays as `fit_logistic`, penalty.

    The strongest of several that are as good, and where validation lacks a class.

    Source: ours; the papers train the probe by Adam with a fixed weight decay.
    """
    positive = validate.labels == 1
    if not positive.any() or positive.all():
        return fit_logistic(train, PENALTIES[0]), PENALTIES[0]
    fitted = {penalty: fit_logistic(train, penalty) for penalty in PENALTIES}
    aucs = [
        value_of(roc_auc(head_margins(arrays, validate.features), positive)) or 0.0
        for arrays in fitted.values()
    ]
    chosen = PENALTIES[int(np.argmax(aucs))]
    return fitted[chosen], chosen


def image_features(images: EncodedImages) -> Float[np.ndarray, "images dim"]:
    """Return one vector of each image, the mean of its regions.

    Of unit region vectors it has a length of 1 at most; features have one region.
    """
    blocks = torch.split(images.regions.flatten(1, 2), _BLOCK)
    means = torch.cat([block.float().mean(dim=1) for block in blocks])
    features: np.ndarray = means.cpu().numpy()
    return features


def labelled_images(
    features: Float[np.ndarray, "images features"],
    truth: Int8[np.ndarray, " images"],
    subject_ids: Sequence[str],
) -> Labelled:
    """Take the images whose truth is known."""
    return Labelled(features, truth, subject_ids).take(np.flatnonzero(truth != UNKNOWN))


def evaluate_probe(
    splits: Sequence[tuple[EncodedImages, Int8[np.ndarray, "findings _"]]],
    findings: Sequence[Finding],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, EvalResult, Rows]:
    """Fit a linear classifier per finding.

    `splits` are images and truth of training, of the evaluated split and of validation, by which
    penalties and thresholds are chosen; their regions are features of the encoder, or vectors of
    the shared space. Findings that lack a class in training or in the evaluated split are left out.

    Returns:
        The probes' figures, those of their decisions by finding, and rows of `results.PROBES`.

    Source: Wang et al. 2023 probe CIFAR10 alone; ours: the same on images.
    """
    (trained, _), (judged, judged_truth), _ = splits
    probed = [
        index
        for index in range(len(findings))
        if all({0, 1} <= set(truth[index].tolist()) for _, truth in splits[:2])
    ]
    if not probed:
        absent = EvalResult("no finding has images of both classes in every split")
        return absent, absent, []
    # Of no image there are no regions to average: validation may be empty.
    width = trained.regions.shape[-1]
    features = [
        image_features(images) if images.image_ids else np.zeros((0, width), dtype=np.float32)
        for images, _ in splits
    ]
    margins, thresholds = [], []
    rows: Rows = []
    for index in probed:
        train, _, validate = (
            labelled_images(own, truth[index], images.subject_ids)
            for own, (images, truth) in zip(features, splits, strict=True)
        )
        arrays, _ = fit_chosen(train, validate)
        margins.append(head_margins(arrays, features[1]))
        levels = head_margins(arrays, validate.features)
        thresholds.append(choose_threshold(levels, validate.labels, validate.subject_ids))
        rows += [
            {
                **judged.ids_of(image),
                "finding": findings[index].name,
                "threshold": thresholds[-1].value,
                "margin": float(margins[-1][image]),
                "truth": int(judged_truth[index, image]),
            }
            for image in np.flatnonzero(judged_truth[index] != UNKNOWN).tolist()
        ]
    answers = np.array(margins), judged_truth[probed], judged.subject_ids
    names = [findings[index].name for index in probed]
    decisions = evaluate_decisions(names, *answers, thresholds, bootstrap)
    figures = mean_finding_figures(*answers, bootstrap)
    images = {"labelled": len(trained.image_ids), "images": len(judged.image_ids)}
    pool = images | {"findings": len(probed)}
    return EvalResult("", pool, dict.fromkeys(figures, 0.5), figures), decisions, rows


@dataclass(frozen=True)
class HeadRules:
    """Settings that heads are fitted and measured by."""

    probabilities: ProbabilitiesConfig
    bootstrap: BootstrapOptions

    def plain(self) -> dict[str, str | float | int]:
        """Return what decides a head as plain values, to be kept with it."""
        return {
            **{f"probabilities.{k}": v for k, v in self.probabilities.model_dump().items()},
            "threshold.kind": "youden",
            "bootstrap": self.bootstrap.samples,
        }


def make_head(
    name: str, splits: Sequence[Labelled], rules: HeadRules, inputs: Mapping[str, str]
) -> Head:
    """Fit a head to one finding's training and validation images, and measure it on test images.

    The first two have images of both classes.
    """
    train, validate, test = splits
    arrays, chosen = fit_chosen(train, validate)
    margins = head_margins(arrays, validate.features)
    threshold = choose_threshold(margins, validate.labels, validate.subject_ids)
    assert threshold.value is not None
    patients = len(set(validate.subject_ids))
    calibration = calibrate_finding(
        name, margins, validate.labels == 1, patients, rules.probabilities
    )
    judged, truth = head_margins(arrays, test.features), test.labels
    owners, bootstrap = test.subject_ids, rules.bootstrap
    figures = {"auc": figures_of(ranking, judged, truth, owners, None, bootstrap)["auc"]}
    figures |= decision_figures(judged, truth, owners, threshold, bootstrap)
    if calibration.curve is not None:
        probability = calibration.curve.probabilities(judged)
        figures |= probability_figures({"": probability}, truth, owners, bootstrap)
    card = HeadCard(
        name=name,
        kind="linear",
        features="space",
        chosen=chosen,
        threshold=threshold.value,
        calibration=calibration,
        images_with=int(train.labels.sum()),
        images_without=int((1 - train.labels).sum()),
        patients=len(set(train.subject_ids)),
        figures={each: HeadFigure(**asdict(figure)) for each, figure in figures.items()},
        inputs=dict(inputs),
        settings=rules.plain(),
    )
    return Head(card, arrays)
