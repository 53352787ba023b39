"""What frozen features have learned: linear probes by share of labels, and a t-SNE picture."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.metrics import recall_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

DRAWS = 3  # of a share of the labels below 1
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # L2, per labeled image
FOLDS, MOST_CHOOSING = 3, 5000  # parts and images that choose among them
ONE_LABEL_PENALTY = 1e-2  # where a class has a single label, nothing can be chosen
MAP_IMAGES, PERPLEXITY = 1000, 30.0
LABELS, MAP = 3, 4  # streams of randomness, besides those of train.py


class Labeled(NamedTuple):
    """Features of some images and what the images show."""

    features: Float[np.ndarray, "images features"]
    labels: Int64[np.ndarray, " images"]


def draw_labeled(
    labels: Int64[np.ndarray, " images"], fraction: float, rng: np.random.Generator
) -> Int64[np.ndarray, " chosen"]:
    """Draw a share of the images of each class, at least one."""
    chosen = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(rows[: max(1, round(fraction * len(rows)))])
    return np.sort(np.concatenate(chosen))


def probe_by_fraction(
    train: Labeled, test: Labeled, is_rare: Sequence[bool], shares: Sequence[float], seed: int
) -> Iterator[dict[str, Any]]:
    """Fit linear classifiers with growing shares of the labels.

    The penalty is chosen within the share, by the mean recall of three folds: no other label
    is used.

    Yields:
        For each share and draw what holds on `test`: plain accuracy, of the first guess and of
        the first five; mean recall over all classes, over those that are whole, and over rare
        ones, not a number where there are none.
    """
    rare = np.array(is_rare)
    for number, fraction in enumerate(shares):
        for draw in range(DRAWS if fraction < 1 else 1):
            rng = np.random.default_rng([seed, LABELS, number, draw])
            rows = draw_labeled(train.labels, fraction, rng)
            scaler = StandardScaler().fit(train.features[rows])
            features, labels = scaler.transform(train.features[rows]), train.labels[rows]
            model = _fit(features, labels, _choose_penalty(features, labels, rng))
            scores = model.predict_proba(scaler.transform(test.features))
            guesses = model.classes_[np.argsort(-scores, axis=1, kind="stable")]
            right = guesses == test.labels[:, None]
            recalls = recall_score(
                test.labels,
                guesses[:, 0],
                labels=range(len(rare)),
                average=None,
                zero_division=np.nan,
            )
            yield {
                "fraction": fraction,
                "draw": draw,
                "labels": len(rows),
                "accuracy": float(right[:, 0].mean()),
                "top_5": float(right[:, :5].any(axis=1).mean()),
                "mean_recall": _mean(recalls),
                "recall_whole": _mean(recalls[~rare]),
                "recall_rare": _mean(recalls[rare]),
            }


def draw_map(
    test: Labeled, names: Sequence[str], is_rare: Sequence[bool], path: Path, seed: int
) -> None:
    """Draw images in the plane, near where their features are alike."""
    share = min(1.0, MAP_IMAGES / len(test.labels))
    rows = draw_labeled(test.labels, share, np.random.default_rng([seed, MAP]))
    perplexity = min(PERPLEXITY, (len(rows) - 1) / 3)
    layout = TSNE(perplexity=perplexity, init="pca", random_state=seed)
    x, y = layout.fit_transform(test.features[rows]).T
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    for label, (name, rare) in enumerate(zip(names, is_rare, strict=True)):
        mine = test.labels[rows] == label
        marker, text = ("^", f"{name} (rare)") if rare else ("o", name)
        axes.scatter(x[mine], y[mine], s=16, marker=marker, label=text)
    axes.set(xticks=[], yticks=[], title="Features of test images (t-SNE)")
    axes.legend(bbox_to_anchor=(1, 1), loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)


def _fit(features: np.ndarray, labels: np.ndarray, penalty: float) -> LogisticRegression:
    model = LogisticRegression(C=1 / (penalty * len(labels)), max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(features, labels)


def _choose_penalty(features: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> float:
    """Take the penalty of the best mean recall; of equals the largest."""
    rows = draw_labeled(labels, min(1.0, MOST_CHOOSING / len(labels)), rng)
    features, labels = features[rows], labels[rows]
    folds = min(FOLDS, np.unique(labels, return_counts=True)[1].min())
    if folds < 2:
        return ONE_LABEL_PENALTY
    parts = list(StratifiedKFold(folds).split(features, labels))
    recalls = [
        np.mean(
            [
                recall_score(
                    labels[left],
                    _fit(features[kept], labels[kept], penalty).predict(features[left]),
                    average="macro",
                    zero_division=0,
                )
                for kept, left in parts
            ]
        )
        for penalty in PENALTIES
    ]
    return PENALTIES[int(np.argmax(recalls))]


def _mean(recalls: np.ndarray) -> float:
    known = recalls[~np.isnan(recalls)]
    return float(known.mean()) if len(known) else float("nan")
