"""Messages and memory between a process and its decode workers.

A message is a JSON header and at most one descriptor. Bytes of files and of pixels never pass
through the socket: the other side gets a descriptor of a nameless file in memory (memfd) and reads
that. A worker that is killed leaves nothing behind. Where a system has no such files, as macOS,
they lie in its folder for temporary ones: what is lost is that no image touches a disk.
"""

import json
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

KEPT_BYTES = 32 << 20
"""Memory for images is used again for the next one, unless one took more than this."""


_LENGTH = struct.Struct("<I")
_MAX_HEADER = 1 << 16


class Closed(Exception):
    """The other side is gone."""


def send(channel: socket.socket, header: dict[str, Any], handle: int | None = None) -> None:
    """Send a header that JSON can hold, and a descriptor that the other side gets a copy of.

    Raises:
        Closed: the other side is gone.
    """
    text = json.dumps(header).encode()
    data = _LENGTH.pack(len(text)) + text
    try:
        if handle is None:
            channel.sendall(data)
            return
        sent = socket.send_fds(channel, [data], [handle])  # may send a part; the descriptor went
        channel.sendall(data[sent:])
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        raise Closed from error


def receive(channel: socket.socket) -> tuple[dict[str, Any], int | None]:
    """Receive a header, and the descriptor that came with it, which the caller closes.

    Raises:
        Closed: the other side is gone, or wrote something that is not a message.
        TimeoutError: nothing came in time.
    """
    handles: list[int] = []
    try:
        data, handles, _, _ = socket.recv_fds(channel, _LENGTH.size, 1)
        data = _rest(channel, data, _LENGTH.size)
        (length,) = _LENGTH.unpack(data)
        if length > _MAX_HEADER:
            raise Closed
        header = json.loads(_rest(channel, b"", length))
    except BaseException as error:
        for handle in handles:  # a worker that sends one and then dies must not leak it
            os.close(handle)
        if isinstance(error, ValueError | OSError) and not isinstance(error, TimeoutError):
            raise Closed from error
        raise
    return header, handles[0] if handles else None


def nameless_file() -> int:
    """Make a file in memory and give its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("image", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _rest(channel: socket.socket, data: bytes, length: int) -> bytes:
    while len(data) < length:
        more = channel.recv(length - len(data))
        if not more:
            raise Closed
        data += more
    return data


class SharedBuffer:
    """A nameless file in memory that every image is written into, one after the other."""

    # Reused rather than made for each image: its pages are there already and need not be faulted in
    # again. So it is as long as the largest image yet, and a request says how many of its bytes are
    # the newest. Nobody writes while a worker reads: a worker has one request at a time, and its
    # buffer is dropped when it is killed.

    def __init__(self) -> None:
        self._handle: int | None = None

    def write(self, data: bytes | memoryview) -> int:
        """Lay bytes down from the file's beginning, and give its descriptor, which stays open."""
        if self._handle is None:
            self._handle = nameless_file()
        at = 0
        while at < len(data):  # pwrite: the descriptor's offset is shared with the worker's copy
            at += os.pwrite(self._handle, data[at:] if at else data, at)
        return self._handle

    def clear(self) -> None:
        """Return the memory back."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def read_array(
    handle: int, shape: Sequence[int], kind: type[np.uint8] | type[np.uint16]
) -> npt.NDArray[Any]:
    """Copy an array out of a descriptor, so that nobody can change it afterwards.

    Raises:
        Closed: there are fewer bytes than the shape needs.
    """
    array: npt.NDArray[Any] = np.empty(shape, dtype=kind)
    view, at = array.data.cast("B"), 0
    with open(handle, "rb", buffering=0, closefd=False) as file:
        file.seek(0)  # the writer of the file left the offset that both share at its end
        while at < len(view):
            got = file.readinto(view[at:])
            if not got:
                raise Closed
            at += got
    return array
