import numpy as np

from medclip_dcl.core.rng import RngStream, generator_for, seed_for


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
