import asyncio
import threading
import time

import pytest

from api.batching import WorkerSlots
from api.errors import ApiError
from api.logging import Metrics, RequestState, state_of
from api.middleware import ConcurrencyLimiter


class Caller:
    """What `WorkerSlots` needs to know of a request."""

    def __init__(self, left_s: float = 30.0, gone: bool = False) -> None:
        state = RequestState("id", deadline=time.monotonic() + left_s)
        self.scope = {"state": {"request": state}}
        self.left = asyncio.Event()
        if gone:
            self.left.set()

    async def is_disconnected(self) -> bool:
        return self.left.is_set()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_one_piece_of_work_at_a_time_in_the_order_of_asking() -> None:
    seen: list[int] = []
    inside = threading.Semaphore(1)

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)
        seen.append(number)
        inside.release()
        return number

    async def ask() -> list[int]:
        turns = WorkerSlots("model", 1, Metrics())
        asked = [turns.run(Caller(), lambda number=number: work(number)) for number in range(5)]
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert seen == [0, 1, 2, 3, 4]


def test_work_whose_deadline_passed_or_whose_caller_left_never_begins() -> None:
    begun: list[str] = []
    go = threading.Event()

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        long = asyncio.create_task(turns.run(Caller(), lambda: go.wait(10)))
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError) as late:
            await turns.run(Caller(left_s=0.05), lambda: begun.append("late"))
        assert late.value.code == "deadline"
        with pytest.raises(ApiError) as gone:
            await turns.run(Caller(gone=True), lambda: begun.append("gone"))
        assert gone.value.code == "client_gone"
        leaving = Caller()
        left = asyncio.create_task(turns.run(leaving, lambda: begun.append("left")))
        after = asyncio.create_task(turns.run(Caller(), lambda: begun.append("after")))
        await asyncio.sleep(0.02)
        leaving.left.set()
        with pytest.raises(ApiError):
            await asyncio.wait_for(left, 5)
        assert begun == []  # who left has made no place
        go.set()
        await asyncio.gather(long, after)
        assert begun.pop() == "after"
        assert await turns.run(Caller(), lambda: "next") == "next"
        # Of who has left, a loop knows once it has looked at its sockets and then at their readers.
        loop, unseen = asyncio.get_running_loop(), Caller()
        loop.call_soon(loop.call_soon, unseen.left.set)
        with pytest.raises(ApiError, match="client_gone"):
            await turns.run(unseen, lambda: begun.append("gone"))

    asyncio.run(ask())
    assert begun == []


def test_a_device_without_memory_refuses_and_goes_on() -> None:
    def exhaust() -> None:
        raise MemoryError

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        with pytest.raises(ApiError) as refusal:
            await turns.run(Caller(), exhaust)
        assert (refusal.value.code, refusal.value.status_code) == ("out_of_memory", 503)
        assert await turns.run(Caller(), lambda: 1) == 1

    asyncio.run(ask())


def test_closing_drops_what_has_not_begun_and_waits_for_nothing() -> None:
    go, begun = threading.Event(), []

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        task = asyncio.create_task(turns.run(Caller(), lambda: begun.append(go.wait(5))))
        await asyncio.sleep(0.02)
        turns.close()
        assert begun == []
        go.set()
        await task
        assert begun == [True]

    asyncio.run(ask())


def test_places_are_as_many_as_were_made() -> None:
    metrics = Metrics()
    limiter = ConcurrencyLimiter(2, metrics)
    assert [limiter.take(), limiter.take(), limiter.take()] == [True, True, False]
    assert metrics.registry.get_sample_value("medclip_inside") == 2
    limiter.leave()
    assert metrics.registry.get_sample_value("medclip_inside") == 1
    assert [limiter.take(), limiter.take()] == [True, False]


def test_all_threads_run_from_the_beginning() -> None:
    def named() -> int:
        return sum(thread.name.startswith("early") for thread in threading.enumerate())

    slots = WorkerSlots("early", 3, Metrics())
    try:
        assert named() == 3
    finally:
        slots.close()


def test_waiting_and_work_are_timed_apart() -> None:
    async def ask() -> None:
        turns, first, second = WorkerSlots("decode", 1, Metrics()), Caller(), Caller()
        started = time.monotonic()
        await asyncio.gather(
            *(turns.run(caller, lambda: time.sleep(0.05)) for caller in (first, second))
        )
        assert 0.1 <= turns.used_at - started < 5
        first_ms, second_ms = (state_of(caller.scope).timings for caller in (first, second))
        assert 0 <= first_ms["decode_wait"] < second_ms["decode_wait"] < 5000
        assert 50 <= first_ms["decode"] < 5000
        assert 50 <= second_ms["decode"] < 5000

    asyncio.run(ask())
