"""Clients of an HTTP service: raw sockets, one request at a time each, so that they cost little."""

import asyncio
import time
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

    statuses: dict[int, int] = field(default_factory=dict)
    """How often each status was given; 0: no answer came."""
    seconds: list[float] = field(default_factory=list)
    """How long each answered request took, in the order of their ends."""

    @property
    def p99_s(self) -> float:
        """Time within which 99 % were answered."""
        return float(np.quantile(self.seconds, 0.99)) if self.seconds else float("inf")

    def note(self, status: int, seconds: float) -> None:
        """Count an answer."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.seconds.append(seconds)


def form_request(path: str, image: bytes) -> bytes:
    """Write a POST of an image to a route, as it goes over the wire."""
    body = (
        f"--{_BOUNDARY}\r\n"
        'Content-Disposition: form-data; name="image"; filename="image"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    body += image + f"\r\n--{_BOUNDARY}--\r\n".encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: multipart/form-data; boundary={_BOUNDARY}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def classify_request(size_px: int = 256) -> bytes:
    """A POST of a square JPEG to /classify."""
    pixels = random_images(1, size_px=size_px, seed=1)[0]
    return form_request("/classify", raster_bytes(pixels, "jpeg", quality=90))


def get_request(path: str) -> bytes:
    """Write a GET of a route, as it goes over the wire."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


class Client:
    """One connection, opened when it is needed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> tuple[int, bytes]:
        """Send the request; gives status and body, status 0 where no answer came."""
        is_reused = self._streams is not None
        try:
            return await self._ask()
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            unanswered = not getattr(error, "partial", b"")
            if is_reused and unanswered:  # it was idle, and closed in the same moment
                return await self.ask()
            return 0, b""

    async def _ask(self) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._target.host, self._target.port)
        reader, writer = self._streams
        writer.write(self._target.request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def crowd(
    target: Target, clients: int, requests: int, marked: Callable[[int], None] | None = None
) -> Answered:
    """Let some clients ask again and again, each as soon as it has been answered.

    They stop after so many `requests`. `marked` is called with the number of answers after each.
    """
    answered = Answered()
    left = requests

    async def one() -> None:
        nonlocal left
        client = Client(target)
        while left > 0:
            left -= 1
            started = time.perf_counter()
            status, _ = await client.ask()
            answered.note(status, time.perf_counter() - started)
            if marked is not None:
                marked(sum(answered.statuses.values()))
        client.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return answered


async def arrivals(target: Target, per_second: float, seconds: float) -> Answered:
    """Let requests arrive at a fixed rate, whether or not earlier ones have been answered."""
    answered = Answered()
    idle: list[Client] = []
    under_way: set[asyncio.Task[None]] = set()

    async def one() -> None:
        client = idle.pop() if idle else Client(target)
        started = time.perf_counter()
        status, _ = await client.ask()
        answered.note(status, time.perf_counter() - started)
        idle.append(client)

    begun = time.perf_counter()
    for number in range(int(per_second * seconds)):
        await asyncio.sleep(max(0.0, begun + number / per_second - time.perf_counter()))
        task = asyncio.ensure_future(one())
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    for client in idle:
        client.close()
    return answered
