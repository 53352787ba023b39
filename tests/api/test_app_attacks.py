"""Clients that send, read or ask so that others would find no room, on raw sockets."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.support.dicom import raster_bytes
from tests.support.service import Service, png, running
from tests.support.wire import BOUNDARY, KEY, Part, Request, form

MEBIBYTE = 1 << 20
BODY = 4 * MEBIBYTE


@pytest.fixture(scope="module")
def guarded(published: Path, key_file: Path) -> Iterator[Service]:
    """A service with a key, and room for eight bodies."""
    constants = {"api.middleware:PIECE_S": 0.5, "api.launcher:_IDLE_S": 1}
    limits = {"max_body_mb": 4, "max_bodies_mb": 32, "body_deadline_s": 5}
    with running(published, key_file=str(key_file), constants=constants, **limits) as service:
        yield service


def stalled(service: Service, path: str) -> socket.socket:
    """A body of which one byte is missing."""
    wire = socket.create_connection(service.address, timeout=20)
    kind = "Content-Type: multipart/form-data; boundary=x\r\n"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{kind}Content-Length: {BODY}\r\n\r\n"
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


def test_a_late_body_without_a_key_hears_its_refusal(guarded: Service) -> None:
    with socket.create_connection(guarded.address, timeout=10) as late:
        late.sendall(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        time.sleep(0.1)
        late.sendall(b"too late.")  # a connection that ended before would be reset
        refusal = b"".join(iter(lambda: late.recv(4096), b""))
        assert refusal.startswith(b"HTTP/1.1 401 ")


def test_who_connects_and_says_nothing_is_let_go(guarded: Service) -> None:
    with ExitStack() as stack:
        wires = [
            stack.enter_context(socket.create_connection(guarded.address, timeout=30))
            for _ in range(20)
        ]
        assert classify(guarded) == 200
        assert {wire.recv(1) for wire in wires} == {b""}


def test_answers_that_nobody_reads_take_bounded_room(guarded: Service) -> None:
    ramp = np.arange(3000, dtype=np.uint16)[:, None].repeat(2500, 1)  # 15 MB of pixels
    image = Part("image", raster_bytes(ramp, "png"), "a.png")  # small as a file
    large_pixels = Request("/pixels", body=form(image)).encoded(KEY)
    with ExitStack() as stack:
        for _ in range(6):
            wire = stack.enter_context(socket.socket())
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            wire.connect(guarded.address)
            wire.sendall(large_pixels)
        guarded.until(
            lambda: any(
                line.get("route") == "/pixels" and line.get("code") in ("client_gone", "overloaded")
                for line in guarded.lines()
            )
        )
        assert classify(guarded) == 200
    assert classify(guarded) == 200


@pytest.mark.parametrize("size", [100, 3000, 100_000])
def test_a_body_in_chunks_is_read(guarded: Service, size: int) -> None:
    body = form(Part("image", png(), "a.png"))
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "X-API-Key": KEY}
    with guarded.client(**headers) as client:
        assert client.post("/classify", content=chunks).status_code == 200


def test_strangers_that_ask_on_and_on_neither_hold_the_service_nor_fill_the_log(guarded):
    before = guarded.log.stat().st_size
    with ExitStack() as stack:
        for number in range(400):
            wire = stack.enter_context(socket.create_connection(guarded.address, timeout=20))
            pipelined = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 2000
            wire.sendall(pipelined if number % 2 else b"\x16\x03\x01 no request\r\n\r\n")
        started = time.monotonic()
        assert classify(guarded) == 200
        assert time.monotonic() - started < 5
    assert guarded.log.stat().st_size - before < 20_000
