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
from medclip_dcl.evaluation.classification import UNKNOWN, mean_finding_figures
from medclip_dcl.evaluation.evaluated_model import EncodedImages
from medclip_dcl.evaluation.metrics import balanced_accuracy
from medclip_dcl.evaluation.results import EvalResult, Rows
from medclip_dcl.inference import Finding

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""L2 penalties per labelled image among which validation images choose."""

_DRAWS = 3  # of the labels at each fraction below 1
_ITERATIONS = 500


@dataclass(frozen=True)
class Labelled:
    """Features of some images, and what the images show: 1 the finding, 0 not."""

    features: Float[np.ndarray, "images features"]
    labels: Int64[np.ndarray, " images"]


def linear_probe(
    train: Labelled,
    validate: Labelled,
    judged: Float[np.ndarray, "judged features"],
    penalties: Sequence[float] = PENALTIES,
) -> tuple[Float[np.ndarray, " judged"], float]:
    """Train a linear classifier on frozen features and apply it to others.

    Features are standardised by the labelled images. The fit minimises the mean cross entropy plus
    penalty / 2 times the squared weights.

    Returns:
        Log odds of the finding in every judged image, and the penalty with the best balanced
        accuracy on `validate`; of equals the largest.

    Raises:
        MetricError: a class is missing among the labelled or the validation images.

    Source: ours; the papers train the probe by Adam with a fixed weight decay.
    """
    for name, split in (("labelled", train), ("validation", validate)):
        if len(np.unique(split.labels)) < 2:
            raise MetricError(
                f"the {name} images show fewer than two classes; give a probe more labels"
            )
    middle, spread = train.features.mean(axis=0), train.features.std(axis=0)
    # A feature that is the same in all labelled images says nothing: 0, not divided by 0.
    scale = np.where(spread > 0, 1 / np.where(spread > 0, spread, 1), 0)
    known, chosen, asked = (
        (features - middle) * scale for features in (train.features, validate.features, judged)
    )
    best: tuple[float, np.ndarray, float] | None = None
    model = LogisticRegression(max_iter=_ITERATIONS, warm_start=True)
    for penalty in sorted(penalties, reverse=True):
        # scikit-learn adds losses up where we average them, so its C holds the number of images.
        model.set_params(C=1 / (penalty * len(train.labels)))
        with warnings.catch_warnings():  # a fit that ends by its iterations is good enough
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(known, train.labels)
        score = balanced_accuracy(model.decision_function(chosen), validate.labels == 1)[0]
        if best is None or score > best[0]:
            best = score, model.decision_function(asked).astype(np.float64), penalty
    if best is None:
        raise MetricError("a probe needs one penalty at least; name some")
    return best[1:]


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
    """Give one vector of each image, the mean of its unit region vectors: length 1 at most."""
    features: np.ndarray = images.regions.flatten(1, 2).mean(dim=1).cpu().numpy()
    return features


def evaluate_probe(
    splits: Sequence[tuple[EncodedImages, Int8[np.ndarray, "findings _"]]],
    findings: Sequence[Finding],
    fractions: Sequence[float],
    bootstrap: BootstrapOptions,
) -> tuple[EvalResult, Rows]:
    """Fit a linear classifier per finding with growing shares of the labels.

    `splits` are images and truth of training, validation and the evaluated split. A share below 1
    is drawn three times. Findings that lack a class in a split are left out.

    Source: Wang et al. 2023 probe CIFAR10 alone; ours: the same on images.
    """
    judged, judged_truth = splits[2]
    asked = [
        index
        for index in range(len(findings))
        if all({0, 1} <= set(truth[index].tolist()) for _, truth in splits)
    ]
    if not asked:
        return EvalResult("no finding has images of both classes in every split"), []
    features = [image_features(images) for images, _ in splits]
    groups: dict[str, dict[str, Figure]] = {}
    rows: Rows = []
    for step, fraction in enumerate(fractions):
        probed, margins = [], []
        for draw in range(_DRAWS if fraction < 1 else 1):
            # A stream for each share and draw: another share leaves these draws as they are.
            sequence = np.random.SeedSequence([bootstrap.seed, step, draw])
            generator = np.random.Generator(np.random.Philox(sequence))
            for index in asked:
                train, validate = (
                    _known(features[split], splits[split][1][index]) for split in (0, 1)
                )
                few = draw_labelled(train.labels, fraction, generator)
                labelled = Labelled(train.features[few], train.labels[few])
                odds, _ = linear_probe(labelled, validate, features[2])
                probed.append(index)
                margins.append(odds)
                rows += [
                    {
                        **judged.ids_of(image),
                        "finding": findings[index].name,
                        "fraction": fraction,
                        "draw": draw,
                        "margin": float(odds[image]),
                        "truth": int(judged_truth[index, image]),
                    }
                    for image in np.flatnonzero(judged_truth[index] != UNKNOWN).tolist()
                ]
        groups[f"{fraction:g}"] = mean_finding_figures(
            np.array(margins), judged_truth[probed], judged.subject_ids, bootstrap
        )
    pool = {
        "labelled": len(splits[0][0].image_ids),
        "images": len(judged.image_ids),
        "findings": len(asked),
    }
    names = ("mean_auc", "mean_balanced_accuracy")
    chance = {f"{group}.{name}": 0.5 for group in groups for name in names}
    return EvalResult("", pool, chance, {}, groups), rows


def _known(features: np.ndarray, truth: np.ndarray) -> Labelled:
    known = truth != UNKNOWN
    return Labelled(features[known], truth[known].astype(np.int64))
