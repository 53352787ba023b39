"""Slots for blocking work, and the one queue to the model.

Images that wait while the model is busy share its next forward pass. One thread owns the device.
It takes waiting questions in the order of asking, at most so many that one forward pass may hold,
encodes their images together and answers one after another. Nobody waits for a batch to fill. A
question whose deadline has passed or whose client has left is taken out before it costs anything.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import torch
from fastapi import Request
from torch import Tensor

from medclip_dcl.data.grayscale import SquareImage
from medclip_dcl.inference.predictor import Predictor

from .errors import ApiError
from .logging import Metrics, state_of

_Answer = TypeVar("_Answer")
_Outcome = tuple[Any, BaseException | None]


class WorkerSlots:
    """Blocking work, a fixed number of pieces at a time, in the order of asking."""

    def __init__(self, stage: str, workers: int, metrics: Metrics) -> None:
        self._stage = stage
        self._turn = asyncio.Semaphore(workers)
        self._threads = start_threads(workers, stage)
        self._metrics = metrics

    async def run(self, request: Request, work: Callable[[], _Answer]) -> _Answer:
        """Run a piece of work in its turn, in a thread; the request's timings are added to.

        ApiError where the deadline passed or the client left before the work began, or there is no
        memory for it.
        """
        timings, arrived = state_of(request.scope).timings, time.monotonic()
        await self._wait(request)
        try:
            if await _has_left(request):
                raise ApiError("client_gone")
            started = time.monotonic()
            self._metrics.note(timings, f"{self._stage}_wait", started - arrived)
            try:
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, work)
            finally:  # what never began is counted nowhere
                self._metrics.note(timings, self._stage, time.monotonic() - started)
        except MemoryError as error:
            raise ApiError("out_of_memory") from error
        finally:
            self._turn.release()

    def close(self) -> None:
        """Drop what has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, request: Request) -> None:
        if not self._turn.locked():
            await self._turn.acquire()
            return
        turn = asyncio.ensure_future(self._turn.acquire())
        reason = await _wait_for(request, turn)
        if reason is None:
            return
        turn.cancel()  # the semaphore passes on a turn that came in the same moment
        raise ApiError(reason)


def start_threads(workers: int, name: str) -> ThreadPoolExecutor:
    """Make a pool whose threads all run from the beginning.

    A pool that starts them when it needs one more grows for hours: a thread counts as free a
    moment after its answer is there, and by then the next piece of work has started another.
    """
    pool, all_here = ThreadPoolExecutor(workers, thread_name_prefix=name), Barrier(workers)
    for _ in range(workers):
        pool.submit(all_here.wait)
    return pool


async def _has_left(request: Request) -> bool:
    """Whether the client has closed the connection, as far as this machine knows."""
    for _ in range(2):  # the loop looks at its sockets, then tells who is behind them
        await asyncio.sleep(0)
    return await request.is_disconnected()


async def _wait_for(request: Request, awaited: "asyncio.Future[Any]") -> str | None:
    """Wait while the client stays and the deadline has not passed; why the wait ended early.

    The body of the request has been read. What is waited for continues in any case.
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


@dataclass(eq=False)
class _Question:
    model: Predictor | None
    image: SquareImage | None
    answer: Callable[..., Iterable[Any]]
    deadline: float
    future: "asyncio.Future[Any]"
    started: float | None = None


class MicroBatcher:
    """The queue to the model; `most`: images in one forward pass."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self._waiting: deque[_Question] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    async def submit(
        self,
        request: Request,
        model: Predictor,
        image: SquareImage,
        answer: Callable[[Tensor, Sequence[SquareImage]], Iterable[_Answer]],
    ) -> _Answer:
        """Ask the model about a prepared image, in turn; the request's timings are added to.

        `answer` is called in the model's thread, once for all images of a forward pass that have an
        equal one, with their regions, (images, rows, columns, dim) on the model's device; it gives
        an answer for each. Images of different models share no forward pass. ApiError where the
        deadline passed or the client left before the forward pass, or the device has no memory for
        it.
        """
        return await self._submit(request, model, image, answer)

    async def ask(self, request: Request, answer: Callable[[], _Answer]) -> _Answer:
        """Ask something that is about no image, as `submit` does."""
        return await self._submit(request, None, None, lambda: [answer()])

    async def _submit(
        self,
        request: Request,
        model: Predictor | None,
        image: SquareImage | None,
        answer: Callable[..., Iterable[_Answer]],
    ) -> _Answer:
        if await _has_left(request):
            raise ApiError("client_gone")
        state = state_of(request.scope)
        future = asyncio.get_running_loop().create_future()
        question = _Question(model, image, answer, state.deadline, future)
        arrived = time.monotonic()
        self._append(question)
        try:
            reason = await _wait_for(request, future)
            if reason is not None and self._withdraw(question):
                raise ApiError(reason)
            given: _Answer = await future  # what has begun is not undone
            return given
        finally:
            self._withdraw(question)
            now, started = time.monotonic(), question.started
            self._metrics.note(state.timings, "model_wait", (started or now) - arrived)
            if started is not None:
                self._metrics.note(state.timings, "model", now - started)

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Run something else in the model's thread, in turn."""
        future = asyncio.get_running_loop().create_future()
        self._append(_Question(None, None, lambda: [work()], float("inf"), future))
        done: _Answer = await future
        return done

    def close(self) -> None:
        """End the thread once its batch is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _append(self, question: _Question) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="model", daemon=True)
                self._thread.start()
            self._waiting.append(question)
            self._metrics.waiting.set(len(self._waiting))
            self._changed.notify()

    def _withdraw(self, question: _Question) -> bool:
        """Take a question out; whether it was still waiting."""
        with self._changed:
            if question not in self._waiting:
                return False
            self._waiting.remove(question)
            self._metrics.waiting.set(len(self._waiting))
            return True

    def _work(self) -> None:
        while batch := self._next():
            if batch[0].image is not None:
                self._metrics.batch_images.observe(len(batch))
            _deliver(batch, _answers(batch))

    def _next(self) -> list[_Question]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            batch = [self._waiting.popleft()]
            model, most = batch[0].model, 1 if batch[0].image is None else self._most
            while self._waiting and self._waiting[0].model is model and len(batch) < most:
                batch.append(self._waiting.popleft())
            self._metrics.waiting.set(len(self._waiting))
        started = time.monotonic()
        for question in batch:
            question.started = started
        return batch


def _answers(batch: Sequence[_Question]) -> list[_Outcome]:
    """Answer a batch; what goes wrong with one question leaves the others alone."""
    now = time.monotonic()
    in_time = [question for question in batch if question.deadline > now]
    try:
        answered = _answered(in_time)
    except Exception as error:  # noqa: BLE001 (the one who asked gets it, the thread lives on)
        no_memory = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if no_memory and torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(batch) > 1:  # it may be one question's fault, or less may still fit
            return [outcome for question in batch for outcome in _answers([question])]
        return [(None, _out_of_memory(error) if no_memory else error)]
    late = (None, ApiError("deadline"))
    return [(answered[item], None) if item in answered else late for item in batch]


def _answered(asking: Sequence[_Question]) -> dict[_Question, Any]:
    """Encode images in one forward pass, and answer those that have an equal question together."""
    model = asking[0].model if asking else None
    if model is None:
        return {question: next(iter(question.answer())) for question in asking}
    images = [question.image for question in asking if question.image is not None]
    regions = model.embed_images(np.stack([image.pixels for image in images]))
    answered: dict[_Question, Any] = {}
    for answer in {question.answer for question in asking}:
        rows = [row for row, question in enumerate(asking) if question.answer == answer]
        answers = answer(regions[rows], [images[row] for row in rows])
        answered.update(zip([asking[row] for row in rows], answers, strict=True))
    return answered


def _out_of_memory(cause: BaseException) -> ApiError:
    refusal = ApiError("out_of_memory")
    refusal.__cause__ = cause
    return refusal


def _deliver(batch: Sequence[_Question], outcomes: Sequence[_Outcome]) -> None:
    """Hand answers to the event loop that waits for them."""

    def deliver() -> None:
        for question, (answer, error) in zip(batch, outcomes, strict=True):
            if question.future.done():
                continue
            if error is None:
                question.future.set_result(answer)
            else:
                question.future.set_exception(error)

    try:
        batch[0].future.get_loop().call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop has ended, and nobody waits
        return
