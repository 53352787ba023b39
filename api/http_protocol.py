"""HTTP on one connection: uvicorn's protocol over llhttp, held to bounds; large bodies unparsed.

A body of many megabytes with a stated length needs no parser. The application may ask for it
whole (`READ_BODY` in the scope's extensions): the socket is then read into memory of the
application's instead of being passed on piece by piece.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

READ_BODY = "medclip.read_body"
"""Extension of a scope whose body is large: `ReadBody`."""

ReadBody = Callable[[memoryview, Callable[[int], None]], Awaitable[bool]]
"""Reads the whole body into memory of its length; False: the client has left. The second argument
is called with the bytes of each piece that has come, and raises to refuse the body."""

LARGE = 256 * 1024
"""Bytes from which a body is large."""

_LONGEST_HEAD = 16 * 1024  # bytes of the request line and all headers
_LONGEST_BLANK = 2  # one empty line before a request is allowed (RFC 9112, 2.2); llhttp skips any
_MOST_PIPELINED = 8
_PIECE = 2**20


class ServiceProtocol(HttpToolsProtocol):
    """One connection."""

    _head = 0  # bytes of the head that is arriving
    _in_head = False
    _blank = 0  # bytes of empty lines before it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(transport)
        self._answers = _HeadWithBody(transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes that are not those of a large body."""
        # llhttp gathers a header of any length before it names it. What came of it in one piece
        # with an earlier body is not counted; such a piece has 256 KiB at most.
        if self._in_head:
            self._head += len(data)
        elif (self.cycle is None or not self.cycle.more_body) and not data.strip(b"\r\n"):
            self._blank += len(data)
        if self._head > _LONGEST_HEAD or self._blank > _LONGEST_BLANK:
            self.send_400_response("The head of the request is too long, or empty.")
            return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many requests wait for earlier ones on this connection")
        self._head, self._in_head, self._blank = 0, True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or what follows a body in chunks."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Start the application on a request."""
        self._in_head = False
        super().on_headers_complete()
        self.cycle.transport = self._answers  # type: ignore[assignment]
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        if lengths and lengths[0] >= LARGE and not self.pipeline:
            read = _LargeBody(self).read
            self.scope["extensions"] = {READ_BODY: read}  # type: ignore[dict-item]

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        self._answers.flush()
        super().on_response_complete()

    def begin_next_request(self) -> None:
        """Parse what follows a body that the parser has not seen."""
        self.parser = httptools.HttpRequestParser(self)
        self.on_message_complete()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > _LONGEST_HEAD:
            raise ValueError("the head of the request is too long")


class _LargeBody(asyncio.BufferedProtocol):
    """Reads a body of known length into memory, in place of the connection's protocol."""

    def __init__(self, connection: ServiceProtocol) -> None:
        self._connection, self._cycle = connection, connection.cycle

    async def read(self, memory: memoryview, hold: Callable[[int], None]) -> bool:
        begun, self._cycle.body = self._cycle.body, bytearray()
        self._hold, self._filled = hold, len(begun)
        self._done: asyncio.Future[bool] = self._connection.loop.create_future()
        hold(self._filled)
        memory[: self._filled] = begun
        if self._cycle.disconnected:
            return False
        if self._filled == len(memory):
            self._cycle.message_event.clear()  # its messages have been read here
            return True
        if self._cycle.waiting_for_100_continue:
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._cycle.waiting_for_100_continue = False
        self._memory = memory
        self._connection.transport.set_protocol(self)
        self._connection.flow.resume_reading()
        try:
            if not await self._done:
                return False
        except BaseException:
            self._cycle.keep_alive = False  # nobody will find the beginning of the next request
            raise
        finally:
            self._connection.transport.set_protocol(self._connection)
            del self._memory  # this object lives on, in a cycle of uvicorn's, until it is collected
        self._connection.begin_next_request()
        self._cycle.message_event.clear()
        return True

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        return self._memory[self._filled : self._filled + _PIECE]

    def buffer_updated(self, nbytes: int) -> None:
        if self._done.done():  # refused, and not yet known to who waits: what comes is overwritten
            return
        try:
            self._hold(nbytes)
        except Exception as refusal:  # noqa: BLE001 (whatever it is, the reader is to hear of it)
            self._done.set_exception(refusal)
            return
        self._filled += nbytes
        if self._filled == len(self._memory):
            self._connection.flow.pause_reading()  # until the next request can be parsed
            self._done.set_result(True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
        if not self._done.done():
            self._done.set_result(False)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


class _HeadWithBody:
    """A transport that keeps the head of an answer until its body, and sends both in one call."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):
            self._head = data
            return
        self._transport.write(self._head + data)
        self._head = b""

    def flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
