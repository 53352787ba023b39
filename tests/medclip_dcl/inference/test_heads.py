"""Heads: margins as scikit-learn's own models give them, and files that come back as they were."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.evaluation.probe import Labelled, fit_logistic
from medclip_dcl.inference.heads import Head, head_margins, read_heads, write_heads
from medclip_dcl.inference.model_package import HEAD_ARRAYS_FILE, HEADS_FILE
from medclip_dcl.inference.predictor import load
from tests.support.published import head_card, publish
from tests.support.tiny_models import random_images

FEATURES = np.random.default_rng(1).normal(size=(170, 6)).astype(np.float32)


def test_a_linear_head_is_a_balanced_logistic_regression() -> None:
    train, test = FEATURES[:120].copy(), FEATURES[120:]
    labels = (np.arange(120) % 4 == 0).astype(np.int8)  # one in four
    train[:, 0] += 1.5 * labels
    arrays = fit_logistic(Labelled(train, labels, list(map(str, range(120)))), penalty=0.01)
    logistic = LogisticRegression(C=1 / (0.01 * 120), class_weight="balanced")
    oracle = make_pipeline(StandardScaler(), logistic).fit(train, labels)
    margins = head_margins(arrays, test)
    assert margins == pytest.approx(oracle.decision_function(test), abs=1e-4)
    assert set(arrays) == {"weight", "bias"}


def test_heads_come_back_from_plain_files_and_answer_with_the_model(tmp_path: Path) -> None:
    model = load(publish(tmp_path / "model").path, "cpu")
    regions = model.embed_images(random_images(3, 64))
    means = regions.numpy().mean(axis=(1, 2))
    width = means.shape[1]
    weight = np.arange(width, dtype=float)
    bias = -(means @ weight).mean(keepdims=True)  # so that some margins are above 0
    heads = [
        Head(head_card("tuberculosis"), {"weight": weight, "bias": bias}),
        Head(head_card("device", is_refused=True), {"weight": np.ones(width), "bias": np.ones(1)}),
    ]
    write_heads(model.folder, heads)
    model.heads = read_heads(model.folder)
    assert [head.card for head in model.heads] == [head.card for head in heads]
    names = {f"{row}.{name}" for row in (0, 1) for name in ("weight", "bias")}
    assert set(load_file(model.folder / HEAD_ARRAYS_FILE)) == names
    margin = means @ weight + bias
    for (linear, refused), expected in zip(model.answer_heads(regions), margin, strict=True):
        assert linear.score == pytest.approx(1 / (1 + np.exp(-expected)), rel=1e-4)
        assert linear.decision is bool(expected >= 0)
        assert (refused.decision, refused.probability) == (None, None)
        assert refused.probability_note == "upside down"


def test_a_head_that_does_not_fit_is_refused_by_its_remedy(tmp_path: Path) -> None:
    arrays = {"weight": np.ones(7), "bias": np.zeros(1)}
    with pytest.raises(CheckpointError, match="width 6; rerun fit_head"):
        head_margins(arrays, FEATURES)
    assert read_heads(tmp_path) == ()
    (tmp_path / HEADS_FILE).write_text('{"format_version": 9, "heads": []}')
    with pytest.raises(CheckpointError, match="delete it and run fit_head again"):
        read_heads(tmp_path)
    write_heads(tmp_path, [Head(head_card("a"), {"weight": np.array([np.nan])})])
    with pytest.raises(CheckpointError, match="not finite"):
        read_heads(tmp_path)
