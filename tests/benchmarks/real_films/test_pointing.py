"""A model that sees brightness alone: a covered lung is where it changes, names mean nothing."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.real_films import pointing
from benchmarks.real_films.lungs import LEFT, RIGHT, LungFilm, mask_of
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.evaluation.evaluated_model import Examinee
from medclip_dcl.evaluation.inputs import Sampling
from medclip_dcl.inference.heatmap import Geometry
from medclip_dcl.models.settings import SimilarityConfig

GEOMETRIES: tuple[Geometry, ...] = ("paper", "biovil")
SETTINGS = ImagesConfig(size_px=64)
DRAWN = Sampling(20, 0)


class Brightness:
    """Regions point to how bright they are; "left lung" is bright, "right lung" dark."""

    def embed_images(self, films: np.ndarray) -> Tensor:
        grey = functional.avg_pool2d(torch.from_numpy(films / 255.0)[:, None], 8)[:, 0]
        return torch.stack([grey, 1 - grey], dim=-1).float()

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.tensor([[1.0, 0.0] if text == LEFT else [0.0, 1.0] for text in texts])


MODEL = Examinee("brightness", Brightness(), SimilarityConfig(kind="lse"), 1.0)


def films() -> list[LungFilm]:
    """Two films: grey, the left lung white, the right one black."""
    boxes = {LEFT: np.array([[50.0, 40, 20, 80]]), RIGHT: np.array([[10.0, 40, 20, 80]])}
    pixels = np.full((160, 80), 30000, dtype=np.uint16)
    film = LungFilm("a", "p1", GreyImage(pixels, 16, "png"), boxes)
    pixels[mask_of(film, LEFT)], pixels[mask_of(film, RIGHT)] = 65535, 0
    return [film, LungFilm("b", "p2", film.image, boxes)]


def test_covered_lung_has_the_films_mean_grey_and_nothing_else_changes() -> None:
    film = films()[0]
    covered, mask = pointing.cover(film, LEFT).pixels, mask_of(film, LEFT)
    assert set(covered[mask].tolist()) == {round(float(film.image.pixels.mean()))}
    assert (covered[~mask] == film.image.pixels[~mask]).all()
    assert film.image.pixels[mask].min() == 65535


def test_change_is_found_where_a_lung_was_covered() -> None:
    for geometry in GEOMETRIES:
        encoded = pointing.encode_films(MODEL, films(), geometry, SETTINGS)
        assert encoded.regions.shape == (2, 8, 8, 2)
        found = pointing.examine_covered(MODEL, encoded, films(), SETTINGS, DRAWN)
        assert (found["pointed"].value, found["side"].value) == (1, 1)
        assert (found["pointed"].n, found["pointed"].subjects) == (4, 2)
        assert (found["cnr_signed"].value or 0) > 1


def test_change_elsewhere_is_a_miss() -> None:
    """Boxes at the other lung's place: nothing changes there but what is painted."""
    exchanged = [
        LungFilm(film.image_id, film.subject_id, film.image, {LEFT: film.boxes[RIGHT], **right})
        for film in films()
        for right in ({RIGHT: film.boxes[LEFT]},)
    ]
    encoded = pointing.encode_films(MODEL, exchanged, "paper", SETTINGS)
    found = pointing.examine_covered(MODEL, encoded, exchanged, SETTINGS, DRAWN)
    assert (found["pointed"].value, found["side"].value) == (1, 0)


def test_names_point_to_their_lungs_and_exchanged_ones_do_not() -> None:
    encoded = pointing.encode_films(MODEL, films(), "paper", SETTINGS)
    named, chance = pointing.examine_names(MODEL, encoded, films(), DRAWN)
    assert (named["pointing"].value, named["side"].value) == (1, 1)
    assert chance == 0.125  # a lung covers an eighth of the film
    exchanged, _ = pointing.examine_names(MODEL, encoded, films(), DRAWN, exchanged=True)
    assert (exchanged["pointing"].value, exchanged["side"].value) == (0, 0)
    assert (exchanged["cnr_signed"].value or 0) < 0 < (named["cnr_signed"].value or 0)


def test_model_that_sees_the_lungs_fails_on_mirrored_films() -> None:
    turned = pointing.turn(films())
    assert (turned[0].image.pixels == films()[0].image.pixels[:, ::-1]).all()
    encoded = pointing.encode_films(MODEL, turned, "paper", SETTINGS)
    found, _ = pointing.examine_names(MODEL, encoded, films(), DRAWN)
    assert (found["pointing"].value, found["side"].value) == (0, 0)
