"""Answers leave in pieces, hold room until their reader has them, and are cut where he stops."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.responses import Response
from starlette.types import Message

from api import bodies
from api.bodies import STEP, Answer, BodyMemory
from api.logging import RequestState

SIZE = 4 * STEP + 1


class Reader:
    """A client that takes pieces as long as `goes_on`."""

    def __init__(self, memory: BodyMemory) -> None:
        self.sent: list[Message] = []
        self.goes_on = asyncio.Event()
        state = RequestState("id")
        scope = {"type": "http", "method": "GET", "headers": [], "state": {"request": state}}
        self.state, self.scope = state, scope
        self.answer = Answer(scope, self.receive, self.take, memory)

    async def receive(self) -> Message:
        raise AssertionError

    async def take(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body":
            await self.goes_on.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    def ask(self, size: int = SIZE) -> asyncio.Task[None]:
        response = Response(bytes(range(256)) * (size // 256) + bytes(size % 256))
        return asyncio.create_task(response(self.scope, self.receive, self.answer.send))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 10))  # type: ignore[arg-type]


def test_an_answer_holds_its_bytes_until_the_last_has_left() -> None:
    async def test() -> None:
        memory = BodyMemory(SIZE + STEP, SIZE)
        reader = Reader(memory)
        task = reader.ask()
        await asyncio.sleep(0)
        assert not memory.hold(STEP + 1)
        assert len(reader.body) == STEP
        reader.goes_on.set()
        await task
        assert memory.hold(SIZE + STEP)
        assert reader.body == bytes(range(256)) * (SIZE // 256) + b"\0"
        ends = [message["more_body"] for message in reader.sent[1:]]
        assert ends == [True] * 4 + [False]
        assert dict(reader.sent[0]["headers"])[b"x-content-type-options"] == b"nosniff"

    run(test)


def test_an_answer_without_room_is_refused_before_it_begins() -> None:
    async def test() -> None:
        reader = Reader(BodyMemory(SIZE - 1, SIZE))
        reader.goes_on.set()
        await reader.ask()
        assert (reader.answer.status, reader.state.code) == (503, "overloaded")
        assert b"overloaded" in reader.body

    run(test)


def test_a_reader_that_stops_is_cut_and_one_that_goes_on_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "STEP_S", 0.2)

    async def test() -> None:
        stopped, slow = Reader(memory := BodyMemory(1 << 30, SIZE)), Reader(memory)
        tasks = [stopped.ask(), slow.ask()]
        for _ in range(5):
            await asyncio.sleep(0.1)
            slow.goes_on.set()
            slow.goes_on.clear()
        slow.goes_on.set()
        await asyncio.gather(*tasks)
        assert [stopped.answer.is_cut, slow.answer.is_cut] == [True, False]
        assert [len(stopped.body), len(slow.body)] == [STEP, SIZE]
        assert memory.hold(1 << 30)

    run(test)


def test_the_slowest_reader_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_SAFE_S", 0.05)

    async def test() -> None:
        first, second = Reader(memory := BodyMemory(2 * SIZE, SIZE)), Reader(memory)
        tasks = [first.ask()]
        await asyncio.sleep(0.02)
        tasks.append(second.ask())
        assert not memory.hold(2 * SIZE + 1)
        await asyncio.sleep(0.1)
        assert memory.hold(SIZE)
        await tasks[0]
        assert [first.answer.is_cut, second.answer.is_cut] == [True, False]
        second.goes_on.set()
        await tasks[1]
        assert len(second.body) == SIZE

    run(test)
