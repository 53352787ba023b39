"""A model that sees brightness alone: a covered lung is where it changes, names mean nothing."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.method.real_images import lungs
from benchmarks.method.real_images.lungs import LEFT, RIGHT, LungImage, mask_of
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.evaluation.bootstrap import BootstrapOptions
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel, Geometry
from medclip_dcl.models.settings import SimilarityConfig

GEOMETRIES: tuple[Geometry, ...] = ("whole", "biovil")
SETTINGS = ImagesConfig(size_px=64)
DRAWN = BootstrapOptions(20, 0)


class Brightness:
    """Regions point to how bright they are; "left lung" is bright, "right lung" dark."""

    def embed_images(self, images: np.ndarray) -> Tensor:
        grey = functional.avg_pool2d(torch.from_numpy(images / 255.0)[:, None], 8)[:, 0]
        return torch.stack([grey, 1 - grey], dim=-1).float()

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[1.0, 0.0] if text == LEFT else [0.0, 1.0] for text in texts])


MODEL = EvaluatedModel("brightness", Brightness(), SimilarityConfig(kind="lse"), 1.0)


def images() -> list[LungImage]:
    """Two images: grey, the left lung white, the right one black."""
    boxes = {LEFT: np.array([[50.0, 40, 20, 80]]), RIGHT: np.array([[10.0, 40, 20, 80]])}
    pixels = np.full((160, 80), 30000, dtype=np.uint16)
    image = LungImage("a", "p1", GreyImage(pixels, 16, "png"), boxes)
    pixels[mask_of(image, LEFT)], pixels[mask_of(image, RIGHT)] = 65535, 0
    return [image, LungImage("b", "p2", image.image, boxes)]


def test_covered_lung_has_the_images_mean_grey_and_nothing_else_changes() -> None:
    image = images()[0]
    covered, mask = lungs.cover(image, LEFT).pixels, mask_of(image, LEFT)
    assert set(covered[mask].tolist()) == {round(float(image.image.pixels.mean()))}
    assert (covered[~mask] == image.image.pixels[~mask]).all()
    assert image.image.pixels[mask].min() == 65535


def test_change_is_found_where_a_lung_was_covered() -> None:
    for geometry in GEOMETRIES:
        encoded = lungs.encode_images(MODEL, images(), geometry, SETTINGS)
        assert encoded.regions.shape == (2, 8, 8, 2)
        found = lungs.evaluate_covered(MODEL, encoded, images(), SETTINGS, DRAWN)
        assert (found["pointed"].value, found["side"].value) == (1, 1)
        assert (found["pointed"].n, found["pointed"].subjects) == (4, 2)
        assert (found["cnr_signed"].value or 0) > 1


def test_change_elsewhere_is_a_miss() -> None:
    """Boxes at the other lung's place: nothing changes there but what is painted."""
    exchanged = [
        LungImage(
            image.image_id, image.subject_id, image.image, {LEFT: image.boxes[RIGHT], **right}
        )
        for image in images()
        for right in ({RIGHT: image.boxes[LEFT]},)
    ]
    encoded = lungs.encode_images(MODEL, exchanged, "whole", SETTINGS)
    found = lungs.evaluate_covered(MODEL, encoded, exchanged, SETTINGS, DRAWN)
    assert (found["pointed"].value, found["side"].value) == (1, 0)


def test_names_point_to_their_lungs_and_exchanged_ones_do_not() -> None:
    encoded = lungs.encode_images(MODEL, images(), "whole", SETTINGS)
    named, chance = lungs.evaluate_names(MODEL, encoded, images(), DRAWN)
    assert (named["pointing"].value, named["side"].value) == (1, 1)
    assert chance == 0.125  # a lung covers an eighth of the image
    exchanged, _ = lungs.evaluate_names(MODEL, encoded, images(), DRAWN, exchanged=True)
    assert (exchanged["pointing"].value, exchanged["side"].value) == (0, 0)
    assert (exchanged["cnr_signed"].value or 0) < 0 < (named["cnr_signed"].value or 0)


def test_model_that_sees_the_lungs_fails_on_mirrored_images() -> None:
    turned = lungs.turn(images())
    assert (turned[0].image.pixels == images()[0].image.pixels[:, ::-1]).all()
    encoded = lungs.encode_images(MODEL, turned, "whole", SETTINGS)
    found, _ = lungs.evaluate_names(MODEL, encoded, images(), DRAWN)
    assert (found["pointing"].value, found["side"].value) == (0, 0)
