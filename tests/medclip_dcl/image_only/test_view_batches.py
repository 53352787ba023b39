import numpy as np
import pytest
import torch

from medclip_dcl.errors import ConfigError
from medclip_dcl.image_only.artifacts import ImageSplit
from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.image_only.views import ViewBatches

IMAGES, BATCH = 22, 8
ETA = torch.tensor([0.1, 0.3, 0.6])


def batches(mine: slice = slice(0, BATCH), seed: int = 0, global_batch: int = BATCH) -> ViewBatches:
    pixels = np.arange(IMAGES, dtype=np.uint8).repeat(8 * 8).reshape(IMAGES, 1, 8, 8)
    labels = np.arange(IMAGES, dtype=np.int64) % 3
    split = ImageSplit(tuple(f"train/{row}" for row in range(IMAGES)), labels, pixels)
    return ViewBatches(split, ETA, ViewsConfig(M=2), global_batch, seed, mine)


def test_a_batch_is_a_function_of_the_step() -> None:
    one, same = batches().batch(5), batches().batch(5)
    assert one.item_ids == same.item_ids
    assert torch.equal(one.augmentation.top, same.augmentation.top)
    assert batches().batch(6).item_ids != one.item_ids
    assert batches(seed=1).batch(5).item_ids != one.item_ids


def test_pixels_label_and_eta_belong_to_the_image() -> None:
    batch = batches().batch(3)
    for index, name in enumerate(batch.item_ids):
        row = int(name.removeprefix("train/"))
        assert batch.pixels[index].unique().tolist() == [row]
        assert batch.labels[index] == row % 3
        assert batch.eta[index] == ETA[row % 3]


def test_an_epoch_shows_an_image_once() -> None:
    made = batches()
    assert made.steps_per_epoch == 2
    shown = [name for step in (0, 1) for name in made.batch(step).item_ids]
    assert len(shown) == len(set(shown)) == 16


def test_two_processes_share_the_batch_of_one() -> None:
    whole = batches().batch(4)
    halves = [batches(mine).batch(4) for mine in (slice(0, 4), slice(4, 8))]
    assert torch.equal(torch.cat([half.pixels for half in halves]), whole.pixels)
    assert torch.equal(
        torch.cat([half.augmentation.left for half in halves], dim=1), whole.augmentation.left
    )
    for half in halves:
        assert torch.equal(half.eta, whole.eta)
        assert half.item_ids == whole.item_ids


def test_every_image_has_a_view_more_than_the_correction_has() -> None:
    assert len(batches().batch(0).augmentation.top) == 3


def test_a_batch_larger_than_the_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="exceeds the 22 images"):
        batches(global_batch=23)
