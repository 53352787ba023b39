import threading
import time

import pytest

from medclip_dcl.training.dataset import prefetch


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_reading_ahead_keeps_the_order(threads: int) -> None:
    def make(step: int) -> int:
        time.sleep(0.01 * (step % 3))
        return step

    assert list(prefetch(make, 4, 20, threads)) == list(range(4, 20))


def test_reading_ahead_ends_with_its_reader_and_passes_errors_on() -> None:
    def make(step: int) -> int:
        if step == 3:
            raise ValueError("broken item")
        return step

    before = threading.active_count()
    batches = prefetch(make, 0, 100, 2)
    assert [next(batches), next(batches), next(batches)] == [0, 1, 2]
    with pytest.raises(ValueError, match="broken item"):
        next(batches)
    stopped = prefetch(make, 4, 100, 2)
    next(stopped)
    stopped.close()
    assert threading.active_count() == before
