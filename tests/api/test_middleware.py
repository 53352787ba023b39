"""The middleware, around a small app of their own."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from urllib.parse import unquote

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Message

from api import middleware
from api.auth import Auth
from api.errors import add_handlers, error_response
from api.logging import Metrics, state_of
from api.middleware import PIECE, RequestMiddleware
from api.settings import ServeSettings
from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.limits import REASONS

OPEN = Auth(None, frozenset())


def app_with(auth: Auth = OPEN, metrics: Metrics | None = None, **settings: Any) -> FastAPI:
    served = ServeSettings(model="m", **{"queue": 1, "max_bodies_mb": 8} | settings)
    app = FastAPI()
    app.add_middleware(RequestMiddleware, settings=served, auth=auth, metrics=metrics or Metrics())
    add_handlers(app)

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body())

    @app.api_route("/left", methods=["GET", "POST"])
    async def left(request: Request) -> float:
        return state_of(request.scope).deadline - time.monotonic()

    @app.get("/cut")
    async def cut() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            raise ZeroDivisionError

        return StreamingResponse(pieces())

    @app.post("/wait")
    async def wait(request: Request) -> int:
        await request.body()
        await asyncio.sleep(0.2)
        return 0

    @app.get("/bytes/{size}")
    async def some(size: int) -> Response:
        return Response(bytes(size))

    @app.post("/form")
    async def form(request: Request) -> int:
        async with request.form() as form:
            return len(form)

    @app.post("/fault")
    async def fault() -> None:
        raise ZeroDivisionError("a secret")

    @app.post("/image")
    async def image() -> None:
        raise ImageError("deadline", "a secret")

    return app


SIZE = 4 * PIECE + 1
LARGE = f"/bytes/{SIZE}"
Piece = bytes | float


def exchange(*args: Any, **kwargs: Any) -> list[Message]:
    return asyncio.run(converse(*args, **kwargs))


async def converse(
    app: FastAPI,
    pieces: list[Piece],
    path: str,
    method: str = "POST",
    headers: list[tuple[str, str]] = [],  # noqa: B006 (it is only read)
    read_s: float = 0.0,
) -> list[Message]:
    headers = [("content-type", "multipart/form-data; boundary=x"), *headers]
    sent: list[Message] = []
    left = list(pieces)

    async def receive() -> Message:
        while left:
            piece = left.pop(0)
            if isinstance(piece, bytes):
                return {"type": "http.request", "body": piece, "more_body": bool(left)}
            await asyncio.sleep(piece)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.sleep(read_s)

    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path.partition("?")[0]),  # decoded once, as by the server
        "raw_path": path.encode(),
        "query_string": path.partition("?")[2].encode(),
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers],
        "http_version": "1.1",
        "scheme": "http",
        "client": None,
        "server": None,
        "root_path": "",
        "asgi": {"version": "3.0"},
    }
    await app(scope, receive, send)
    return sent


def together(*asked: Coroutine[Any, Any, list[Message]]) -> list[tuple[int, bytes]]:
    """Converse with one app as several clients at once: status and body of each."""

    async def all_of_them() -> list[list[Message]]:
        return await asyncio.gather(*asked)

    return [
        (sent[0]["status"], b"".join(message.get("body", b"") for message in sent))
        for sent in asyncio.run(all_of_them())
    ]


def ask(app: FastAPI, pieces: list[Piece], path: str = "/count", **headers: str) -> Any:
    """Send a body in pieces, with pauses in seconds: status and body of the answer."""
    return together(converse(app, pieces, path, headers=list(headers.items())))[0]


def headers_of(sent: list[Message]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]


MEBIBYTE = bytes(1 << 20)
CHUNKED = {"transfer_encoding": "chunked"}


@pytest.mark.parametrize(
    ("pieces", "headers", "settings", "status", "code"),
    [
        ([MEBIBYTE, MEBIBYTE], {}, {"max_body_mb": 2}, 200, "2097152"),
        ([MEBIBYTE, MEBIBYTE], {"content_length": "2097152"}, {"max_body_mb": 2}, 200, "2097152"),
        ([b""], {"content_encoding": "Identity"}, {}, 200, "0"),
        ([MEBIBYTE, MEBIBYTE, b"x"], {}, {"max_body_mb": 2}, 413, "body_too_large"),
        ([3600.0], {"content_length": "2097153"}, {"max_body_mb": 2}, 413, "body_too_large"),
        ([3600.0], {"content_length": "1e9"}, {}, 413, "body_too_large"),
        ([3600.0], {"content_length": "-1"}, {}, 413, "body_too_large"),
        ([3600.0], {"content_length": "3"} | CHUNKED, {}, 400, "malformed_body"),
        ([3600.0], {"content_encoding": "gzip"}, {}, 415, "content_encoding"),
        ([b"a", 30.0, b"b"], {}, {"body_deadline_s": 0.1}, 408, "body_deadline"),
        ([MEBIBYTE, b"&", 3600.0], {"content_type": "text/plain"}, {}, 400, "malformed_body"),
        ([MEBIBYTE, b"&", 3600.0], {"content_type": ""}, {}, 400, "malformed_body"),
        ([9 * MEBIBYTE, 3600.0], {}, {"max_body_mb": 10}, 503, "overloaded"),
        ([bytes(6 << 20), 0.01], {}, {}, 499, "client_gone"),
    ],
)  # fmt: skip
def test_a_body_up_to_the_limits_passes_and_another_is_refused_as_soon_as_it_breaks_one(
    pieces: list[Piece], headers: dict[str, str], settings: dict[str, float], status: int, code: str
) -> None:
    app = app_with(**settings)
    answer = ask(app, pieces, **headers)
    assert (answer[0], code.encode() in answer[1]) == (status, True)
    assert ask(app, [bytes(2 << 20)]) == (200, str(2 << 20).encode())  # nothing is left behind


@pytest.mark.parametrize(
    ("path", "method"), [("/nowhere", "POST"), ("/bytes/1", "POST"), ("/", "PUT")]
)
def test_no_body_is_read_that_no_route_takes(path: str, method: str) -> None:
    sent = exchange(app_with(), [3600.0], path, method)
    assert sent[0]["status"] in (404, 405)


def test_who_has_no_key_is_refused_unread_and_not_heard_further() -> None:
    stranger = app_with(Auth(None, frozenset({"here"})))
    for length, closes in (("0", True), ("16384", True), ("16385", False)):
        pieces: list[Piece] = [3600.0] if int(length) else []
        sent = exchange(stranger, pieces, "/count", headers=[("content-length", length)])
        assert sent[0]["status"] == 421
        assert (("connection", "close") in headers_of(sent)) is closes
    sent = exchange(stranger, [3600.0], "/count", headers=[("transfer-encoding", "chunked")])
    assert ("connection", "close") not in headers_of(sent)


def test_a_form_that_takes_the_parser_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    honest = [head, *64 * [bytes(64 << 10)], b"\r\n--x--\r\n"]
    assert ask(app_with(), honest, "/form") == (200, b"1")
    monkeypatch.setattr(middleware, "_MOST_PARSING_S", 0.05)
    almost = [head, *16 * [b"\r\n--xQ" * 10_000], b"\r\n--x--\r\n"]
    status, answer = ask(app_with(), almost, "/form")
    assert (status, b"malformed_body" in answer) == (400, True)


def test_a_question_has_a_place_from_its_last_byte_on_and_others_are_refused() -> None:
    app = app_with(queue=1)
    answers = together(
        converse(app, [b"a", 0.4, b"b"], "/wait"),  # sends while the third is inside
        converse(app, [b"a", 0.1, b"b"], "/count"),  # whole while the third is inside
        converse(app, [b"ab"], "/wait"),
        converse(app, [0.1, b"ab"], "/count"),  # its head comes while the third is inside
        converse(app, [], "/bytes/1", "GET"),
    )
    assert [status for status, _ in answers] == [200, 503, 200, 503, 200]
    assert b"overloaded" in answers[1][1]
    assert b"overloaded" in answers[3][1]
    assert ask(app, [b"abc"]) == (200, b"3")

    async def late() -> list[Message]:
        await asyncio.sleep(0.1)
        return await converse(app, [3600.0], "/count")  # full: nothing is read

    assert [status for status, _ in together(converse(app, [b"ab"], "/wait"), late())] == [200, 503]


def test_who_stalls_or_reads_too_slowly_makes_room_for_others(monkeypatch) -> None:
    monkeypatch.setattr(middleware, "_SAFE_S", 0.05)
    app, most = app_with(queue=2), bytes(6 << 20)
    stalled = converse(app, [most, 5.0, b"x"], "/count")
    answers = together(stalled, converse(app, [0.2, most], "/count"))
    assert [status for status, _ in answers] == [503, 200]
    app, large = app_with(max_bodies_mb=1), bytes(900 << 10)
    slow = converse(app, [], LARGE, "GET", read_s=5.0)
    answers = together(slow, converse(app, [0.3, large], "/count"))
    assert [len(answers[0][1]), answers[1][0]] == [PIECE, 200]


def test_an_answer_leaves_in_pieces_and_takes_room_until_it_is_read() -> None:
    sent = exchange(app_with(), [], LARGE, "GET")
    assert [len(message["body"]) for message in sent[1:]] == [PIECE] * 4 + [1]
    assert [message["more_body"] for message in sent[1:]] == [True] * 4 + [False]
    (refused,) = together(converse(app_with(max_bodies_mb=1), [], f"/bytes/{2 << 20}", "GET"))
    assert (refused[0], b"overloaded" in refused[1]) == (503, True)


def test_a_reader_that_stops_is_cut_and_one_that_goes_on_is_not(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(middleware, "PIECE_S", 0.3)
    app = app_with()
    answers = together(*(converse(app, [], LARGE, "GET", read_s=pause) for pause in (0.1, 2.0)))
    assert [len(body) for _, body in answers] == [SIZE, PIECE]
    codes = [vars(record)["facts"].get("code") for record in caplog.records]
    assert sorted(codes, key=str) == [None, "client_gone"]


def test_places_are_given_back_after_faults_and_an_image_that_took_too_long_is_no_busy_model():
    app = app_with()
    for path, code, words in (("/fault", 500, "internal"), ("/image", 422, REASONS["deadline"])):
        for _ in range(3):
            status, body = ask(app, [b"a"], path=path)
            assert (status, words in body.decode()) == (code, True)
            assert b"secret" not in body
    assert ask(app, [b"abc"]) == (200, b"3")


def test_a_fault_within_an_answer_begins_no_second_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    starts = [message for message in exchange(app_with(), [], "/cut", "GET") if "status" in message]
    assert [message["status"] for message in starts] == [200]
    assert [record.msg for record in caplog.records] == ["fault", "request"]
    assert vars(caplog.records[1])["facts"]["code"] == "internal"


def test_an_id_is_the_clients_where_it_is_one_plain_word() -> None:
    def id_of(*given: str) -> str:
        asked = [("x-request-id", value) for value in given]
        sent = exchange(app_with(), [b"abc"], "/count", headers=asked)
        (number,) = (value for name, value in headers_of(sent) if name == "x-request-id")
        return number

    for word in ("scan-7_b.C", "a" * 64):
        assert id_of(word) == word
    for given in (["a" * 65], ["a b"], ["a\n"], [""], [], ["a", "b"]):
        assert id_of(*given) not in given
        assert int(id_of(*given), 16).bit_length() <= 128  # a new UUID


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


def test_failures_that_pass_say_when_to_try_again() -> None:
    for code in ("overloaded", "deadline", "out_of_memory", "loading"):
        answer = error_response(code, "id")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
