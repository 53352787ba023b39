import threading
import time

import pytest

from medclip_dcl.training.dataset import prefetch


def test_reading_ahead_keeps_the_order() -> None:
    def make(step: int) -> int:
        time.sleep(0.01 * (step % 3))
        return step

    assert list(prefetch(make, 4, 20)) == list(range(4, 20))


def test_the_next_item_is_made_while_one_is_in_use() -> None:
    asked = threading.Event()
    items = prefetch(lambda step: (step and asked.set(), step)[1], 0, 3)
    assert next(items) == 0
    assert asked.wait(5)
    assert list(items) == [1, 2]


def test_reading_ahead_ends_with_its_reader_and_passes_errors_on() -> None:
    def make(step: int) -> int:
        if step == 3:
            raise ValueError("broken item")
        return step

    before = threading.active_count()
    batches = prefetch(make, 0, 100)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken item"):
        next(batches)
    stopped = prefetch(make, 4, 100)
    next(stopped)
    stopped.close()
    assert threading.active_count() == before
