"""Batches, some of them made before they are asked for."""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Made = TypeVar("Made")


def read_ahead(
    make: Callable[[int], Made], start: int, stop: int, threads: int
) -> Generator[Made, None, None]:
    """Make batches in order, some of them before they are asked for.

    Args:
        make: gives the batch of a step; called from several threads.
        start: first step.
        stop: step after the last.
        threads: threads, each with one batch in hand; 0: batches are made when asked for.

    Yields:
        The batches, in order of their steps.
    """
    if threads == 0:
        yield from map(make, range(start, stop))
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="read-ahead") as pool:
        pending: deque[Future[Made]] = deque()
        try:
            for step in range(start, stop):
                while len(pending) <= threads and step + len(pending) < stop:
                    pending.append(pool.submit(make, step + len(pending)))
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
