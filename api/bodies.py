"""How the body of a request arrives: counted, bounded, and a large file of a form set aside.

A large file is never copied: it is read from the socket into memory that decode workers can read.
"""

import mmap
import os
import re
import weakref
from dataclasses import replace

from starlette.types import Message, Receive, Scope

from medclip_dcl.data.images import KEPT_BYTES, SharedBytes, SharedMemory

from .errors import ApiError
from .http_protocol import LARGE, READ_BODY, ReadBody
from .logging import state_of

_LONGEST_HEAD = 4096
_BOUNDARY = re.compile(
    rb"^multipart/form-data;\s*boundary=(?:\"([^\"]{1,70})\"|([^\s;\"]{1,70}))\s*$"
)
_MOST_LENT = 32  # each has a file descriptor
_MOST_IDLE = 8


class BodyMemory:
    """Room for bodies that are arriving or inside; the memory of large ones is used again."""

    def __init__(self, room: int, most_bytes: int) -> None:
        """`room`: bytes of all bodies at once, `most_bytes`: of one."""
        self.most_bytes = most_bytes
        self._room = room
        self._lent: set[int] = set()  # handles; threads add and remove without a lock
        self._idle: list[SharedMemory] = []

    def hold(self, size: int) -> bool:
        """Take room for so many bytes; whether there was room."""
        if size > self._room:
            return False
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


class Body:
    """The body of one request, counted as it arrives."""

    def __init__(self, memory: BodyMemory) -> None:
        self.size = 0
        self._memory = memory
        self._held = 0

    async def gather(self, scope: Scope, receive: Receive) -> Message:
        """Give the whole body as one ASGI message, or the message that the client has left.

        A large file of a form is left out of it and set aside in the request's state.

        Raises:
            ApiError: it is too large, or there is no room for it.
        """
        named = dict(scope["headers"])
        length = int(named.get(b"content-length", b"0"))
        kind = named.get(b"content-type", b"")
        read: ReadBody | None = scope.get("extensions", {}).get(READ_BODY)
        memory = None if read is None else self._memory.lend(length)
        if read is None or memory is None:
            return await self._in_pieces(scope, receive, kind)
        if not await read(memoryview(memory.map)[:length], self._hold):
            return {"type": "http.disconnect"}
        start, end = find_large_file(memory.map, length, kind) or (length, length)
        if start < end:
            state_of(scope).image = SharedBytes(memory, start, end)
        form = memory.map[:start] + memory.map[end:length]
        return {"type": "http.request", "body": form, "more_body": False}

    def release(self) -> None:
        """Give its room back."""
        self._memory.release(self._held)
        self._held = 0

    async def _in_pieces(self, scope: Scope, receive: Receive, kind: bytes) -> Message:
        pieces: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return message
            pieces.append(message.get("body", b""))
            self._hold(len(pieces[-1]))
            more = message.get("more_body", False)
        body = b"".join(pieces)
        place = find_large_file(body, len(body), kind)
        if place is not None:
            start, end = place
            state_of(scope).image = memoryview(body)[start:end]
            body = body[:start] + body[end:]
        return {"type": "http.request", "body": body, "more_body": False}

    def _hold(self, size: int) -> None:
        self.size += size
        if self.size > self._memory.most_bytes:
            raise ApiError("body_too_large")
        if not self._memory.hold(size):
            raise ApiError("overloaded")
        self._held += size


def find_large_file(
    body: bytes | mmap.mmap, length: int, content_type: bytes
) -> tuple[int, int] | None:
    """Find the content of a large file in a form, whose bytes need not be copied field by field.

    Gives its first place in the body of `length` bytes, and the place behind it. Whatever the
    parser makes of the form without it, only a prefix of one file's content is missing; and it is
    clear whose, since a form with two files is refused (`max_files` in api.app).
    """
    found = _BOUNDARY.search(content_type)
    if length < LARGE or found is None:
        return None
    delimiter = b"--" + (found[1] or found[2])
    place = 0 if body[: len(delimiter)] == delimiter else -1
    while place >= 0:
        start = body.find(b"\r\n\r\n", place, place + _LONGEST_HEAD) + 4
        end = body.find(b"\r\n" + delimiter, start, length)
        if start < 4 or end < 0:
            break
        if end - start >= LARGE and b"filename=" in body[place:start]:
            return start, end
        place = end + 2
    return None
