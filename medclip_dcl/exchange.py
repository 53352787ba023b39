"""HTTP exchanges whose bounds hold whatever the other side does: one deadline, and a size.

Blocking reads know a limit of silence alone, which a head or body that drips never reaches: a
deadline of the whole exchange needs an event loop, which runs in a thread of its own here. What is
compressed has no size that could be bounded before it is unpacked, so nothing compressed is taken.
"""

import asyncio
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import httpx


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes


class UnboundedReply(Exception):
    """The answer is larger than allowed, or compressed; the message says which."""


class Exchange:
    """Connections to one server, kept open between exchanges; threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float,
        verify: ssl.SSLContext,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Set it up; nothing is sent yet.

        Args:
            url: what paths are relative to.
            deadline_s: limit of a request and its whole answer.
            verify: whose certificates are trusted.
            headers: of every request.
            auth: adds a key to every request.
            transport: what carries the requests; None: the network.

        Raises:
            httpx.InvalidURL: the url is malformed.
        """
        self._deadline_s = deadline_s
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            auth=auth,
            timeout=deadline_s,
            trust_env=False,  # proxies of the environment would see images, names and keys
            verify=verify,
            transport=transport,
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def ask(self, method: str, path: str, most_bytes: int, **request: Any) -> Reply:
        """Send a request and wait for its whole answer.

        Raises:
            TimeoutError: the deadline has passed.
            UnboundedReply: the answer exceeds `most_bytes`, or is compressed.
            httpx.HTTPError: there is no connection, or what comes is not HTTP.
        """
        exchange = self._exchange(method, path, most_bytes, request)
        return asyncio.run_coroutine_threadsafe(exchange, self._running_loop()).result()

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer gets none."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon: one that nobody closed must not hold up the end of the process.
                threading.Thread(target=_run, args=(self._loop,), daemon=True).start()
                weakref.finalize(self, _stop, self._loop)
            return self._loop

    async def _exchange(
        self, method: str, path: str, most_bytes: int, request: Mapping[str, Any]
    ) -> Reply:
        async with (
            asyncio.timeout(self._deadline_s),
            self._http.stream(method, path, **request) as reply,
        ):
            if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise UnboundedReply("the answer is compressed, unasked; let the server not do it")
            body = bytearray()
            async for part in reply.aiter_bytes():
                body += part
                if len(body) > most_bytes:
                    raise UnboundedReply(f"the answer exceeds {most_bytes} bytes")
            return Reply(reply.status_code, reply.headers, bytes(body))

    async def _end(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await self._http.aclose()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
