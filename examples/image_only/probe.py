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
from sklearn.preprocessing import StandardScaler

FRACTIONS, DRAWS = (0.01, 0.1, 1.0), 3  # shares of the labels; random draws of them below 1
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)  # L2, per labeled image
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
    train: Labeled, validate: Labeled, test: Labeled, is_rare: Sequence[bool], seed: int
) -> Iterator[dict[str, Any]]:
    """Fit linear classifiers with growing shares of the labels.

    The penalty is that of the best mean recall on `validate`, of equals the largest.

    Yields:
        For each share and draw the mean recall on `test`: over all classes, over those that
        are whole, and over rare ones; not a number where there are none.
    """
    rare = np.array(is_rare)
    for number, fraction in enumerate(FRACTIONS):
        for draw in range(DRAWS if fraction < 1 else 1):
            rng = np.random.default_rng([seed, LABELS, number, draw])
            rows = draw_labeled(train.labels, fraction, rng)
            scaler = StandardScaler().fit(train.features[rows])
            features = scaler.transform(train.features[rows])
            best, best_score = None, -1.0
            for penalty in PENALTIES:
                model = _fit(features, train.labels[rows], penalty)
                score = np.nanmean(_recalls(model, scaler, validate, len(rare)))
                if score > best_score:
                    best, best_score = model, score
            recalls = _recalls(best, scaler, test, len(rare))
            yield {
                "fraction": fraction,
                "draw": draw,
                "labels": len(rows),
                "accuracy": _mean(recalls),
                "accuracy_whole": _mean(recalls[~rare]),
                "accuracy_rare": _mean(recalls[rare]),
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


def _recalls(
    model: LogisticRegression, scaler: StandardScaler, split: Labeled, classes: int
) -> np.ndarray:
    found = model.predict(scaler.transform(split.features))
    return recall_score(
        split.labels, found, labels=range(classes), average=None, zero_division=np.nan
    )


def _mean(recalls: np.ndarray) -> float:
    known = recalls[~np.isnan(recalls)]
    return float(known.mean()) if len(known) else float("nan")
