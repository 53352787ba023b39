import numpy as np

from medclip_dcl.evaluation.probe import draw_labelled


def test_labels_are_drawn_class_by_class_and_of_each_at_least_one() -> None:
    labels = np.repeat(np.arange(3), (100, 10, 2)).astype(np.int64)
    rows = draw_labelled(labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [20, 2, 1]
    assert draw_labelled(labels, 1.0, np.random.default_rng(0)).tolist() == list(range(112))
