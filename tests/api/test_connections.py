import asyncio
from types import SimpleNamespace

from api.middleware import close_silent


class Wire:
    """What a connection's socket was told."""

    def __init__(self) -> None:
        self.is_closed = False

    def abort(self) -> None:
        self.is_closed = True


class Connection:
    def __init__(self, response_complete: bool | None) -> None:
        self.transport = Wire()
        self.cycle = None
        self.begin(response_complete)

    def begin(self, response_complete: bool | None) -> None:
        if response_complete is not None:
            self.cycle = SimpleNamespace(response_complete=response_complete)


def test_connections_without_a_request_are_closed_and_others_are_not() -> None:
    mute, answered, busy, lively = (Connection(done) for done in (None, True, False, True))

    async def watch() -> None:
        task = asyncio.ensure_future(close_silent({mute, answered, busy, lively}, 0.2))
        for _ in range(5):
            await asyncio.sleep(0.1)
            lively.begin(True)  # another request has come and been answered
        task.cancel()

    asyncio.run(watch())
    closed = [item.transport.is_closed for item in (mute, answered, busy, lively)]
    assert closed == [True, True, False, False]
