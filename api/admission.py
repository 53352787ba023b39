"""The one queue to the model: bounded places, deadlines, and no work for those who left."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from fastapi import Request

from api.failures import Refusal
from api.journal import Figures

_Answer = TypeVar("_Answer")


class Places:
    """Places for requests with a body: taken before the body is read."""

    def __init__(self, count: int, figures: Figures) -> None:
        self._free = count
        self._figures = figures

    def take(self) -> bool:
        """Take a place.

        Returns:
            Whether there was one.
        """
        if self._free == 0:
            return False
        self._free -= 1
        self._figures.inside.inc()
        return True

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1
        self._figures.inside.dec()


class Turns:
    """Blocking work, a fixed number of pieces at a time, in the order of asking."""

    def __init__(self, stage: str, workers: int, figures: Figures) -> None:
        self._stage = stage
        self._turn = asyncio.Semaphore(workers)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=stage)
        self._figures = figures

    async def run(self, request: Request, work: Callable[[], _Answer]) -> _Answer:
        """Run a piece of work in its turn.

        Args:
            request: on whose behalf; `request.state.deadline` is its deadline on the
                monotonic clock, seconds.
            work: what to do, in a thread.

        Returns:
            What the work returns.

        Raises:
            Refusal: the deadline passed or the client left before the work began, or
                the device has no memory for it.
        """
        await self._wait(request)
        started = time.monotonic()
        try:
            if await request.is_disconnected():
                raise Refusal("client_gone")
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, work)
        except (torch.OutOfMemoryError, MemoryError) as error:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            raise Refusal("out_of_memory") from error
        finally:
            self._turn.release()
            seconds = time.monotonic() - started
            self._figures.stage_seconds.labels(self._stage).observe(seconds)

    def close(self) -> None:
        """Forget what has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, request: Request) -> None:
        left_s = request.state.deadline - time.monotonic()
        started = time.monotonic()
        self._figures.waiting.inc()
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                await self._turn.acquire()
        except TimeoutError as error:
            raise Refusal("deadline") from error
        finally:
            self._figures.waiting.dec()
            self._figures.stage_seconds.labels("wait").observe(time.monotonic() - started)
