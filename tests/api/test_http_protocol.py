"""A real server on the protocol, with an application that says what it got."""

import gc
import resource
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from api.http_protocol import READ_BODY, REFUSE, ServiceProtocol, connection_limits

MEBIBYTE = 1 << 20
held: list[int] = []
told: list[bytes] = []


class Whole(bytearray):
    """Memory that a body is read into."""


wholes: list[weakref.ref[Whole]] = []


bodies: list[int] = []
"""Bytes of the body that came with each head."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the way that the body came, its length and its last byte."""
    if scope["type"] == "lifespan":
        await receive()
        scope["state"][REFUSE] = refuse
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    held.clear()
    read = scope.get("extensions", {}).get(READ_BODY)
    if read is None:
        body = b""
        while (message := await receive()).get("more_body") or message.get("body"):
            body += message["body"]
            if not message["more_body"]:
                break
        words = f"parsed {len(body)}"
    else:
        try:
            length = int(dict(scope["headers"])[b"content-length"])
            whole = Whole(length)
            wholes.append(weakref.ref(whole))
            if not await read(memoryview(whole), hold):
                return
        except OverflowError:
            words = "refused"
        else:
            words = f"whole {len(whole)} {whole[-1]}"
    told[:] = [value for name, value in scope["headers"] if name == b"x-told"]
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", str(len(words)).encode())],
        }
    )
    await send({"type": "http.response.body", "body": words.encode()})


def refuse(scope: Any, body: int) -> bytes | None:
    bodies.append(body)
    is_refused = (b"x-refused", b"") in scope["headers"]
    return b"HTTP/1.1 503 Full\r\ncontent-length: 4\r\n\r\nfull" if is_refused else None


def hold(size: int) -> None:
    held.append(size)
    if sum(held) > 8 * MEBIBYTE:
        raise OverflowError


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=ServiceProtocol, loop="asyncio", ws="none", lifespan="on", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture
def wire(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as made:
        yield made


def head(length: int, *more: str) -> bytes:
    lines = ("POST / HTTP/1.1", "Host: x", f"Content-Length: {length}", *more)
    return "\r\n".join((*lines, "", "")).encode()


def answer(wire: socket.socket) -> str:
    """Read one answer, and give its body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = wire.recv(1)
        assert piece, data
        data += piece
    length = int(data.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return wire.recv(length, socket.MSG_WAITALL).decode()


@pytest.mark.parametrize("size", [MEBIBYTE // 4, MEBIBYTE // 4 + 1, MEBIBYTE, 5 * MEBIBYTE + 3])
def test_a_large_body_comes_whole_and_requests_behind_it_are_answered(
    wire: socket.socket, size: int
) -> None:
    wire.sendall(head(size) + bytes(size - 1) + b"\x07" + head(3) + b"abc")
    assert answer(wire) == f"whole {size} 7"
    assert answer(wire) == "parsed 3"
    wire.sendall(head(size))
    for at in range(0, size, MEBIBYTE):  # in pieces, the last of one byte
        wire.sendall(bytes(min(MEBIBYTE, size - 1 - at)))
    wire.sendall(b"\x09")
    assert answer(wire) == f"whole {size} 9"


def test_a_refused_request_is_answered_in_its_turn_and_its_body_passed_over(
    wire: socket.socket,
) -> None:
    for size in (3, MEBIBYTE):
        wire.sendall(head(3) + b"abc" + head(size, "X-Refused:") + bytes(size) + head(2) + b"ab")
        assert [answer(wire) for _ in range(3)] == ["parsed 3", "full", "parsed 2"]


def test_memory_of_a_body_is_let_go_with_its_answer(wire: socket.socket) -> None:
    gc.collect()
    gc.disable()  # uvicorn's objects refer to each other in circles
    try:
        wire.sendall(head(MEBIBYTE))
        wire.sendall(bytes(MEBIBYTE))
        assert answer(wire) == f"whole {MEBIBYTE} 0"
        wire.sendall(head(3) + b"abc")
        assert answer(wire) == "parsed 3"  # by now the first answer has ended
        assert [whole() for whole in wholes[-1:]] == [None]
    finally:
        gc.enable()


def test_who_sends_little_takes_little_memory(wire: socket.socket) -> None:
    wire.sendall(head(64 * MEBIBYTE) + bytes(MEBIBYTE))
    limit = time.monotonic() + 5
    while sum(held) < MEBIBYTE and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.1)
    assert sum(held) == MEBIBYTE


def test_memory_that_is_refused_ends_the_connection(wire: socket.socket) -> None:
    wire.sendall(head(64 * MEBIBYTE) + bytes(8 * MEBIBYTE + 1))
    assert answer(wire) == "refused"
    with pytest.raises(ConnectionError):
        wire.sendall(bytes(64 * MEBIBYTE))


def test_who_leaves_is_not_waited_for(wire: socket.socket, port: int) -> None:
    wire.sendall(head(MEBIBYTE) + bytes(MEBIBYTE - 1))
    wire.close()
    with socket.create_connection(("127.0.0.1", port), timeout=5) as other:
        other.sendall(head(3) + b"abc")
        assert answer(other) == "parsed 3"


def test_a_body_is_asked_for_where_the_client_waits_for_that(wire: socket.socket) -> None:
    wire.sendall(head(MEBIBYTE, "Expect: 100-continue"))
    assert wire.recv(25, socket.MSG_WAITALL) == b"HTTP/1.1 100 Continue\r\n\r\n"
    wire.sendall(bytes(MEBIBYTE))
    assert answer(wire) == f"whole {MEBIBYTE} 0"


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
@pytest.mark.parametrize("kind", ["line", "one header", "headers"])
def test_a_head_of_more_than_16_kib_is_refused(
    wire: socket.socket, kind: str, pause_s: float
) -> None:
    long = {
        "line": b"GET /" + 40_000 * b"a" + b" HTTP/1.1\r\n",
        "one header": b"GET / HTTP/1.1\r\nx: " + 40_000 * b"a" + b"\r\n",
        "headers": b"GET / HTTP/1.1\r\n" + 2_000 * (b"name: " + 12 * b"a" + b"\r\n"),
    }[kind]
    with suppress(ConnectionError):  # who goes on sending may find the answer lost
        for at in range(0, len(long), 6_000):
            wire.sendall(long[at : at + 6_000])
            time.sleep(pause_s)
        assert wire.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 400"


def test_few_requests_may_wait_for_an_earlier_one(wire: socket.socket) -> None:
    wire.sendall(head(3) + 20 * head(0))
    assert b"HTTP/1.1 400" in b"".join(iter(lambda: wire.recv(4096), b""))


UPGRADE = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk"


@pytest.mark.parametrize("size", [0, 3, 70_000, MEBIBYTE])
def test_an_offer_of_http_2_is_declined_and_loses_no_body(wire: socket.socket, size: int) -> None:
    told = f"whole {size} 7" if size == MEBIBYTE else f"parsed {size}"
    body = (bytes(size) + b"\x07")[-size:] if size else b""
    wire.sendall(head(size, *UPGRADE.split("\r\n")) + body + head(3) + b"abc")
    assert answer(wire) == told
    assert answer(wire) == "parsed 3"
    wire.sendall(head(size, *UPGRADE.split("\r\n")))
    time.sleep(0.05)
    wire.sendall(body)
    assert answer(wire) == told


@pytest.mark.parametrize(
    "lines",
    [
        "GET / HTTP/1.1",
        "GET / HTTP/1.1|Host: a|Host: a",
        "GET / HTTP/1.0|Host: a|Host: a",
        "GET / HTTP/0.9|Host: a",
        "GET / HTTP/2.0|Host: a",
        "CONNECT a:1 HTTP/1.1|Host: a",
        "POST / HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked",
        "POST / HTTP/1.1|Host: a|Transfer-Encoding: identity|Transfer-Encoding: chunked",
        "POST / HTTP/1.0|Host: a|Transfer-Encoding: chunked",
    ],
)
def test_heads_that_can_be_read_in_two_ways_are_refused(wire: socket.socket, lines: str) -> None:
    end = b"0\r\n\r\n" if "Transfer" in lines else b""
    wire.sendall(lines.replace("|", "\r\n").encode() + b"\r\n\r\n" + end)
    assert wire.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 400"


def test_what_follows_a_body_in_chunks_is_no_header(wire: socket.socket) -> None:
    wire.sendall(
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\nX-Told: late\r\n\r\n"
    )
    assert answer(wire) == "parsed 3"
    assert told == []


def test_a_body_in_chunks_of_any_size_comes_whole_and_its_extensions_are_bounded(
    wire: socket.socket,
) -> None:
    begin = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = 20_000 * b"1;a=b\r\nx\r\n" + b"30d40\r\n" + bytes(200_000) + b"\r\n"
    wire.sendall(begin + chunks + b"0\r\n\r\n")
    assert answer(wire) == "parsed 220000"
    with suppress(ConnectionError):
        wire.sendall(begin + b"1;")
        for _ in range(200):
            wire.sendall(4096 * b"a")
            time.sleep(0.0005)
    assert wire.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 400"


def test_the_longest_idle_connection_makes_room_for_a_new_one(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServiceProtocol, "most_connections", 3)
    wires = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(2)]
    wires[0].sendall(head(3))  # its request is on the way
    time.sleep(0.05)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as other:
            other.sendall(head(3) + b"abc")
            assert answer(other) == "parsed 3"
            wires.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    with suppress(ConnectionError):
        assert wires[1].recv(1) == b""
    wires[0].sendall(b"abc")
    assert answer(wires[0]) == "parsed 3"
    for made in wires:
        made.close()


@pytest.mark.parametrize("descriptors", [64, 256, 300, 1024, 4096, 1 << 20])
def test_connections_and_those_being_accepted_leave_descriptors_free(descriptors: int) -> None:
    connections, backlog = connection_limits(descriptors)
    assert connections >= 16
    assert backlog >= 4
    assert connections + 4 * backlog <= max(descriptors - 128, 32)
    assert backlog <= 100
    assert connection_limits(resource.RLIM_INFINITY) == connection_limits(1 << 30)


def test_one_empty_line_before_a_request_is_skipped_and_two_are_refused(
    wire: socket.socket,
) -> None:
    wire.sendall(b"\r\n" + head(3) + b"abc")
    assert answer(wire) == "parsed 3"
    wire.sendall(b"\r\n\r\n")
    assert wire.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 400"


def test_what_came_of_a_body_with_its_head_is_known(wire: socket.socket) -> None:
    for sent, rest in ((b"abc", b""), (b"", b"abc"), (b"a", b"bc")):
        wire.sendall(head(3, "X-Told: a") + sent)
        time.sleep(0.05)
        wire.sendall(rest)
        assert answer(wire) == "parsed 3"
    assert bodies[-3:] == [3, 0, 1]


def test_spaces_behind_a_value_are_none_of_it(wire: socket.socket) -> None:
    wire.sendall(head(3, "X-Told: a \t").replace(b": 3\r", b": 3 \r") + b"abc")
    assert answer(wire) == "parsed 3"
    assert told == [b"a"]


def test_no_100_continue_is_sent_to_http_1_0(wire: socket.socket) -> None:
    old = head(3, "Expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/1.0")
    wire.sendall(old)
    time.sleep(0.05)
    wire.sendall(b"abc")
    assert wire.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
