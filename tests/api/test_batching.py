import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from api.batching import MicroBatcher, WorkerSlots
from api.errors import ApiError
from api.logging import Metrics, RequestState, state_of
from medclip_dcl.data.grayscale import SquareImage
from tests.support.tiny_models import random_images


class Caller:
    """What the queues need to know of a request."""

    def __init__(self, left_s: float = 30.0) -> None:
        state = RequestState("id", deadline=time.monotonic() + left_s)
        self.scope = {"state": {"request": state}}
        self.left = asyncio.Event()

    async def is_disconnected(self) -> bool:
        return self.left.is_set()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


class Cramped:
    """A model whose device holds so many images and no more; a region of each is its first grey."""

    def __init__(self, room: int = 8, fault: Exception | None = None) -> None:
        self.room, self.fault = room, fault or torch.OutOfMemoryError()

    def embed_images(self, images: np.ndarray) -> Tensor:
        if len(images) > self.room:
            raise self.fault
        return torch.from_numpy(images[:, 0, 0])


def square(pixels: np.ndarray | None = None) -> SquareImage:
    pixels = random_images(1)[0] if pixels is None else pixels
    return SquareImage(pixels, 64, 64, constant=False, source="png", inverted=False)


def fine(_regions: Tensor, images: Sequence[SquareImage]) -> list[str]:
    return ["fine"] * len(images)


def failing(fault: Exception) -> Callable[..., None]:
    def answer(*_: object) -> None:
        raise fault

    return answer


def waiting(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("medclip_waiting")


def held(batches: MicroBatcher) -> tuple[asyncio.Future[None], threading.Event]:
    """Keep the model busy until the event is set."""
    go = threading.Event()
    return asyncio.ensure_future(batches.run(lambda: go.wait(10) and None)), go


def asking(batches: MicroBatcher, caller: Caller, *question: Any) -> "asyncio.Future[Any]":
    """Ask about an image, if nothing else."""
    model, image, answer = question or (MODEL, square(), fine)
    return asyncio.ensure_future(batches.submit(caller, model, image, answer))


def together(metrics: Metrics, *questions: tuple[object, ...]) -> list[object]:
    """Ask while the model is busy; the answers, and what was raised in their place."""

    async def ask() -> list[object]:
        batches = MicroBatcher(8, metrics)
        _, go = held(batches)
        asked = [asking(batches, Caller(), *question) for question in questions]
        while waiting(metrics) != len(questions):
            await asyncio.sleep(0.01)
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    return asyncio.run(ask())


def images_in_batches(metrics: Metrics) -> tuple[float | None, ...]:
    """Forward passes and images in them."""
    names = ("medclip_batch_images_count", "medclip_batch_images_sum")
    return tuple(metrics.registry.get_sample_value(name) for name in names)


def test_images_share_forward_passes_and_equal_questions_are_answered_at_once_in_order() -> None:
    images, metrics, calls = np.arange(11, dtype=np.uint8), Metrics(), []

    def answer(regions: Tensor, squares: Sequence[SquareImage]) -> list[tuple[int, int]]:
        calls.append(len(squares))
        return [
            (int(own), int(one.pixels[0, 0])) for own, one in zip(regions, squares, strict=True)
        ]

    model, other = Cramped(), lambda regions, _: regions
    grey = [square(np.full((64, 64), image)) for image in images]
    answers = together(
        metrics, *((model, image, other if row == 4 else answer) for row, image in enumerate(grey))
    )
    assert images_in_batches(metrics) == (2, 11)  # eight, then three
    assert calls == [7, 3]
    assert int(answers.pop(4)) == 4
    assert answers == [(row, row) for row in range(11) if row != 4]


def test_what_waits_is_counted_and_nothing_is_computed_for_the_late_and_the_gone() -> None:
    metrics, leaving, late, staying = Metrics(), Caller(), Caller(left_s=0.1), Caller()

    async def ask() -> list[object]:
        batches = MicroBatcher(8, metrics)
        _, go = held(batches)
        await asyncio.sleep(0.02)
        asked = [asking(batches, caller) for caller in (leaving, late, staying)]
        await asyncio.sleep(0.05)
        leaving.left.set()
        await asyncio.wait(asked[:2], timeout=5)  # told at once, while the model is busy
        assert [task.done() for task in asked] == [True, True, False]
        assert waiting(metrics) == 1
        go.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert waiting(metrics) == 0
        batches.close()
        return list(outcomes)

    started = time.monotonic()
    gone, refused, answer = asyncio.run(ask())
    took_ms = 1000 * (time.monotonic() - started)
    assert (gone.code, refused.code, answer) == ("client_gone", "deadline", "fine")
    assert images_in_batches(metrics) == (1, 1)
    timings = state_of(staying.scope).timings
    assert 40 <= timings["model_wait"] <= took_ms
    assert 0 <= timings["model"] <= took_ms
    for caller in (leaving, late):
        assert list(state_of(caller.scope).timings) == ["model_wait"]


MODEL, FAULT = Cramped(), ZeroDivisionError()
BROKEN = Cramped(0, FAULT)


@pytest.mark.parametrize(
    ("questions", "outcomes"),
    [
        ([(MODEL, failing(FAULT)), (MODEL, fine)], [FAULT, "fine"]),
        ([(MODEL, failing(MemoryError())), (MODEL, fine)], ["out_of_memory", "fine"]),
        ([(MODEL, failing(torch.OutOfMemoryError())), (MODEL, fine)], ["out_of_memory", "fine"]),
        ([(BROKEN, fine), (BROKEN, fine), (MODEL, fine)], [FAULT, FAULT, "fine"]),
        ([(Cramped(1), fine)] * 3, ["fine"] * 3),
        ([(Cramped(0), fine)] * 3, ["out_of_memory"] * 3),
    ],
    ids=["question", "memory", "device's memory", "forward pass", "batch", "image"],
)
def test_what_fails_is_told_to_its_askers_alone_and_less_is_tried_where_a_batch_does_not_fit(
    questions: list[tuple[Cramped, Callable[..., Any]]], outcomes: list[object]
) -> None:
    answers = together(Metrics(), *((model, square(), answer) for model, answer in questions))
    assert [getattr(item, "code", item) for item in answers] == outcomes


def test_late_and_cancelled_questions_of_a_batch_leave_the_others_alone() -> None:
    seen, passed = [], threading.Event()

    class Slow(Cramped):
        def embed_images(self, images: np.ndarray) -> Tensor:
            seen.append(len(images))
            passed.wait(10)
            return super().embed_images(images)

    async def ask() -> list[object]:
        metrics = Metrics()
        batches, model = MicroBatcher(8, metrics), Slow(8)
        busy, go = held(batches)
        callers = [Caller(0.2), Caller(), Caller()]
        asked = [asking(batches, caller, model, square(), fine) for caller in callers]
        while waiting(metrics) != 3 and not asked[0].done():
            await asyncio.sleep(0.01)
        time.sleep(0.2)  # the loop is busy: it cannot withdraw the question at its deadline
        go.set()
        while not seen:
            time.sleep(0.01)
        callers[1].left.set()  # it waits on: what has begun is not undone
        await asyncio.sleep(0.02)
        asked[1].cancel()
        await asyncio.sleep(0.02)
        passed.set()
        async with asyncio.timeout(10):
            return list(await asyncio.gather(*asked, busy, return_exceptions=True))

    late, cancelled, other, _ = asyncio.run(ask())
    assert seen == [2]  # the late one cost nothing
    assert isinstance(late, ApiError)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert (late.code, other) == ("deadline", "fine")


def test_the_thread_of_the_model_outlives_a_loop_that_ended_and_ends_when_closed() -> None:
    def of_models() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "model"}

    before, batches = of_models(), MicroBatcher(8, Metrics())
    has_begun, go = threading.Event(), threading.Event()

    async def leave() -> None:
        work = batches.run(lambda: has_begun.set() or go.wait(10))
        asyncio.ensure_future(work)  # noqa: RUF006 (nobody waits)
        while not has_begun.is_set():
            await asyncio.sleep(0.01)

    async def ask() -> object:
        async with asyncio.timeout(10):
            return await batches.run(lambda: "fine")

    asyncio.run(leave())
    go.set()
    assert asyncio.run(ask()) == "fine"
    (thread,) = of_models() - before
    assert thread.daemon  # a process that ends waits for no forward pass
    batches.close()
    thread.join(5)
    assert not thread.is_alive()


def test_two_models_share_no_forward_pass() -> None:
    image, metrics, predictor, other = square(), Metrics(), Cramped(), Cramped()
    models = (predictor, predictor, other, predictor)
    answers = together(
        metrics,
        *((item, image, lambda own, _, item=item: [id(item)] * len(own)) for item in models),
    )
    assert answers == [id(item) for item in models]
    assert images_in_batches(metrics) == (3, 4)


def test_one_piece_of_work_at_a_time_in_the_order_of_asking() -> None:
    seen, inside = [], threading.Semaphore(1)

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)
        seen.append(number)
        inside.release()
        return number

    def exhaust() -> None:
        raise MemoryError

    async def ask() -> list[int]:
        turns = WorkerSlots("search", 1, Metrics())
        with pytest.raises(ApiError, match="out_of_memory"):
            await turns.run(Caller(), exhaust)
        asked = [turns.run(caller, partial(work, row)) for row, caller in enumerate(callers)]
        return await asyncio.gather(*asked)

    callers, started = [Caller() for _ in range(5)], time.monotonic()
    assert asyncio.run(ask()) == seen == [0, 1, 2, 3, 4]
    took_ms = 1000 * (time.monotonic() - started)
    timings = [state_of(caller.scope).timings for caller in callers]
    assert all(9 <= item["search"] <= took_ms for item in timings)
    assert 30 <= timings[4]["search_wait"] <= took_ms


def test_work_whose_deadline_passed_or_whose_caller_left_never_begins() -> None:
    done, go = [], threading.Event()

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())

        def run(name: str, caller: Caller) -> "asyncio.Future[None]":
            return asyncio.ensure_future(turns.run(caller, lambda: done.append(name)))

        long = asyncio.create_task(turns.run(Caller(), lambda: go.wait(10)))
        await asyncio.sleep(0.05)
        leaving, gone = Caller(), Caller()
        gone.left.set()
        for caller, code in ((Caller(left_s=0.05), "deadline"), (gone, "client_gone")):
            with pytest.raises(ApiError, match=code):
                await run("refused", caller)
        left, after = run("left", leaving), run("after", Caller())
        await asyncio.sleep(0.02)
        leaving.left.set()
        with pytest.raises(ApiError):
            await asyncio.wait_for(left, 5)
        assert done == []  # who left has made no place
        go.set()
        await asyncio.gather(long, after)
        await run("next", Caller())
        # Of who has left, a loop knows once it has looked at its sockets and then at their readers.
        loop, unseen = asyncio.get_running_loop(), Caller()
        loop.call_soon(loop.call_soon, unseen.left.set)
        with pytest.raises(ApiError, match="client_gone"):
            await run("gone", unseen)

    asyncio.run(ask())
    assert done == ["after", "next"]
