import numpy as np
import torch

from medclip_dcl.models.preprocessing import normalise, to_input
from tests.synthetic.films import random_films


def test_black_grey_and_white_become_minus_two_zero_and_two() -> None:
    levels = torch.tensor([0.0, 127.5, 255.0])
    torch.testing.assert_close(normalise(levels), torch.tensor([-2.0, 0.0, 2.0]))


def test_film_of_the_input_size_is_only_normalised() -> None:
    films = random_films(2, 32)
    pixels = to_input(films, 32)
    assert pixels.shape == (2, 1, 32, 32)
    torch.testing.assert_close(pixels[:, 0], normalise(torch.from_numpy(films).float()))


def test_shrinking_averages_instead_of_skipping() -> None:
    film = np.zeros((1, 64, 64), dtype=np.uint8)
    film[:, :, ::2] = 255  # stripes of one pixel: picking pixels gives black or white
    inner = to_input(film, 16)[0, 0, 4:-4, 4:-4]
    assert inner.abs().max() < 0.1


def test_whole_film_is_used() -> None:
    film = np.zeros((1, 64, 64), dtype=np.uint8)
    film[:, :8, :8] = 255
    pixels = to_input(film, 32)[0, 0]
    assert pixels[0, 0] > 1.9
    assert pixels[16:, 16:].max() < -1.9


def test_array_and_tensor_give_the_same_input() -> None:
    films = random_films(2, 64)
    assert torch.equal(to_input(films, 48), to_input(torch.from_numpy(films), 48))
