import numpy as np
import torch

from benchmarks.fixtures.views import tiny_view_encoder
from medclip_dcl.evaluation.probe import (
    Labelled,
    ProbedSplits,
    draw_labelled,
    embed_pictures,
    map_features,
    probe_by_fraction,
)
from medclip_dcl.evaluation.settings import ProbeConfig
from medclip_dcl.models.preprocessing import normalise


def labelled(per_class: int, seed: int) -> Labelled:
    rng = np.random.default_rng(seed)
    labels = np.arange(3 * per_class, dtype=np.int64) % 3
    return Labelled(4 * np.eye(3)[labels] + rng.standard_normal((len(labels), 3)), labels)


def test_features_are_those_of_whole_images_whatever_the_batch() -> None:
    encoder = tiny_view_encoder()
    pixels = np.random.default_rng(0).integers(0, 256, (7, 3, 8, 8), dtype=np.uint8)
    found = embed_pictures(encoder, pixels, batch=3)
    with torch.no_grad():
        expected = encoder.features(normalise(torch.from_numpy(pixels).float()))
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert embed_pictures(encoder, pixels[:0], batch=3).shape == (0, 8)


def test_labels_are_drawn_class_by_class_and_of_each_at_least_one() -> None:
    labels = np.repeat(np.arange(3), (100, 10, 2)).astype(np.int64)
    rows = draw_labelled(labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 2, 1]
    assert draw_labelled(labels, 1.0, np.random.default_rng(0)).tolist() == list(range(112))


def test_every_fraction_is_probed_as_often_as_asked() -> None:
    splits = ProbedSplits(labelled(40, 0), labelled(10, 1), labelled(30, 2))
    settings = ProbeConfig(fractions=(0.1, 1.0), draws=2, penalties=(0.01,))
    rows = list(probe_by_fraction(splits, [True, False, False], settings, seed=0))
    assert [(row["fraction"], row["draw"], row["labels"]) for row in rows] == [
        (0.1, 0, 12),
        (0.1, 1, 12),
        (1.0, 0, 120),
    ]
    last = rows[-1]
    assert last["accuracy"] > 0.9
    assert last["accuracy_thinned"] == last["recalls"][0]
    assert last["accuracy_whole"] == sum(last["recalls"][1:]) / 2
    assert list(probe_by_fraction(splits, [True, False, False], settings, seed=0)) == rows


def test_the_map_keeps_groups_together() -> None:
    group = labelled(15, 0)
    coordinates = map_features(10 * group.features, perplexity=10.0, seed=0)
    assert coordinates.shape == (45, 2)
    distance = np.linalg.norm(coordinates[:, None] - coordinates[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    nearest = distance.argmin(axis=1)
    assert (group.labels[nearest] == group.labels).mean() > 0.95
