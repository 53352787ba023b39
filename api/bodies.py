"""How the body of a request arrives and an answer leaves: counted, bounded, at a pace.

The parser of forms would take seconds for some bodies of many megabytes. So the large files of a
form are set aside, and it gets the rest alone, which is small. A large file is never copied: it is
read from the socket into memory that decode workers can read.

An answer leaves with the headers of safety, in pieces that are counted until its reader has them.
"""

import asyncio
import functools
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus

from python_multipart.multipart import parse_options_header
from starlette.types import Message, Receive, Scope, Send

from medclip_dcl.data.ipc import KEPT_BYTES, SharedBytes, SharedMemory

from .errors import ApiError, error_response
from .http_protocol import LARGE, READ_BODY, ReadBody
from .logging import state_of
from .settings import MAX_FIELDS, MAX_FORM_KB, MAX_IMAGES

_LONGEST_HEAD = 4096
_LONGEST_BOUNDARY = 70  # RFC 2046, 5.1.1
_MOST_LENT = 32  # each has a file descriptor
_MOST_IDLE = 8

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}
_ENCODED = tuple((name.lower().encode(), value.encode()) for name, value in _HEADERS.items())

STEP = 64 * 1024
"""Bytes of a large body or answer that have to move in `STEP_S`."""

STEP_S = 10.0
"""Seconds."""

_SAFE_S = 0.5  # who has moved `STEP` bytes within so many seconds keeps its room


class BodyMemory:
    """Room for bodies that arrive or are inside and for answers that leave.

    Where it is full, transfers that hardly move lose theirs: slow clients shut nobody out. The
    memory of large bodies is used again.
    """

    def __init__(self, room: int, most_bytes: int) -> None:
        """`room`: bytes of all bodies at once, `most_bytes`: of one."""
        self.most_bytes = most_bytes
        self.moving: set[Transfer] = set()
        self._room = room
        self._lent: set[int] = set()  # handles; threads add and remove without a lock
        self._idle: list[SharedMemory] = []

    def hold(self, size: int, asking: "Transfer | None" = None) -> bool:
        """Take room for so many bytes; whether there was room."""
        while size > self._room:
            now = time.monotonic()
            slow = [
                item
                for item in self.moving
                if item is not asking and item.held and now - item.step_at > _SAFE_S
            ]
            if not slow:
                return False
            min(slow, key=lambda item: item.step_at).cut()
        self._room -= size
        return True

    def release(self, size: int) -> None:
        """Give room back, bytes."""
        self._room += size

    def lend(self, size: int) -> SharedMemory | None:
        """Give memory for a body of `size` bytes; None where too much is out, or not on Linux."""
        if len(self._lent) == _MOST_LENT or not hasattr(os, "memfd_create"):
            return None
        memory = self._idle.pop() if self._idle else SharedMemory.of_size(self.most_bytes)
        # A worker may still read what nobody waits for: it is free when nobody refers to it.
        lent = replace(memory)
        weakref.finalize(lent, self._take_back, memory, size).atexit = False
        self._lent.add(lent.handle)
        return lent

    def give_back(self) -> None:
        """Return what is not in use to the system."""
        while self._idle:
            os.close(self._idle.pop().handle)

    def _take_back(self, memory: SharedMemory, size: int) -> None:
        self._lent.discard(memory.handle)
        if size > KEPT_BYTES or len(self._idle) == _MOST_IDLE:
            os.close(memory.handle)
        else:
            self._idle.append(memory)


class Transfer:
    """Bytes of a body that arrives, or of an answer that leaves: their room and their pace."""

    def __init__(self, memory: BodyMemory, limit: asyncio.Timeout) -> None:
        """`limit`: of the task that moves them, which `cut` ends."""
        self.is_cut = False
        self.held = 0
        self.step_at = time.monotonic()
        self._memory, self._limit = memory, limit
        self._since_step = 0
        memory.moving.add(self)

    def hold(self, size: int) -> None:
        """Take room; ApiError where there is none."""
        if self.is_cut or not self._memory.hold(size, self):
            raise ApiError("overloaded")
        self.held += size

    def move(self, size: int) -> bool:
        """Count bytes that have moved; whether a step is complete."""
        self._since_step += size
        if self._since_step < STEP:
            return False
        self._since_step, self.step_at = 0, time.monotonic()
        return True

    def cut(self) -> None:
        """End it, and give its room to others at once."""
        self.is_cut = True
        self.release()
        if not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())

    def settle(self) -> None:
        """Keep its room until it is released: everything has moved."""
        self._memory.moving.discard(self)

    def release(self) -> None:
        """Give its room back."""
        self.settle()
        self._memory.release(self.held)
        self.held = 0


class Body:
    """The body of one request, counted as it arrives."""

    def __init__(self, memory: BodyMemory, deadline_s: float) -> None:
        self.size = 0
        self._memory, self._deadline_s = memory, deadline_s
        self._transfer: Transfer | None = None
        self._is_form = False

    async def gather(self, scope: Scope, receive: Receive) -> Message:
        """Give the whole body as one ASGI message, or the message that the client has left.

        Large files of a form are left out of it and set aside in the request's state.

        Raises:
            ApiError: it is too large or too slow, or there is no room for it.
        """
        try:
            async with asyncio.timeout(self._deadline_s) as limit:
                self._limit, self._end = limit, limit.when() or 0.0
                self._transfer = Transfer(self._memory, limit)
                message = await self._gather(scope, receive)
        except TimeoutError as error:
            cut = self._transfer is not None and self._transfer.is_cut
            raise ApiError("overloaded" if cut else "body_deadline") from error
        self._transfer.settle()
        if self._transfer.is_cut:  # in the moment in which its last byte came
            raise ApiError("overloaded")
        if len(message.get("body", b"")) > MAX_FORM_KB * 1024:
            raise ApiError("malformed_body")
        return message

    def release(self) -> None:
        """Give its room back."""
        if self._transfer is not None:
            self._transfer.release()

    async def _gather(self, scope: Scope, receive: Receive) -> Message:
        named = dict(scope["headers"])
        length = int(named.get(b"content-length", b"0"))
        kind = named.get(b"content-type", b"")
        self._is_form = _boundary(kind) is not None
        read: ReadBody | None = scope.get("extensions", {}).get(READ_BODY)
        memory = None if read is None else self._memory.lend(length)
        if read is None or memory is None:
            return await self._in_pieces(scope, receive, kind)
        if not await read(memoryview(memory.map)[:length], self._hold):
            return {"type": "http.disconnect"}
        spans = find_large_files(memory.map, length, kind)
        state_of(scope).files = [SharedBytes(memory, start, end) for start, end in spans]
        if length - sum(end - start for start, end in spans) > MAX_FORM_KB * 1024:
            raise ApiError("malformed_body")  # before it is copied
        form = _without(memory.map, length, spans)
        return {"type": "http.request", "body": form, "more_body": False}

    async def _in_pieces(self, scope: Scope, receive: Receive, kind: bytes) -> Message:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return message
            piece = message.get("body", b"")
            self._hold(len(piece))
            body += piece
            more = message.get("more_body", False)
        spans = find_large_files(body, len(body), kind)
        state_of(scope).files = [memoryview(body)[start:end] for start, end in spans]
        form = _without(body, len(body), spans)
        return {"type": "http.request", "body": form, "more_body": False}

    def _hold(self, size: int) -> None:
        assert self._transfer is not None
        self.size += size
        if self.size > self._memory.most_bytes:
            raise ApiError("body_too_large")
        if self.size > MAX_FORM_KB * 1024 and not self._is_form:
            raise ApiError("malformed_body")
        self._transfer.hold(size)
        if self._transfer.move(size) and self.size >= LARGE and not self._limit.expired():
            next_s = asyncio.get_running_loop().time() + STEP_S
            self._limit.reschedule(min(self._end, next_s))


def find_large_files(
    body: bytes | bytearray | mmap.mmap, length: int, content_type: bytes
) -> list[tuple[int, int]]:
    """Find the contents of a form's files, so that their bytes need not be copied field by field.

    Gives the first place of each in the body of `length` bytes, and the place behind it, in order;
    nothing where all of them together are small. Whatever the parser makes of the form without
    them, only a prefix of each file's content is missing. A route knows whose each is: its files
    are as many (`max_files`), and in the same order.
    """
    boundary = _boundary(content_type)
    if length < LARGE or boundary is None:
        return []
    delimiter = b"--" + boundary
    spans: list[tuple[int, int]] = []
    place = 0 if body[: len(delimiter)] == delimiter else -1
    for _ in range(MAX_FIELDS + MAX_IMAGES + 1):
        if place < 0:
            break
        start = body.find(b"\r\n\r\n", place, place + _LONGEST_HEAD) + 4
        # Nothing follows the last part, so the whole body is not searched again.
        end = body.find(b"\r\n" + delimiter, start, length) if start >= 4 else -1
        if end < 0:
            break
        if b"filename=" in body[place:start]:
            spans.append((start, end))
        place = end + 2
    return spans if sum(end - start for start, end in spans) >= LARGE else []


def _without(body: bytearray | mmap.mmap, length: int, spans: Sequence[tuple[int, int]]) -> bytes:
    """Copy what is left of a body between the files of a form."""
    edges = [0, *(edge for span in spans for edge in span), length]
    return b"".join(body[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def _boundary(content_type: bytes) -> bytes | None:
    """The boundary of a form's parts, as its parser reads it; None where it is another form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    is_one = kind == b"multipart/form-data" and 0 < len(boundary) <= _LONGEST_BOUNDARY
    return boundary if is_one else None


class Answer:
    """One answer. A large one takes room of `memory` until its reader has it.

    `status` is 0 until it begins. `is_cut`: its reader was too slow, or it lost its room.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: BodyMemory) -> None:
        self.status = 0
        self.is_cut = False
        self._scope, self._receive, self._send = scope, receive, send
        self._memory = memory
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Take a message of the application; `send` of ASGI."""
        if self.is_cut:
            return
        if message["type"] == "http.response.start":
            self._start = message  # until there is room for what follows
            return
        body = message.get("body", b"")
        try:
            async with asyncio.timeout(STEP_S) as limit:
                transfer = Transfer(self._memory, limit)
                try:
                    if len(body) > STEP:
                        transfer.hold(len(body))
                    await self._begin()
                    await self._pass_on(body, message.get("more_body", False), limit, transfer)
                finally:
                    transfer.release()
        except ApiError as refusal:
            await self._refuse(refusal.code)
        except TimeoutError:
            self.is_cut = True

    async def _begin(self) -> None:
        if self._start is None:
            return
        start, self._start = self._start, None
        self.status = start["status"]
        missing = _missing_headers(start, state_of(self._scope).request_id)
        await self._send({**start, "headers": [*start["headers"], *missing]})

    async def _pass_on(
        self, body: bytes, more: bool, limit: asyncio.Timeout, transfer: Transfer
    ) -> None:
        # The server passes a piece on once the one before has almost left. So what a slow reader
        # leaves lying is counted here, and not in the buffer of its connection.
        for at in range(0, max(len(body), 1), STEP):
            is_last = at + STEP >= len(body)
            piece = body[at : at + STEP]
            await self._send(
                {"type": "http.response.body", "body": piece, "more_body": more or not is_last}
            )
            if transfer.is_cut:  # while the server waited for the reader
                raise TimeoutError
            transfer.move(len(piece))
            limit.reschedule(asyncio.get_running_loop().time() + STEP_S)

    async def _refuse(self, code: str) -> None:
        if self.status:  # it has begun
            self.is_cut = True
            return
        state = state_of(self._scope)
        state.code = code
        await error_response(code, state.request_id)(self._scope, self._receive, self.send)


def _missing_headers(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in message["headers"]}
    ours = ((b"x-request-id", request_id.encode()), *_ENCODED)
    return [(name, value) for name, value in ours if name not in present]


def refusal_bytes(code: str, request_id: str) -> bytes:
    """Make the answer with a code of `ERRORS` as it goes over the wire."""
    return request_id.encode().join(_around_id(code, len(request_id)))


@functools.lru_cache(maxsize=256)
def _around_id(code: str, length: int) -> list[bytes]:
    """Make a refusal once for all ids of a length: what stands around the places of the id."""
    place = "\x7f" * length  # in no id
    answer = error_response(code, place)
    start = {"headers": answer.raw_headers}
    status = HTTPStatus(answer.status_code)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [
        b": ".join(header) for header in (*answer.raw_headers, *_missing_headers(start, place))
    ]
    return b"\r\n".join((*lines, b"", bytes(answer.body))).split(place.encode())
