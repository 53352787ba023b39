"""Clients that send, read or ask so that others would find no room, on raw sockets."""

import io
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from testing.service import Service, png, running
from testing.wire import Part, Request, exchange, form

KEY = "k" * 20 + "0123456789abcdef"
MEBIBYTE = 1 << 20
BODY = 4 * MEBIBYTE


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a key, and room for eight bodies."""
    path = tmp_path_factory.mktemp("keys") / "key"
    path.write_text(KEY)
    path.chmod(0o400)
    sizes = {"max_body_mb": 4, "max_bodies_mb": 32}
    with running(folder, key_file=str(path), body_deadline_s=5, **sizes) as service:
        yield service


def stalled(service: Service, path: str, key: str = "") -> socket.socket:
    """A body of which one byte is missing."""
    wire = socket.create_connection(service.address, timeout=20)
    kind = "Content-Type: multipart/form-data; boundary=x\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{key}{kind}Content-Length: {BODY}\r\n\r\n"
    begin = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    wire.sendall(head.encode() + begin + bytes(BODY - 1 - len(begin)))
    return wire


def classify(service: Service) -> int:
    with service.client(**{"X-API-Key": KEY}) as client:
        return client.post("/classify", files={"image": ("image", png())}).status_code


@pytest.mark.parametrize("path", ["/health", "/static/viewer.js", "/nowhere"])
def test_bodies_without_a_key_take_no_room(guarded: Service, path: str) -> None:
    before = guarded.resident_mb()
    with ExitStack() as stack:
        wires = [stack.enter_context(stalled(guarded, path)) for _ in range(9)]
        assert classify(guarded) == 200
        status = b"401" if path == "/nowhere" else b"405"
        assert {wire.recv(12, socket.MSG_WAITALL)[9:] for wire in wires} == {status}
        assert guarded.resident_mb() - before < 24


def test_who_has_a_key_and_stalls_shuts_nobody_out(guarded: Service) -> None:
    with ExitStack() as stack:
        wires = [
            stack.enter_context(stalled(guarded, "/classify", f"X-API-Key: {KEY}\r\n"))
            for _ in range(9)
        ]
        time.sleep(0.6)
        assert [classify(guarded) for _ in range(3)] == [200] * 3
        assert wires[0].recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 503"


FORMS = {
    "urlencoded": ("application/x-www-form-urlencoded", b"&"),
    "empty parts": ("multipart/form-data; boundary=x", b"\r\n--x\r\n\r\n"),
    "spaces": ("multipart/form-data; boundary=x", b" "),
    "almost boundaries": ("multipart/form-data; boundary=x", b"\r\n--xQ"),
}


@pytest.mark.parametrize("name", FORMS)
def test_large_forms_do_not_hold_the_loop(guarded: Service, name: str) -> None:
    kind, piece = FORMS[name]
    begin = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    body = (begin if name.startswith("almost") else b"--x") + piece * (BODY // len(piece) - 20)
    with httpx.Client(base_url=guarded.url, timeout=20) as client:
        started = time.monotonic()
        headers = {"X-API-Key": KEY, "Content-Type": kind}
        answer = client.post("/classify", content=body, headers=headers)
    assert answer.json()["code"] in {"malformed_body", "invalid_request"}
    assert time.monotonic() - started < 2


@pytest.fixture(scope="module")
def large_pixels() -> bytes:
    """A request for an image of 15 MB of pixels that is small as a file."""
    stream = io.BytesIO()
    ramp = np.arange(3000, dtype=np.uint16)[:, None].repeat(2500, 1)
    Image.fromarray(ramp).save(stream, "PNG")
    request = Request("/pixels", body=form(Part("image", stream.getvalue(), "a.png")))
    return request.encoded(KEY)


def test_a_slow_reader_gets_the_whole_answer(guarded: Service, large_pixels: bytes) -> None:
    with socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        wire.connect(guarded.address)
        wire.sendall(large_pixels)
        size = 0
        while piece := wire.recv(256 * 1024):
            size += len(piece)
            time.sleep(len(piece) / 8e6)
    assert size > 15_000_000


def test_answers_that_nobody_reads_take_bounded_room(guarded: Service, large_pixels: bytes) -> None:
    with ExitStack() as stack:
        for _ in range(6):
            wire = stack.enter_context(socket.socket())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.connect(guarded.address)
            wire.sendall(large_pixels)
        end = time.monotonic() + 20
        lines = [line for line in guarded.lines() if line.get("route") == "/pixels"]
        while not any(line.get("code") in ("client_gone", "overloaded") for line in lines):
            assert time.monotonic() < end
            time.sleep(0.1)
            lines = [line for line in guarded.lines() if line.get("route") == "/pixels"]
        assert classify(guarded) == 200
    assert exchange(guarded.address, Request("/model", "GET").encoded(KEY)).status == 200
