"""Bounded places, turns with deadlines, and no work for those who left."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from .errors import ApiError
from .logging import Metrics, state_of

_Answer = TypeVar("_Answer")


class ConcurrencyLimiter:
    """Places for questions that have arrived whole, and room for bodies that are arriving.

    A slow sender holds no place, only the bytes that it has sent.

    Args:
        count: questions that are inside at once.
        room: bytes of all bodies that are held at once.
        metrics: Prometheus metrics.
    """

    def __init__(self, count: int, room: int, metrics: Metrics) -> None:
        self._free = count
        self._room = room
        self._metrics = metrics

    @property
    def is_full(self) -> bool:
        """Whether no place is free."""
        return self._free == 0

    def take(self) -> bool:
        """Take a place.

        Returns:
            Whether there was one.
        """
        if self._free == 0:
            return False
        self._free -= 1
        self._metrics.inside.inc()
        return True

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1
        self._metrics.inside.dec()

    def hold(self, size: int) -> bool:
        """Take room for a piece of a body.

        Args:
            size: its bytes.

        Returns:
            Whether there was room.
        """
        if size > self._room:
            return False
        self._room -= size
        return True

    def release(self, size: int) -> None:
        """Give the room of a body back.

        Args:
            size: the bytes that were held for it.
        """
        self._room += size


class WorkerSlots:
    """Blocking work, a fixed number of pieces at a time, in the order of asking.

    Attributes:
        used_at: when a piece of work ended last, monotonic clock, seconds.
    """

    def __init__(self, stage: str, workers: int, metrics: Metrics) -> None:
        self.used_at = 0.0
        self._stage = stage
        self._turn = asyncio.Semaphore(workers)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=stage)
        self._metrics = metrics

    async def run(self, request: Request, work: Callable[[], _Answer]) -> _Answer:
        """Run a piece of work in its turn.

        Args:
            request: on whose behalf; its deadline is kept, and its timings are
                added to.
            work: what to do, in a thread.

        Returns:
            What the work returns.

        Raises:
            ApiError: the deadline passed or the client left before the work began, or
                there is no memory for it.
        """
        timings, asked = state_of(request.scope).timings, time.monotonic()
        await self._wait(request)
        try:
            if await has_left(request):
                raise ApiError("client_gone")
            started = time.monotonic()
            self._metrics.note(timings, f"{self._stage}_wait", started - asked)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work)
            finally:  # what never began is counted nowhere
                self.used_at = time.monotonic()
                self._metrics.note(timings, self._stage, self.used_at - started)
        except MemoryError as error:
            raise ApiError("out_of_memory") from error
        finally:
            self._turn.release()

    def close(self) -> None:
        """Forget what has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, request: Request) -> None:
        if not self._turn.locked():
            await self._turn.acquire()
            return
        turn = asyncio.ensure_future(self._turn.acquire())
        reason = await outcome(request, turn)
        if reason is None:
            return
        turn.cancel()
        if turn.done() and not turn.cancelled():  # it came in the same moment
            self._turn.release()
        raise ApiError(reason)


async def has_left(request: Request) -> bool:
    """Return whether the client has closed the connection by now.

    Args:
        request: its body has been read.

    Returns:
        Whether it has, as far as this machine has been told.
    """
    for _ in range(2):  # the loop looks at its sockets, then tells who is behind them
        await asyncio.sleep(0)
    return await request.is_disconnected()


async def outcome(request: Request, awaited: "asyncio.Future[Any]") -> str | None:
    """Wait for something while the client stays and the deadline has not passed.

    Args:
        request: on whose behalf; its body has been read.
        awaited: what is waited for; it goes on where the wait ends early.

    Returns:
        None once it is done, else `deadline` or `client_gone`.
    """
    gone = asyncio.ensure_future(_departure(request))
    left_s = max(0.0, state_of(request.scope).deadline - time.monotonic())
    try:
        await asyncio.wait({awaited, gone}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    if awaited.done():
        return None
    return "client_gone" if gone.done() else "deadline"


async def _departure(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
