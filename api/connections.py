"""Deadline for headers: uvicorn waits for them for ever."""

import asyncio
import time
from collections.abc import Collection
from typing import Any, Protocol


class Connection(Protocol):
    """What is known of an HTTP connection; uvicorn's h11 protocol is one."""

    cycle: Any
    """The request that is being, or was last, answered; None before the first."""
    transport: asyncio.Transport
    """The socket."""


async def close_silent(connections: Collection[Connection], deadline_s: float) -> None:
    """Close connections on which no request has begun for too long, until cancelled.

    Args:
        connections: those that are open; others come and go meanwhile.
        deadline_s: seconds that a client has, from connecting or from the answer before, to
            send the headers of a request.
    """
    silent: dict[Connection, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(deadline_s / 10)
        now = time.monotonic()
        waiting = [item for item in connections if _is_waiting(item)]
        silent = {
            item: silent[item]
            if item in silent and silent[item][0] is item.cycle
            else (item.cycle, now)
            for item in waiting
        }
        for connection, (_, since) in silent.items():
            if now - since > deadline_s:
                connection.transport.abort()


def _is_waiting(connection: Connection) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
