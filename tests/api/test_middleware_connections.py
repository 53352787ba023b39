import asyncio

from api.bodies import STEP
from api.middleware import close_silent


class Wire:
    """What a connection's socket was told."""

    def __init__(self) -> None:
        self.is_closed = False
        self.unread = 0

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Connection:
    def __init__(self, *, is_waiting: bool, unread: int = 0) -> None:
        self.transport = Wire()
        self.transport.unread = unread
        self.cycle: object = None
        self.is_waiting = is_waiting


def test_connections_on_which_nothing_happens_are_closed_and_others_are_not() -> None:
    silent, busy, lively = (Connection(is_waiting=waits) for waits in (True, False, True))
    stuck, reading = (Connection(is_waiting=True, unread=10 * STEP) for _ in range(2))

    async def watch() -> None:
        every = {silent, busy, lively, stuck, reading}
        task = asyncio.ensure_future(close_silent(every, 0.2))
        for _ in range(5):
            await asyncio.sleep(0.1)
            lively.cycle = object()  # another request has come and been answered
            reading.transport.unread -= STEP
            stuck.transport.unread -= 1
        task.cancel()

    asyncio.run(watch())
    closed = [item.transport.is_closed for item in (silent, busy, lively, stuck, reading)]
    assert closed == [True, False, False, True, False]
