"""What an image-only model has learned: probes by share of labels, and a map of its features."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from sklearn.manifold import TSNE

from medclip_dcl.config.views import ProbeConfig
from medclip_dcl.metrics.linear_probe import Labelled, linear_probe
from medclip_dcl.model.preprocessing import normalise
from medclip_dcl.model.view_encoder import ViewEncoder


@dataclass(frozen=True)
class ProbedSplits:
    """Features and labels of the three splits of an image set."""

    train: Labelled
    validate: Labelled
    test: Labelled


@torch.no_grad()
def embed_pictures(
    encoder: ViewEncoder, pixels: UInt8[np.ndarray, "images channels size size"], batch: int
) -> Float[np.ndarray, "images features"]:
    """Give the features of whole images, as they are.

    Args:
        encoder: the model; it is put into evaluation mode.
        pixels: values 0 to 255.
        batch: images in one forward pass.

    Returns:
        Features below the head, float32.
    """
    encoder.eval()
    device = encoder.gamma.device
    parts = [np.zeros((0, encoder.image.width), dtype=np.float32)]
    for start in range(0, len(pixels), batch):
        images = torch.from_numpy(pixels[start : start + batch]).to(device)
        parts.append(encoder.features(normalise(images.float())).float().cpu().numpy())
    return np.concatenate(parts)


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


def probe_by_fraction(
    splits: ProbedSplits, is_thinned: Sequence[bool], settings: ProbeConfig, seed: int
) -> Iterator[dict[str, Any]]:
    """Probe the features with growing shares of the labels.

    Args:
        splits: features and labels.
        is_thinned: whether each class was thinned in the training split.
        settings: fractions, draws and penalties.
        seed: seed of the draws; equal seeds draw the same images for every model.

    Yields:
        One row of the probe artifact for each fraction and draw, `encoder` left out.

    Raises:
        MetricError: the labelled images show fewer than two classes, or a split is empty.
    """
    for place, fraction in enumerate(settings.fractions):
        for draw in range(settings.draws if fraction < 1 else 1):
            sequence = np.random.SeedSequence([seed, place, draw])
            rows = draw_labelled(
                splits.train.labels, fraction, np.random.Generator(np.random.Philox(sequence))
            )
            train = Labelled(splits.train.features[rows], splits.train.labels[rows])
            fit = linear_probe(
                train,
                splits.validate,
                splits.test,
                settings.penalties,
                len(is_thinned),
                balanced=settings.balanced,
            )
            yield {
                "fraction": fraction,
                "draw": draw,
                "labels": len(rows),
                "penalty": fit.penalty,
                "converged": fit.converged,
                "validation_accuracy": fit.validation_accuracy,
                "accuracy": fit.accuracy([True] * len(is_thinned)),
                "accuracy_whole": fit.accuracy([not thinned for thinned in is_thinned]),
                "accuracy_thinned": fit.accuracy(is_thinned),
                "recalls": list(fit.recalls),
            }


def map_features(
    features: Float[np.ndarray, "images features"], perplexity: float, seed: int
) -> Float[np.ndarray, "images 2"]:
    """Lay features out in a plane so that neighbours stay neighbours.

    Args:
        features: features of some images, at least four.
        perplexity: neighbours that an image keeps, roughly; lowered to a third of the images.
        seed: seed of the layout.

    Returns:
        Places; distances between far groups mean nothing.

    Source: van der Maaten and Hinton 2008, as scikit-learn has it.
    """
    layout = TSNE(
        perplexity=min(perplexity, (len(features) - 1) / 3), init="pca", random_state=seed
    )
    places: np.ndarray = layout.fit_transform(features.astype(np.float32))
    return places
