"""Clients of the proxy: a plain one, and some with bad manners."""

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

HOST, PORT = "127.0.0.1", 8080
MEBIBYTE = 2**20
_URL = f"http://{HOST}:{PORT}"


def image_part(data: bytes) -> dict[str, tuple[str, bytes]]:
    """Return an image as the files of a form, under a name that no log may hold."""
    return {"image": ("CANARYFILE.dcm", data)}


def ask(method: str, path: str, **given: Any) -> httpx.Response:
    """Send one request through the proxy; a status of 0: the connection ended without an answer."""
    try:
        with httpx.Client(base_url=_URL, timeout=90, trust_env=False) as client:
            return client.request(method, path, **given)
    except httpx.TransportError:
        return httpx.Response(0)


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


def slow_upload(headers: Mapping[str, str], data: bytes, seconds: float) -> int:
    """Ask about an image in pieces over so many seconds; gives the status."""
    request = httpx.Request("POST", _URL, headers=headers, files=image_part(data))
    body, pieces = request.read(), 10
    step = -(-len(body) // pieces)

    def given() -> Iterator[bytes]:
        for start in range(0, len(body), step):
            yield body[start : start + step]
            time.sleep(seconds / pieces)

    return ask("POST", "/classify", headers=request.headers, content=given()).status_code
