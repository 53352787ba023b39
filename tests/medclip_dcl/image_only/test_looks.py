import numpy as np
import torch

from medclip_dcl.image_only.settings import AugmentConfig
from medclip_dcl.image_only.views import AugmentationParams, draw_augmentation
from medclip_dcl.rng import RngStream, generator_for

SIZE = 32


def looks_of(step: int = 0, images: int = 500, **settings: float) -> AugmentationParams:
    generator = generator_for(0, RngStream.LOOK, step)
    return draw_augmentation(generator, 2, images, SIZE, AugmentConfig.model_validate(settings))


def test_looks_are_a_function_of_seed_and_step() -> None:
    one, same, other = (looks_of(step, rotation_rad=0.3) for step in (3, 3, 4))
    for name, value in vars(one).items():
        assert torch.equal(value, vars(same)[name]), name
        assert not torch.equal(value, vars(other)[name]), name


def test_a_process_sees_its_part_of_the_batch() -> None:
    whole = looks_of()
    part = whole.at(slice(100, 120))
    for name, value in vars(part).items():
        assert torch.equal(value, vars(whole)[name][:, 100:120]), name


def test_the_two_views_of_an_image_differ() -> None:
    drawn = looks_of()
    assert (drawn.top[0] != drawn.top[1]).any()
    assert (drawn.factors[0] != drawn.factors[1]).any()


def test_crops_lie_within_the_image_and_keep_area_and_shape() -> None:
    drawn = looks_of(images=4000, smallest_crop=0.25)
    height, width = drawn.height.numpy(), drawn.width.numpy()
    assert (drawn.top >= 0).all()
    assert (drawn.left >= 0).all()
    assert (drawn.top + drawn.height <= SIZE).all()
    assert (drawn.left + drawn.width <= SIZE).all()
    share = height * width / SIZE**2
    assert share.min() > 0.25 - 2 / SIZE  # sides are rounded to whole pixels
    assert share.max() == 1.0
    assert 0.45 < share.mean() < 0.62
    ratio = width / height
    assert ratio.min() > 3 / 4 - 3 / 16
    assert ratio.max() < 4 / 3 + 3 / 16
    assert abs(np.log(ratio).mean()) < 0.02


def test_chances_are_kept() -> None:
    drawn = looks_of(images=4000)
    jittered = drawn.order[..., 0] >= 0
    for happened, chance in (
        (drawn.flipped, 0.5),
        (jittered, 0.8),
        (drawn.greyed, 0.2),
        (drawn.blur_px > 0, 0.5),
    ):
        assert abs(happened.float().mean().item() - chance) < 0.03
    assert (drawn.order[~jittered] == -1).all()
    assert torch.equal(drawn.order[jittered].sort().values[0], torch.arange(4))
    assert len((drawn.order[jittered] * torch.tensor([64, 16, 4, 1])).sum(dim=1).unique()) == 24
    low, high = drawn.factors.amin(dim=(0, 1)), drawn.factors.amax(dim=(0, 1))
    torch.testing.assert_close(low, torch.tensor([0.6, 0.6, 0.6, -0.1]), atol=2e-3, rtol=0)
    torch.testing.assert_close(high, torch.tensor([1.4, 1.4, 1.4, 0.1]), atol=2e-3, rtol=0)
    assert drawn.blur_px.max() <= 2
    assert (drawn.angle == 0).all()
