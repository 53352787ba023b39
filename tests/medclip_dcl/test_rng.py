import numpy as np
import torch

from medclip_dcl.rng import RngStream, generator_for, seed_for, torch_generator_for


def test_a_place_draws_the_same_numbers_whenever_it_is_asked() -> None:
    first = generator_for(7, RngStream.VIEW, 3).random(5)
    generator_for(7, RngStream.VIEW, 4).random(100)
    assert np.array_equal(first, generator_for(7, RngStream.VIEW, 3).random(5))


def test_seeds_streams_and_places_draw_different_numbers() -> None:
    indices = [
        (0, RngStream.VIEW, 1),
        (1, RngStream.VIEW, 1),
        (0, RngStream.ORDER, 1),
        (0, RngStream.VIEW, 2),
    ]
    drawn = {generator_for(*index).random() for index in indices}
    seeds = {seed_for(*index) for index in indices}
    assert len(drawn) == len(seeds) == len(indices)


def test_seeds_fit_torch() -> None:
    assert all(0 <= seed_for(5, RngStream.DROPOUT, step) < 2**63 for step in range(200))
    one, other = (torch_generator_for(5, RngStream.NEGATIVES, 2, 0) for _ in range(2))
    assert torch.equal(torch.rand(4, generator=one), torch.rand(4, generator=other))
