"""HTTP on one connection: uvicorn's protocol over llhttp, held to bounds; large bodies unparsed.

A body of many megabytes with a stated length needs no parser. The application may ask for it
whole (`READ_BODY` in the scope's extensions): the socket is then read into memory of the
application's instead of being passed on piece by piece.
"""

import asyncio
import resource
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

READ_BODY = "medclip.read_body"
"""Extension of a scope whose body is large: `ReadBody`."""

ReadBody = Callable[[memoryview, Callable[[int], None]], Awaitable[bool]]
"""Reads the whole body into memory of its length; False: the client has left. The second argument
is called with the bytes of each piece that has come, and raises to refuse the body."""

REFUSE = "medclip.refuse"
"""Key of the lifespan's state: `Refuse`."""

Refuse = Callable[[dict[str, Any], int], bytes | None]
"""Gives the whole answer to a request that is refused by its head, of a scope and of the bytes of
its body that came with the head; None for others."""

LARGE = 256 * 1024
"""Bytes from which a body is large."""

_LONGEST_HEAD = 16 * 1024  # bytes of the request line and all headers
_LONGEST_BLANK = 2  # one empty line before a request is allowed (RFC 9112, 2.2); llhttp skips any
_MOST_PIPELINED = 8
_CHUNK_FRAME = 32  # bytes around each chunk that are free: its length and line ends need 12
_HEAD_FRAME, _LINE_FRAME = 18, 4  # bytes around the path of a POST and around a header
_PIECE = 2**23  # bytes of a read; of 1 MiB each, a DICOM file takes 18 turns of the event loop

_MOST_CONNECTIONS = 1024
_LONGEST_BACKLOG = 100
_OTHER_DESCRIPTORS = 128  # of decode workers, memory of large bodies, libraries


def connection_limits(descriptors: int) -> tuple[int, int]:
    """Give the most connections, and the backlog of the listener, of a process.

    asyncio accepts a whole backlog in each turn of its loop, and needs a few turns to close what is
    too many. Without a free descriptor it would log every attempt.
    """
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS, _LONGEST_BACKLOG
    spare = max(descriptors - _OTHER_DESCRIPTORS, 32)
    return min(spare // 2, _MOST_CONNECTIONS), min(spare // 8, _LONGEST_BACKLOG)


class ServiceProtocol(HttpToolsProtocol):
    """One connection."""

    most_connections, backlog = connection_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    _head = 0  # bytes of the head that is arriving
    _in_head = False
    _blank = 0  # bytes of empty lines before it
    _frame = 0  # bytes of a body in chunks that are not the body
    _piece = 0  # bytes that came together last

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = _Parser(self)
        self._idle_since = self.loop.time()

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is asked: what is not yet sent is all that is left to do."""
        return self.cycle is None or self.cycle.response_complete or self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection; in place of the longest idle one where there are too many."""
        super().connection_made(transport)
        if len(self.connections) <= self.most_connections:
            return
        idle = (
            item
            for item in self.connections
            if isinstance(item, ServiceProtocol) and item is not self and item.is_waiting
        )
        dropped = min(idle, key=lambda item: item._idle_since, default=self)
        self.connections.discard(dropped)
        dropped.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes that are not those of a large body."""
        # llhttp gathers a header of any length before it names it. What came of it in one piece
        # with an earlier body is not counted; such a piece has 256 KiB at most.
        is_too_long = False
        if self._in_head:
            self._head += len(data)
            is_too_long = self._head > _LONGEST_HEAD
        elif self.cycle is not None and self.cycle.more_body:  # nor does it name chunk extensions
            is_too_long = self._frame > _LONGEST_HEAD
            self._frame += len(data)
        elif not data.strip(b"\r\n"):
            self._blank += len(data)
            is_too_long = self._blank > _LONGEST_BLANK
        if is_too_long:
            self.send_400_response("The head of the request is too long, or empty.")
            return
        self._piece = len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Begin a request."""
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many requests wait for earlier ones on this connection")
        self._head, self._in_head, self._blank, self._frame = 0, True, 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the request line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what follows a body in chunks is dropped."""
        self._count(len(name) + len(value))
        if self._in_head:
            super().on_header(name, value.strip(b" \t"))  # llhttp leaves spaces behind a value

    def on_headers_complete(self) -> None:
        """Start the application on a request."""
        self._in_head = False
        self._check_head()
        if self.parser.should_upgrade():  # it will be read again, without the offer
            return
        super().on_headers_complete()
        lengths = [int(value) for name, value in self.headers if name == b"content-length"]
        if lengths and lengths[0] >= LARGE and not self.pipeline:
            read = _LargeBody(self).read
            self.scope["extensions"] = {READ_BODY: read}  # type: ignore[dict-item]

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """Start the application; a refused request is answered here, which costs a third."""
        refuse: Refuse | None = self.app_state.get(REFUSE)
        body = self._piece - self._head - _HEAD_FRAME - _LINE_FRAME * len(self.headers)
        refusal = refuse(cycle.scope, body) if refuse and cycle.keep_alive else None
        if refusal is None:
            super()._start_asgi_task(cycle, app)
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(refusal)
        self.on_response_complete()

    def on_chunk_header(self) -> None:
        """Take the length of a chunk."""
        self._frame -= _CHUNK_FRAME

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._frame -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request."""
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def decline_upgrade(self, rest: bytes) -> None:
        """Read a request again without its offer of another protocol, then what follows its head.

        llhttp ends a request at such an offer, and would take its body for the next one.
        """
        line = f" HTTP/{self.parser.get_http_version()}".encode()
        lines = [self.parser.get_method() + b" " + self.url + line]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join((*lines, b"", b"")) + rest)

    def begin_next_request(self) -> None:
        """Parse what follows a body that the parser has not seen."""
        self.parser = _Parser(self)
        super().on_message_complete()

    def _check_head(self) -> None:
        """Refuse what a proxy in front may read in another way (RFC 9112, 2.3, 3.2 and 6.1)."""
        version = self.parser.get_http_version()
        if version not in {"1.0", "1.1"} or self.parser.get_method() == b"CONNECT":
            raise ValueError("only HTTP/1.0 and HTTP/1.1 are spoken here, to no other host")
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (version == "1.1" and not hosts):
            raise ValueError("a request names its host once")
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise ValueError("a body comes with its length or in chunks")
        if version == "1.0":
            self.expect_100_continue = False  # its client knows no such answer

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > _LONGEST_HEAD:
            raise ValueError("the head of the request is too long")


class _Parser(httptools.HttpRequestParser):
    """llhttp, which an offer of another protocol (`Upgrade: h2c`) does not stop."""

    def __init__(self, connection: ServiceProtocol) -> None:
        super().__init__(connection)
        self._connection = connection
        # As uvicorn sets it: bytes behind a last request do not spoil its answer.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._connection.decline_upgrade(bytes(data[offer.args[0] :]))


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
