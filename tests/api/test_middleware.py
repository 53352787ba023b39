"""The middleware, around a small app of their own."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message

from api import bodies
from api.auth import Auth
from api.batching import WorkerSlots
from api.bodies import STEP, BodyMemory
from api.errors import ERRORS, ApiError, add_handlers, error_response
from api.logging import Metrics, RequestState, state_of
from api.middleware import Admission, ConcurrencyLimiter, RequestMiddleware, close_silent
from api.settings import ServeSettings
from medclip_dcl.data.limits import REASONS
from medclip_dcl.errors import ImageError

ROOM = 8 << 20
OPEN = Auth(None, frozenset())


def app_with(
    limiter: ConcurrencyLimiter | None = None, metrics: Metrics | None = None, **settings: Any
) -> FastAPI:
    metrics, served = metrics or Metrics(), ServeSettings(model="m", **settings)
    app = FastAPI()
    memory = BodyMemory(ROOM, served.max_body_mb << 20)
    admission = Admission(OPEN, limiter or ConcurrencyLimiter(1, metrics), memory, metrics)
    app.add_middleware(RequestMiddleware, settings=served, admission=admission)
    add_handlers(app)

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body()) + sum(map(len, state_of(request.scope).files))

    @app.api_route("/left", methods=["GET", "POST"])
    async def left(request: Request) -> float:
        return state_of(request.scope).deadline - time.monotonic()

    @app.get("/framed")
    async def framed() -> Response:
        return Response(headers={"Cache-Control": "max-age=60"})

    @app.get("/cut")
    async def cut() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        return StreamingResponse(pieces())

    @app.post("/fault")
    async def fault() -> None:
        raise ZeroDivisionError("a secret")

    @app.post("/image")
    async def image() -> None:
        raise ImageError("deadline", "a secret")

    return app


Piece = bytes | float | Callable[[], object]


def ask(app: FastAPI, pieces: list[Piece], path: str = "/count", **headers: str) -> Any:
    """Send a body in pieces, with pauses in seconds and what happens meanwhile. Status and JSON."""
    sent = exchange(app, pieces, path, headers=list(headers.items()))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def exchange(
    app: FastAPI,
    pieces: list[Piece],
    path: str,
    method: str = "POST",
    headers: list[tuple[str, str]] = [],  # noqa: B006 (it is only read)
) -> list[Message]:
    headers = [("content-type", "multipart/form-data; boundary=x"), *headers]
    sent: list[Message] = []
    left = list(pieces)

    async def receive() -> Message:
        while left:
            piece = left.pop(0)
            if isinstance(piece, bytes):
                return {"type": "http.request", "body": piece, "more_body": bool(left)}
            if callable(piece):
                piece()
            else:
                await asyncio.sleep(piece)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers],
        "http_version": "1.1",
        "scheme": "http",
        "client": None,
        "server": None,
        "root_path": "",
        "asgi": {"version": "3.0"},
    }
    asyncio.run(app(scope, receive, send))
    return sent


MEBIBYTE = bytes(1 << 20)
HEAD = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
END = b"\r\n--x--\r\n"


def whole_form(size: int) -> bytes:
    """A form of so many bytes, most of them of an image."""
    return HEAD + bytes(size - len(HEAD + END)) + END


def test_an_undeclared_body_is_cut_off_where_it_passes_the_limit() -> None:
    status, body = ask(app_with(max_body_mb=2), [MEBIBYTE, MEBIBYTE, b"x"])
    assert (status, b"body_too_large" in body) == (413, True)


@pytest.mark.parametrize("length", [str((2 << 20) + 1), "1e9", "-1"])
def test_a_declared_body_beyond_the_limit_is_refused_unread(length: str) -> None:
    status, body = ask(app_with(max_body_mb=2), [3600.0], content_length=length)
    assert (status, b"body_too_large" in body) == (413, True)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", ""])
def test_a_large_body_that_is_no_form_with_a_file_is_refused_as_it_comes(kind: str) -> None:
    for body in ([MEBIBYTE, b"&", 3600.0], [bytes(2 << 20), 3600.0]):
        status, answer = ask(app_with(), body, content_type=kind)
        assert (status, b"malformed_body" in answer) == (400, True)
    status, answer = ask(app_with(), [HEAD.replace(b"filename", b"x") + MEBIBYTE + END])
    assert (status, b"malformed_body" in answer) == (400, True)


@pytest.mark.parametrize(
    ("path", "method"), [("/nowhere", "POST"), ("/framed", "POST"), ("/", "PUT")]
)
def test_no_body_is_read_that_no_route_takes(path: str, method: str) -> None:
    sent = exchange(app_with(), [3600.0], path, method)
    assert sent[0]["status"] in (404, 405)


def test_a_slow_body_is_given_up() -> None:
    status, body = ask(app_with(body_deadline_s=0.1), [b"a", 30.0, b"b"])
    assert (status, b"body_deadline" in body) == (408, True)


def test_a_large_body_that_stalls_is_given_up_long_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "STEP_S", 0.1)
    body, started = whole_form(1 << 20), time.monotonic()
    status, answer = ask(app_with(), [body[: 512 * 1024], 30.0, body[512 * 1024 :]])
    assert (status, b"body_deadline" in answer) == (408, True)
    pieces: list[Piece] = [body[at : at + 65536] for at in range(0, len(body), 65536)]
    slow = [item for piece in pieces for item in (piece, 0.02)][:-1]
    assert ask(app_with(), slow) == (200, str(1 << 20).encode())
    assert time.monotonic() - started < 5


def test_without_a_place_nothing_is_read() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    assert limiter.take()
    status, body = ask(app_with(limiter), [3600.0])
    assert (status, b"overloaded" in body) == (503, True)
    limiter.leave()
    assert ask(app_with(limiter), [b"abc"]) == (200, b"3")


def test_a_refusal_of_the_connection_is_the_one_of_the_application() -> None:
    limiter, metrics = ConcurrencyLimiter(2, Metrics()), Metrics()
    admission = Admission(OPEN, limiter, BodyMemory(ROOM, ROOM), metrics)
    headers = [(b"x-request-id", b"one"), (b"content-length", b"9")]
    scope = {"method": "POST", "headers": headers, "path": "/count"}
    # Six requests in one turn of the loop, and two places: of three the body is still to come.
    *others, last = (
        admission.refuse({**scope, "state": {}}, arrived) for arrived in (8, 9, 0, 8, 9, 9)
    )
    assert others == [None] * 5
    assert metrics.registry.get_sample_value("medclip_refusals_total", {"code": "overloaded"}) == 1
    head, _, body = (last or b"").partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    assert status == b"HTTP/1.1 503 Service Unavailable"
    start, sent = exchange(app_with(limiter), [], "/count", headers=[("x-request-id", "one")])
    assert [tuple(line.split(b": ", 1)) for line in lines] == start["headers"]
    assert (start["status"], sent["body"]) == (503, body)


def test_who_finds_no_place_left_when_the_body_has_arrived_gives_its_bytes_back() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    app = app_with(limiter)
    status, body = ask(
        app, [whole_form(6 << 20), limiter.take, b"a"]
    )  # of eight MiB for all bodies
    assert (status, b"overloaded" in body) == (503, True)
    assert limiter.is_full  # another's place is not given away
    limiter.leave()
    assert ask(app, [whole_form(6 << 20)]) == (200, str(6 << 20).encode())


def test_places_are_given_back_after_faults() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    app = app_with(limiter)
    for _ in range(3):
        status, body = ask(app, [b""], path="/fault")
        assert (status, b"internal" in body) == (500, True)
        assert b"secret" not in body
    assert limiter.take()


def test_a_fault_within_an_answer_begins_no_second_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    starts = [message for message in exchange(app_with(), [], "/cut", "GET") if "status" in message]
    assert [message["status"] for message in starts] == [200]
    assert [record.msg for record in caplog.records] == ["fault", "request"]
    assert vars(caplog.records[1])["facts"]["code"] == "internal"


def headers_of(sent: list[Message]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


@pytest.mark.parametrize(
    ("given", "is_kept"),
    [
        (["scan-7_b.C"], True),
        (["a" * 64], True),
        (["a" * 65], False),
        (["a b"], False),
        (["a\n"], False),
        ([""], False),
        ([], False),
        (["a", "b"], False),
    ],
)
def test_an_id_is_the_clients_where_it_is_one_plain_word(given: list[str], is_kept: bool) -> None:
    asked = [("x-request-id", value) for value in given]
    sent = exchange(app_with(), [b"abc"], "/count", headers=asked)
    (found,) = (value for name, value in headers_of(sent) if name == "x-request-id")
    if is_kept:
        assert found == given[0]
    else:
        assert found not in given
        assert int(found, 16).bit_length() <= 128  # a new UUID


def test_every_answer_has_the_headers_of_safety_once() -> None:
    for path, method, cached in (("/framed", "GET", "max-age=60"), ("/nowhere", "GET", "no-store")):
        found = headers_of(exchange(app_with(), [], path, method))
        named = dict(found)
        assert len(named) == len(found)
        assert named["cache-control"] == cached
        assert named["x-content-type-options"] == "nosniff"
        assert named["content-security-policy"].startswith("default-src 'none'")


def test_a_line_says_what_was_asked_and_how_it_went(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    app = app_with(metrics=metrics)
    exchange(app, [b"ab", 0.05, b"c"], "/count", headers=[("x-request-id", "one")])
    for coding in ("zstd", "gzip"):
        exchange(app, [b"abc"], "/count", headers=[("content-encoding", coding)])
    exchange(app, [], "/secret", "SECRET")
    counted, refused, also, unknown = (vars(record)["facts"] for record in caplog.records)
    milliseconds = counted.pop("ms")
    assert 50 <= counted.pop("timings")["receive"] <= milliseconds < 5000
    assert counted == {"request_id": "one", "method": "POST", "route": "/count", "status": 200}
    for facts in (refused, also):
        assert (facts["status"], facts["code"]) == (415, "content_encoding")
    assert (unknown["method"], unknown["route"], unknown["status"]) == ("other", "unmatched", 404)
    assert "secret" not in str(unknown).lower()
    value = metrics.registry.get_sample_value
    assert value("medclip_requests_total", {"route": "/count", "status": "200"}) == 1
    assert value("medclip_refusals_total", {"code": "content_encoding"}) == 2
    assert value("medclip_request_seconds_count", {"route": "/count"}) == 1
    seconds = value("medclip_request_seconds_sum", {"route": "/count"})
    assert seconds == pytest.approx(milliseconds / 1000, abs=1e-4)


def test_the_deadline_is_counted_from_the_last_byte() -> None:
    app = app_with(deadline_s=5)
    for method, pieces in (("GET", []), ("POST", [b"a", 0.5, b"b"])):
        left_s = float(exchange(app, pieces, "/left", method)[1]["body"])
        assert 4.55 < left_s <= 5


def test_questions_without_a_body_are_answered_when_all_places_are_taken() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    app = app_with(limiter)
    assert not limiter.is_full
    assert limiter.take()
    assert limiter.is_full
    assert exchange(app, [], "/framed", "GET")[0]["status"] == 200
    limiter.leave()
    assert ask(app, [b""], content_encoding="Identity") == (200, b"0")
    assert ask(app, [b"abc"], content_length="3") == (200, b"3")
    assert not limiter.is_full


def test_who_leaves_while_sending_leaves_nothing_behind_and_is_no_fault() -> None:
    limiter, metrics = ConcurrencyLimiter(1, Metrics()), Metrics()
    app = app_with(limiter, metrics)
    status, body = ask(app, [bytes(6 << 20), 0.01])  # of eight MiB for all bodies
    assert (status, b"client_gone" in body) == (499, True)
    assert metrics.registry.get_sample_value("medclip_refusals_total", {"code": "client_gone"}) == 1
    assert ask(app, [whole_form(6 << 20)]) == (200, str(6 << 20).encode())
    assert not limiter.is_full


@pytest.mark.parametrize("declared", [{}, {"content_length": str(2 << 20)}])
def test_bodies_up_to_the_limit_pass(declared: dict[str, str]) -> None:
    body = whole_form(2 << 20)
    found = ask(app_with(max_body_mb=2), [body[:9], body[9:]], **declared)
    assert found == (200, str(2 << 20).encode())


def test_what_is_no_request_goes_by() -> None:
    passed = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        passed.append(scope)

    admission = Admission(OPEN, ConcurrencyLimiter(0, Metrics()), BodyMemory(0, 0), Metrics())
    middleware: Any = RequestMiddleware(app, ServeSettings(model="m"), admission)
    for kind in ("lifespan", "websocket", "a"):
        asyncio.run(middleware({"type": kind}, None, None))
    assert passed == [{"type": "lifespan"}, {"type": "websocket"}, {"type": "a"}]


def test_an_image_that_took_too_long_is_no_busy_model() -> None:
    status, body = ask(app_with(), [b""], path="/image")
    assert (status, REASONS["deadline"].encode() in body) == (422, True)
    assert b"secret" not in body


def test_failures_that_pass_say_when_to_try_again() -> None:
    for code in ("overloaded", "deadline", "out_of_memory", "loading"):
        answer = error_response(code, "id")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
    assert all(400 <= status < 600 and line for status, line in ERRORS.values())


class Caller:
    """What `WorkerSlots` needs to know of a request."""

    def __init__(self, left_s: float = 30.0, gone: bool = False) -> None:
        state = RequestState("id", deadline=time.monotonic() + left_s)
        self.scope = {"state": {"request": state}}
        self.left = asyncio.Event()
        if gone:
            self.left.set()

    async def is_disconnected(self) -> bool:
        return self.left.is_set()

    async def receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def test_one_piece_of_work_at_a_time_in_the_order_of_asking() -> None:
    seen: list[int] = []
    inside = threading.Semaphore(1)

    def work(number: int) -> int:
        assert inside.acquire(blocking=False)
        time.sleep(0.01)
        seen.append(number)
        inside.release()
        return number

    async def ask() -> list[int]:
        turns = WorkerSlots("model", 1, Metrics())
        asked = [turns.run(Caller(), lambda number=number: work(number)) for number in range(5)]
        return await asyncio.gather(*asked)

    assert asyncio.run(ask()) == [0, 1, 2, 3, 4]
    assert seen == [0, 1, 2, 3, 4]


def test_work_whose_deadline_passed_or_whose_caller_left_never_begins() -> None:
    begun: list[str] = []
    go = threading.Event()

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        long = asyncio.create_task(turns.run(Caller(), lambda: go.wait(10)))
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError) as late:
            await turns.run(Caller(left_s=0.05), lambda: begun.append("late"))
        assert late.value.code == "deadline"
        with pytest.raises(ApiError) as gone:
            await turns.run(Caller(gone=True), lambda: begun.append("gone"))
        assert gone.value.code == "client_gone"
        leaving = Caller()
        left = asyncio.create_task(turns.run(leaving, lambda: begun.append("left")))
        after = asyncio.create_task(turns.run(Caller(), lambda: begun.append("after")))
        await asyncio.sleep(0.02)
        leaving.left.set()
        with pytest.raises(ApiError):
            await asyncio.wait_for(left, 5)
        assert begun == []  # who left has made no place
        go.set()
        await asyncio.gather(long, after)
        assert begun.pop() == "after"
        assert await turns.run(Caller(), lambda: "next") == "next"
        # Of who has left, a loop knows once it has looked at its sockets and then at their readers.
        loop, unseen = asyncio.get_running_loop(), Caller()
        loop.call_soon(loop.call_soon, unseen.left.set)
        with pytest.raises(ApiError, match="client_gone"):
            await turns.run(unseen, lambda: begun.append("gone"))

    asyncio.run(ask())
    assert begun == []


def test_a_device_without_memory_refuses_and_goes_on() -> None:
    def exhaust() -> None:
        raise MemoryError

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        with pytest.raises(ApiError) as refusal:
            await turns.run(Caller(), exhaust)
        assert (refusal.value.code, refusal.value.status_code) == ("out_of_memory", 503)
        assert await turns.run(Caller(), lambda: 1) == 1

    asyncio.run(ask())


def test_closing_drops_what_has_not_begun_and_waits_for_nothing() -> None:
    go, begun = threading.Event(), []

    async def ask() -> None:
        turns = WorkerSlots("model", 1, Metrics())
        task = asyncio.create_task(turns.run(Caller(), lambda: begun.append(go.wait(5))))
        await asyncio.sleep(0.02)
        turns.close()
        assert begun == []
        go.set()
        await task
        assert begun == [True]

    asyncio.run(ask())


def test_places_are_as_many_as_were_made() -> None:
    metrics = Metrics()
    limiter = ConcurrencyLimiter(2, metrics)
    assert [limiter.take(), limiter.take(), limiter.take()] == [True, True, False]
    assert metrics.registry.get_sample_value("medclip_inside") == 2
    limiter.leave()
    assert metrics.registry.get_sample_value("medclip_inside") == 1
    assert [limiter.take(), limiter.take()] == [True, False]


def test_all_threads_run_from_the_beginning() -> None:
    def named() -> int:
        return sum(thread.name.startswith("early") for thread in threading.enumerate())

    slots = WorkerSlots("early", 3, Metrics())
    try:
        assert named() == 3
    finally:
        slots.close()


def test_waiting_and_work_are_timed_apart() -> None:
    async def ask() -> None:
        turns, first, second = WorkerSlots("decode", 1, Metrics()), Caller(), Caller()
        started = time.monotonic()
        await asyncio.gather(
            *(turns.run(caller, lambda: time.sleep(0.05)) for caller in (first, second))
        )
        assert 0.1 <= turns.used_at - started < 5
        first_ms, second_ms = (state_of(caller.scope).timings for caller in (first, second))
        assert 0 <= first_ms["decode_wait"] < second_ms["decode_wait"] < 5000
        assert 50 <= first_ms["decode"] < 5000
        assert 50 <= second_ms["decode"] < 5000

    asyncio.run(ask())


class Wire:
    """What was written to a connection's socket."""

    def __init__(self) -> None:
        self.is_closed = False
        self.unread = 0

    def abort(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return self.unread


class Connection:
    def __init__(self, *, is_waiting: bool, unread: int = 0) -> None:
        self.transport = Wire()
        self.transport.unread = unread
        self.cycle: object = None
        self.is_waiting = is_waiting


def test_connections_on_which_nothing_happens_are_closed_and_others_are_not() -> None:
    silent, busy, lively = (Connection(is_waiting=waits) for waits in (True, False, True))
    stuck, reading = (Connection(is_waiting=True, unread=10 * STEP) for _ in range(2))

    async def watch() -> None:
        every = {silent, busy, lively, stuck, reading}
        task = asyncio.ensure_future(close_silent(every, 0.2))
        for _ in range(5):
            await asyncio.sleep(0.1)
            lively.cycle = object()  # another request has come and been answered
            reading.transport.unread -= STEP
            stuck.transport.unread -= 1
        task.cancel()

    asyncio.run(watch())
    closed = [item.transport.is_closed for item in (silent, busy, lively, stuck, reading)]
    assert closed == [True, False, False, True, False]
