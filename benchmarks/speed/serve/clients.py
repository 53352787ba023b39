"""Clients of an HTTP service: raw sockets, one request at a time each, so that they cost little."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.support.dicom import raster_bytes
from tests.support.tiny_models import random_images

_BOUNDARY = "0123456789abcdef0123456789abcdef"  # as long as those of httpx


@dataclass(frozen=True)
class Target:
    """Where requests go and what they say."""

    host: str
    port: int
    request: bytes
    """Head and body."""


@dataclass
class Answered:
    """What clients were answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    """How often each status was given; 0: no answer came."""
    seconds: list[float] = field(default_factory=list)
    """How long each answer of 200 took, in the order of their ends."""

    @property
    def p99_s(self) -> float:
        """Time within which 99 % were answered."""
        return float(np.quantile(self.seconds, 0.99)) if self.seconds else float("inf")


def classify_request(size_px: int = 256) -> bytes:
    """A POST of a square JPEG to /classify, as it goes over the wire."""
    pixels = random_images(1, size_px=size_px, seed=1)[0]
    body = (
        f"--{_BOUNDARY}\r\n"
        'Content-Disposition: form-data; name="image"; filename="image"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    body += raster_bytes(pixels, "jpeg", quality=90) + f"\r\n--{_BOUNDARY}--\r\n".encode()
    head = (
        "POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary={_BOUNDARY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """One connection, opened when it is needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, answered: Answered) -> None:
        """Send the request and note the answer; status 0 where none came."""
        started, is_reused = time.perf_counter(), self._streams is not None
        try:
            status = await self._ask()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            if is_reused and not getattr(error, "partial", b""):  # idle, and closed in that moment
                return await self.ask(answered)
            status = 0
        answered.statuses[status] += 1
        if status == 200:
            answered.seconds.append(time.perf_counter() - started)
        return None

    async def _ask(self) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._target.host, self._target.port)
        reader, writer = self._streams
        writer.write(self._target.request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
        if b"connection: close" in head:
            self.close()
        return int(head[9:12])

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def crowd(
    target: Target, clients: int, requests: int, marked: Callable[[int], object] = int
) -> Answered:
    """Let some clients ask again and again, each as soon as it has been answered.

    They stop after so many `requests`. `marked` is called with the number of answers after each.
    """
    answered, left = Answered(), iter(range(requests))

    async def one() -> None:
        client = Client(target)
        for _ in left:
            await client.ask(answered)
            marked(answered.statuses.total())
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return answered


async def arrivals(target: Target, per_second: float, seconds: float) -> Answered:
    """Let requests arrive at a fixed rate, whether or not earlier ones have been answered."""
    answered, idle = Answered(), list[Client]()

    async def one() -> None:
        client = idle.pop() if idle else Client(target)
        await client.ask(answered)
        idle.append(client)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as under_way:
        for number in range(int(per_second * seconds)):
            await asyncio.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
            under_way.create_task(one())
    for client in idle:
        client.close()
    return answered
