"""Pretraining on images: views, loss by hand, exact resume, weights that the encoder reads."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss

from medclip_dcl.models.image_encoder import MEAN, SPREAD, ImageEncoder, load_image_weights
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.training import pretraining
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.settings import PretrainConfig

ENCODER = ImageEncoderConfig(depths=(1, 1), widths=(4, 8), input_px=24)
SETTINGS = PretrainConfig(steps=6)
ON = {"device": torch.device("cpu"), "save_every_steps": 2, "workers": 0}


PIXELS = np.random.default_rng(0).integers(0, 256, (12, 32, 32), dtype=np.uint8)
IMAGES: Any = SimpleNamespace(size_px=32, pixels=PIXELS.__getitem__)
"""Prepared images that are made up, by row."""


def test_loss_is_the_nt_xent_of_pytorch_metric_learning() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(6, 5), dim=1)
    theirs = NTXentLoss(temperature=pretraining.TEMPERATURE)(vectors, torch.arange(3).repeat(2))
    assert pretraining.view_loss(vectors).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_views_are_parts_of_their_image_and_are_never_mirrored() -> None:
    # Columns rise from left to right: in every view they still do, on the whole.
    ramp = torch.arange(64, dtype=torch.uint8).mul(4).repeat(3, 64, 1)
    views = pretraining.draw_views(ramp, np.random.default_rng(0), 24)
    assert views.shape == (6, 1, 24, 24)
    assert views.min() >= -MEAN / SPREAD
    assert views.max() <= (1 - MEAN) / SPREAD
    means = views.mean(dim=(1, 2))
    assert (means[:, -1] > means[:, 0]).all()
    assert (views[0] - views[3]).abs().max() > 0.05  # two views of one image differ


def run(folder: Path, kind: type[CheckpointStore] = CheckpointStore) -> dict[str, torch.Tensor]:
    store = kind(folder, {"one": 1})
    with store.locked():
        learner, summary = pretraining.pretrain(
            SETTINGS, ENCODER, IMAGES, range(12), 5, store, **ON
        )
    assert summary["images"] == 12
    return learner.image.backbone.state_dict()


class Stopping(CheckpointStore):
    def save(self, *arguments: Any, **more: Any) -> Path:
        super().save(*arguments, **more)
        raise KeyboardInterrupt


def test_a_run_that_was_cut_ends_with_the_same_weights(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", Stopping)
    whole, resumed = run(tmp_path / "whole"), run(tmp_path / "cut")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_weights_are_read_as_a_start(tmp_path: Path) -> None:
    learner = pretraining.ViewLearner(ENCODER, 3)
    pretraining.write_weights(tmp_path, learner)
    encoder = ImageEncoder(ENCODER)
    report = load_image_weights(encoder, tmp_path)
    assert (len(report.missing), len(report.unexpected)) == (0, 0)
    own = learner.image.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in encoder.state_dict().items())
