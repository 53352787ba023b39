"""Progress is a bar on a terminal and JSON lines elsewhere; randomness follows seed and place."""

import io
import json

import numpy as np

from medclip_dcl.core.progress import Progress
from medclip_dcl.core.rng import RngStream, generator_for, seed_for


def test_progress_counts_everything_and_writes_lines_at_most_so_often(monkeypatch):
    stream = io.StringIO()
    with Progress("scoring", total=10, unit="sentence", done=4, stream=stream) as progress:
        progress.advance(3, loss=0.5)
        progress.advance(3)
    (line,) = stream.getvalue().splitlines()
    shown = json.loads(line)
    assert (shown["progress"], shown["done"], shown["total"]) == ("scoring", 10, 10)
    assert (shown["loss"], shown["left_s"]) == (0.5, 0)
    monkeypatch.setenv("PROGRESS_EVERY_S", "0")
    stream = io.StringIO()
    with Progress("scoring", total=3, unit="sentence", stream=stream) as progress:
        for _ in range(3):
            progress.advance()
    shown = [json.loads(line)["done"] for line in stream.getvalue().splitlines()]
    assert shown == [1, 2, 3, 3]  # the last at the end


def test_numbers_follow_seed_stream_and_place_alone():
    first = generator_for(7, RngStream.VIEW, 3).random(5)
    generator_for(7, RngStream.VIEW, 4).random(100)
    assert np.array_equal(first, generator_for(7, RngStream.VIEW, 3).random(5))
    view, order = RngStream.VIEW, RngStream.ORDER
    indices = [(0, view, 1), (1, view, 1), (0, order, 1), (0, view, 2)]
    drawn = {generator_for(*index).random() for index in indices}
    seeds = {seed_for(*index) for index in indices}
    assert len(drawn) == len(seeds) == len(indices)
