import numpy as np

from medclip_dcl.core.rng import RngStream, generator_for, seed_for


def test_numbers_follow_seed_stream_and_place_alone():
    first = generator_for(7, RngStream.VIEW, 3).random(5)
    generator_for(7, RngStream.VIEW, 4).random(100)
    assert np.array_equal(first, generator_for(7, RngStream.VIEW, 3).random(5))
    indices = [
        (0, RngStream.VIEW, 1),
        (1, RngStream.VIEW, 1),
        (0, RngStream.ORDER, 1),
        (0, RngStream.VIEW, 2),
    ]
    drawn = {generator_for(*index).random() for index in indices}
    seeds = {seed_for(*index) for index in indices}
    assert len(drawn) == len(seeds) == len(indices)
