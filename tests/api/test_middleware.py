"""The middleware, around a small app of their own."""

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.types import Message

from api.auth import Auth
from api.bodies import BodyMemory
from api.errors import ERRORS, add_handlers, error_response
from api.logging import Metrics
from api.middleware import ConcurrencyLimiter, RequestMiddleware
from api.settings import ServeSettings
from medclip_dcl.data.images import REASONS
from medclip_dcl.errors import ImageError

ROOM = 8 << 20
OPEN = Auth(None, frozenset())


def app_with(limiter: ConcurrencyLimiter | None = None, **settings: Any) -> FastAPI:
    metrics, served = Metrics(), ServeSettings(model="m", **settings)
    app = FastAPI()
    app.add_middleware(
        RequestMiddleware,
        settings=served,
        auth=OPEN,
        memory=BodyMemory(ROOM, served.max_body_mb << 20),
        limiter=limiter or ConcurrencyLimiter(1, metrics),
        metrics=metrics,
    )
    add_handlers(app)

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body())

    @app.post("/fault")
    async def fault() -> None:
        raise ZeroDivisionError("a secret")

    @app.post("/image")
    async def image() -> None:
        raise ImageError("deadline", "a secret")

    return app


def ask(app: FastAPI, pieces: list[bytes | float], path: str = "/count", **headers: str) -> Any:
    """Send a body piece by piece; a number is a pause in seconds. Status and JSON."""
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

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
        "http_version": "1.1",
        "scheme": "http",
        "client": None,
        "server": None,
        "root_path": "",
        "asgi": {"version": "3.0"},
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


MEBIBYTE = bytes(1 << 20)


def test_bodies_up_to_the_limit_pass() -> None:
    assert ask(app_with(max_body_mb=2), [MEBIBYTE, MEBIBYTE]) == (200, str(2 << 20).encode())


def test_an_undeclared_body_is_cut_off_where_it_passes_the_limit() -> None:
    status, body = ask(app_with(max_body_mb=2), [MEBIBYTE, MEBIBYTE, b"x"])
    assert (status, b"body_too_large" in body) == (413, True)


@pytest.mark.parametrize("length", [str((2 << 20) + 1), "1e9", "-1"])
def test_a_declared_body_beyond_the_limit_is_refused_unread(length: str) -> None:
    status, body = ask(app_with(max_body_mb=2), [3600.0], content_length=length)
    assert (status, b"body_too_large" in body) == (413, True)


def test_a_slow_body_is_given_up() -> None:
    status, body = ask(app_with(body_deadline_s=0.1), [b"a", 30.0, b"b"])
    assert (status, b"body_deadline" in body) == (408, True)


def test_without_a_place_nothing_is_read() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    assert limiter.take()
    status, body = ask(app_with(limiter), [3600.0])
    assert (status, b"overloaded" in body) == (503, True)
    limiter.leave()
    assert ask(app_with(limiter), [b"abc"]) == (200, b"3")


def test_places_are_given_back_after_faults() -> None:
    limiter = ConcurrencyLimiter(1, Metrics())
    app = app_with(limiter)
    for _ in range(3):
        status, body = ask(app, [b""], path="/fault")
        assert (status, b"internal" in body) == (500, True)
        assert b"secret" not in body
    assert limiter.take()


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
