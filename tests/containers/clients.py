"""Clients of the proxy: a plain one, and some with bad manners."""

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.support import wire

HOST, PORT = "127.0.0.1", 8080
MEBIBYTE = 2**20


@dataclass(frozen=True)
class Answer:
    """Status 0: the connection ended without one."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def form(image: bytes, fields: Mapping[str, str] | None = None) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a multipart form with an image, if any, and other fields."""
    parts = [wire.Part(name, value.encode()) for name, value in (fields or {}).items()]
    if image:
        kind = b"Content-Type: application/octet-stream\r\n"
        parts.append(wire.Part("image", image, "CANARYFILE.dcm", kind))
    headers = {"Content-Type": f"multipart/form-data; boundary={wire.BOUNDARY}"}
    return headers, wire.form(*parts)


def ask(
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterator[bytes] = b"",
) -> Answer:
    """Send one request through the proxy."""
    connection = http.client.HTTPConnection(HOST, PORT, timeout=90)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before its end
            connection.request(method, path, body or None, dict(headers or {}))
        given = connection.getresponse()
        return Answer(given.status, given.headers, given.read())
    except (OSError, http.client.HTTPException):
        return Answer(0, {}, b"")
    finally:
        connection.close()


@contextlib.contextmanager
def stalled(count: int, headers: Mapping[str, str]) -> Iterator[list[socket.socket]]:
    """Keep uploads open that announce 62 MiB and send nothing of it."""
    head = "POST /classify HTTP/1.1\r\nHost: here\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head += f"Content-Length: {62 * MEBIBYTE}\r\n\r\n"
    senders = []
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sender = stack.enter_context(socket.create_connection((HOST, PORT)))
            senders.append(sender)
            sender.settimeout(2)
            with contextlib.suppress(OSError):  # who has no key may be cut off meanwhile
                sender.sendall(head.encode())
        yield senders


def slow_upload(headers: Mapping[str, str], body: bytes, seconds: float) -> int:
    """Send a body in pieces over so many seconds; gives the status."""
    pieces = 10
    step = -(-len(body) // pieces)

    def given() -> Iterator[bytes]:
        for start in range(0, len(body), step):
            yield body[start : start + step]
            time.sleep(seconds / pieces)

    length = {"Content-Length": str(len(body))}
    return ask("POST", "/classify", {**headers, **length}, given()).status
