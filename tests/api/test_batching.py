import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from api.batching import MicroBatcher
from api.errors import ApiError
from api.logging import Metrics, state_of
from medclip_dcl.data.grayscale import SquareImage
from tests.api.test_middleware import Caller
from tests.support.tiny_models import random_images


class Cramped:
    """A model whose device holds so many images and no more; a region of each is its first grey."""

    def __init__(self, room: int = 8) -> None:
        self.room = room

    def embed_images(self, images: np.ndarray) -> Tensor:
        if len(images) > self.room:
            raise torch.OutOfMemoryError
        return torch.from_numpy(images[:, 0, 0])


class Broken:
    """A model whose forward pass fails."""

    def embed_images(self, _images: np.ndarray) -> Tensor:
        raise ZeroDivisionError


def square(pixels: np.ndarray | None = None) -> SquareImage:
    pixels = random_images(1)[0] if pixels is None else pixels
    return SquareImage(pixels, 64, 64, constant=False, source="png", inverted=False)


def fine(_regions: Tensor, images: Sequence[SquareImage]) -> list[str]:
    return ["fine"] * len(images)


def held(batches: MicroBatcher) -> tuple[asyncio.Future[None], threading.Event]:
    """Keep the model busy until the event is set."""
    go = threading.Event()
    return asyncio.ensure_future(batches.run(lambda: go.wait(10) and None)), go


def together(metrics: Metrics, *questions: tuple[object, ...]) -> list[object]:
    """Ask while the model is busy; the answers, and what was raised in their place."""

    async def ask() -> list[object]:
        batches = MicroBatcher(8, metrics)
        _, go = held(batches)
        asked = [asyncio.ensure_future(batches.submit(Caller(), *each)) for each in questions]  # type: ignore[arg-type]
        while metrics.registry.get_sample_value("medclip_waiting") != len(questions):
            await asyncio.sleep(0.01)
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    return asyncio.run(ask())


def asking(batches: MicroBatcher, *callers: Caller, model: object = None) -> list[Any]:
    """Ask about an image for each caller."""
    model, image = model or Cramped(), square()
    return [
        asyncio.ensure_future(batches.submit(caller, model, image, fine))  # type: ignore[arg-type]
        for caller in callers
    ]


def images_in_batches(metrics: Metrics) -> tuple[float, float]:
    """Forward passes and images in them."""
    get: Callable[[str], float | None] = metrics.registry.get_sample_value
    return get("medclip_batch_images_count") or 0, get("medclip_batch_images_sum") or 0


def test_images_share_forward_passes_and_equal_questions_are_answered_at_once_in_order() -> None:
    images, metrics, calls = np.arange(11, dtype=np.uint8), Metrics(), []

    def answer(regions: Tensor, squares: Sequence[SquareImage]) -> list[tuple[int, int]]:
        calls.append(len(squares))
        return [
            (int(own), int(one.pixels[0, 0])) for own, one in zip(regions, squares, strict=True)
        ]

    model, other = Cramped(), lambda regions, _: regions
    grey = [square(np.full((64, 64), image)) for image in images]
    found = together(
        metrics, *((model, image, other if row == 4 else answer) for row, image in enumerate(grey))
    )
    assert images_in_batches(metrics) == (2, 11)  # eight, then three
    assert calls == [7, 3]
    assert int(found.pop(4)) == 4
    assert found == [(row, row) for row in range(11) if row != 4]


def test_nothing_is_computed_for_the_late_and_the_gone() -> None:
    metrics = Metrics()

    async def ask() -> list[object]:
        batches = MicroBatcher(8, metrics)
        _, go = held(batches)
        leaving = Caller()
        asked = asking(batches, leaving, Caller(left_s=0.1), Caller())
        await asyncio.sleep(0.02)
        leaving.left.set()
        await asyncio.wait(asked[:2], timeout=5)  # told at once, while the model is busy
        assert [task.done() for task in asked] == [True, True, False]
        go.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    gone, late, answer = asyncio.run(ask())
    assert (gone.code, late.code, answer) == ("client_gone", "deadline", "fine")
    assert images_in_batches(metrics) == (1, 1)


@pytest.mark.parametrize("fault", [ZeroDivisionError(), MemoryError(), torch.OutOfMemoryError()])
def test_a_fault_of_one_question_is_told_to_it_alone(fault: Exception) -> None:
    model, image = Cramped(), square()

    def fail(*_: object) -> None:
        raise fault

    found, other = together(Metrics(), (model, image, fail), (model, image, fine))
    assert other == "fine"
    if isinstance(fault, ZeroDivisionError):
        assert found is fault
    else:
        assert isinstance(found, ApiError)
        assert found.code == "out_of_memory"


def test_a_fault_of_a_forward_pass_is_reported_to_all_and_the_queue_goes_on() -> None:
    image, broken = square(), Broken()
    models = (broken, broken, Cramped())
    found = together(Metrics(), *((model, image, fine) for model in models))
    assert isinstance(found[0], ZeroDivisionError)
    assert isinstance(found[1], ZeroDivisionError)
    assert found[2] == "fine"


def test_what_waits_is_counted_and_what_is_withdrawn_is_not() -> None:
    metrics = Metrics()

    async def ask() -> None:
        batches = MicroBatcher(8, metrics)
        held_task, go = held(batches)
        await asyncio.sleep(0.02)
        leaving, staying = Caller(), Caller()
        asked = asking(batches, leaving, staying)
        async with asyncio.timeout(10):
            for event, left in ((lambda: None, 2), (leaving.left.set, 1), (go.set, 0)):
                await asyncio.sleep(0.02)
                event()
                while metrics.registry.get_sample_value("medclip_waiting") != left:
                    await asyncio.sleep(0.01)
        await asyncio.gather(held_task, *asked, return_exceptions=True)
        timings = state_of(staying.scope).timings
        assert 40 <= timings["model_wait"] < 5000
        assert 0 <= timings["model"] < 5000
        assert list(state_of(leaving.scope).timings) == ["model_wait"]
        batches.close()

    asyncio.run(ask())


@pytest.mark.parametrize(("room", "answers"), [(1, ["fine"] * 3), (0, ["out_of_memory"] * 3)])
def test_a_batch_that_does_not_fit_is_tried_image_by_image(room: int, answers: list[str]) -> None:
    image, model = square(), Cramped(room)
    found = together(Metrics(), *[(model, image, fine)] * 3)
    assert [item.code if isinstance(item, ApiError) else item for item in found] == answers


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
        asked = asking(batches, *callers, model=model)
        while metrics.registry.get_sample_value("medclip_waiting") != 3 and not asked[0].done():
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
    begun, go = threading.Event(), threading.Event()

    async def leave() -> None:
        work = batches.run(lambda: begun.set() or go.wait(10))
        asyncio.ensure_future(work)  # noqa: RUF006 (nobody waits)
        while not begun.is_set():
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
    found = together(
        metrics,
        *((item, image, lambda own, _, item=item: [id(item)] * len(own)) for item in models),
    )
    assert found == [id(item) for item in models]
    assert images_in_batches(metrics) == (3, 4)
