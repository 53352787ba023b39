"""The image-only bed: its loss is SimCLR's, and labels take out what they should."""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from benchmarks.method import digits
from benchmarks.method.digits import BATCH, GAMMA_SQUARED, DigitsRow


def embedded(views: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return normalize(torch.randn(views * BATCH, 8), dim=1), torch.arange(BATCH) % 10


def loss_of(row: DigitsRow, views: int = 2, eta: float = 0.0) -> float:
    z, classes = embedded(views)
    loss, _ = digits._loss(row, z, classes, torch.full((BATCH,), eta), gauged=True)
    return float(loss)


def nt_xent(views: torch.Tensor, allowed: torch.Tensor) -> float:
    s = GAMMA_SQUARED * views @ views.T
    partner = torch.arange(2 * BATCH).roll(BATCH)
    kept = allowed | torch.nn.functional.one_hot(partner, 2 * BATCH).bool()
    kept &= ~torch.eye(2 * BATCH, dtype=torch.bool)
    return float(cross_entropy(s.masked_fill(~kept, -torch.inf), partner))


def test_without_eta_it_is_simclr() -> None:
    z, _ = embedded(2)
    everything = torch.ones(2 * BATCH, 2 * BATCH, dtype=torch.bool)
    assert loss_of(DigitsRow("infonce")) == pytest.approx(nt_xent(z, everything), abs=1e-5)


def test_further_views_are_no_negatives() -> None:
    z, _ = embedded(4)
    everything = torch.ones(2 * BATCH, 2 * BATCH, dtype=torch.bool)
    expected = nt_xent(z[: 2 * BATCH], everything)
    assert loss_of(DigitsRow("x", mates=3), views=4) == pytest.approx(expected, abs=1e-5)
    assert loss_of(DigitsRow("x", mates=3), views=4, eta=0.1) != pytest.approx(expected, abs=1e-3)


def test_labels_remove_images_of_the_anchor_s_class() -> None:
    z, classes = embedded(2)
    other = classes.repeat(2)[:, None] != classes.repeat(2)[None, :]
    assert loss_of(DigitsRow("x", known="remove")) == pytest.approx(nt_xent(z, other), abs=1e-5)


def test_eta_is_the_share_of_the_class_or_a_control_of_it() -> None:
    images = digits.digits_of(0.1, 0)
    true = digits._eta_of(DigitsRow("x", "true"), 0.1, images, 0)
    even = images.classes % 2 == 0
    assert true[even].unique().tolist() == pytest.approx([120 / 660])
    assert true[~even].unique().tolist() == pytest.approx([12 / 660])
    turned = digits._eta_of(DigitsRow("x", "reversed"), 0.1, images, 0)
    assert turned[even].unique().tolist() == pytest.approx([12 / 660])
    shuffled = digits._eta_of(DigitsRow("x", "shuffled"), 0.1, images, 0)
    assert shuffled.sort().values.tolist() == true.sort().values.tolist()
    assert not torch.equal(shuffled, true)
    low = digits._eta_of(DigitsRow("x", "low"), 0.1, images, 0)
    assert low.unique().tolist() == pytest.approx([0.2 * 0.1 / 1.1])


def test_test_images_train_nobody() -> None:
    images = digits.digits_of(0.25, 1)
    assert images.test_classes.bincount().tolist() == [digits.HELD_OUT] * 10
    assert images.classes.bincount().tolist() == [120, 30] * 5
    seen = {image.numpy().tobytes() for image in images.pool}
    assert not any(image.numpy().tobytes() in seen for image in images.test)
