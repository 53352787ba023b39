"""Requests as bytes on a socket: what no client library would send."""

import contextlib
import re
import socket
from dataclasses import dataclass, field

BOUNDARY = "frontier"


@dataclass(frozen=True)
class Part:
    """A part of a form: a field, or a file where `filename` is given."""

    name: str | bytes
    content: bytes
    filename: str | bytes | None = None
    more: bytes = b""

    def encoded(self) -> bytes:
        """The part without its delimiter."""
        head = b'Content-Disposition: form-data; name="' + _bytes(self.name) + b'"'
        if self.filename is not None:
            head += b'; filename="' + _bytes(self.filename) + b'"'
        return head + b"\r\n" + self.more + b"\r\n" + self.content + b"\r\n"


@dataclass(frozen=True)
class Request:
    """A request; a header of None is left out."""

    path: str | bytes
    method: str | bytes = "POST"
    body: bytes = b""
    headers: dict[str, str | bytes | None] = field(default_factory=dict)
    raw: bytes | None = None

    def encoded(self, key: str) -> bytes:
        """All its bytes, with a key where it does not bring its own."""
        if self.raw is not None:
            return self.raw.replace(b"KEY", key.encode())
        head: dict[str, str | bytes | None] = {"Host": "localhost", "X-API-Key": key}
        if self.body or self.method == "POST":
            head |= {
                "Content-Type": f"multipart/form-data; boundary={BOUNDARY}",
                "Content-Length": str(len(self.body)),
            }
        head |= {"Connection": "close"} | self.headers
        lines = [_bytes(self.method) + b" " + _bytes(self.path) + b" HTTP/1.1"]
        lines += [
            _bytes(name) + b": " + _bytes(value)
            for name, value in head.items()
            if value is not None
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


@dataclass(frozen=True)
class Answer:
    """What came back; a status of 0: nothing."""

    status: int
    head: bytes
    body: bytes


def form(*parts: Part, end: bytes = b"--") -> bytes:
    """The body that holds the parts."""
    delimiter = f"--{BOUNDARY}".encode()
    encoded = b"".join(delimiter + b"\r\n" + part.encoded() for part in parts)
    return encoded + delimiter + end + b"\r\n"


def exchange(address: tuple[str, int], data: bytes, patience_s: float = 10.0) -> Answer:
    """Send bytes, and read until the server closes."""
    received = b""
    try:
        with socket.create_connection(address, timeout=patience_s) as connection:
            with contextlib.suppress(OSError):  # it may answer before it has read everything
                connection.sendall(data)
            while piece := connection.recv(65536):
                received += piece
    except OSError:
        pass
    received = received.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return Answer(int(status.group(1)) if status else 0, head, body)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
