import math

import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.image_only.views import AugmentationParams, apply_augmentation, cut_out
from medclip_dcl.models.preprocessing import normalise

SIZE = 12


def pictures(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8)


def augmentation(views: int = 1, images: int = 2, **changes: object) -> AugmentationParams:
    """Whole images as they are, but for the changes."""
    plain = {
        "top": torch.zeros(views, images, dtype=torch.long),
        "left": torch.zeros(views, images, dtype=torch.long),
        "height": torch.full((views, images), SIZE),
        "width": torch.full((views, images), SIZE),
        "angle": torch.zeros(views, images),
        "flipped": torch.zeros(views, images, dtype=torch.bool),
        "order": torch.full((views, images, 4), -1),
        "factors": torch.ones(views, images, 4),
        "greyed": torch.zeros(views, images, dtype=torch.bool),
        "blur_px": torch.zeros(views, images),
    }
    tensors = {name: torch.full_like(plain[name], value) for name, value in changes.items()}
    return AugmentationParams(**{**plain, **tensors})


def test_a_whole_image_is_seen_as_it_is_in_every_view() -> None:
    images = pictures()
    seen = apply_augmentation(images, augmentation(views=3))
    expected = normalise(images.float())
    torch.testing.assert_close(seen, expected.repeat(3, 1, 1, 1), atol=1e-5, rtol=0)


def test_a_crop_is_scaled_up_as_interpolation_scales_it() -> None:
    images = pictures().float() / 255
    seen = cut_out(images, augmentation(top=3, left=1, height=5, width=7))
    crop = images[:, :, 3:8, 1:8]
    expected = functional.interpolate(crop, (SIZE, SIZE), mode="bilinear", align_corners=False)
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=1e-5)


def test_a_flip_turns_the_crop_round() -> None:
    images = pictures().float() / 255
    crop = {"top": 2, "left": 4, "height": 6, "width": 8}
    seen = cut_out(images, augmentation(**crop, flipped=True))
    straight = cut_out(images, augmentation(**crop))
    torch.testing.assert_close(seen, straight.flip(-1), atol=1e-5, rtol=1e-5)


def test_a_quarter_turn_is_a_quarter_turn() -> None:
    images = pictures().float() / 255
    seen = cut_out(images, augmentation(angle=math.pi / 2))
    torch.testing.assert_close(seen, images.rot90(1, (-2, -1)), atol=1e-4, rtol=1e-4)


def test_views_stand_one_after_another() -> None:
    images = pictures()
    both = augmentation(views=2)
    both.flipped[1] = True
    seen = apply_augmentation(images, both)
    torch.testing.assert_close(seen[2:], seen[:2].flip(-1), atol=1e-5, rtol=0)
    assert not torch.equal(seen[0], seen[1])
