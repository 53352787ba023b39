"""Around every route: id, admission, body, headers and log line; and silent connections."""

import asyncio
import re
import time
import uuid
from collections.abc import Collection
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Auth
from .bodies import Body, BodyMemory
from .errors import ApiError, error_response
from .logging import Metrics, RequestState, log, log_fault, state_of
from .settings import ServeSettings

_SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What a log line may call a method: a client can make up others.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"))
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}
_ENCODED = tuple((name.lower().encode(), value.encode()) for name, value in _HEADERS.items())


class ConcurrencyLimiter:
    """Places for questions that have arrived whole; `count`: questions that are inside at once.

    A slow sender holds no place, only the bytes that it has sent.
    """

    def __init__(self, count: int, metrics: Metrics) -> None:
        self._free = count
        self._metrics = metrics

    @property
    def is_full(self) -> bool:
        """Whether no place is free."""
        return self._free == 0

    def take(self) -> bool:
        """Take a place; whether there was one."""
        if self._free == 0:
            return False
        self._free -= 1
        self._metrics.inside.inc()
        return True

    def leave(self) -> None:
        """Give a place back."""
        self._free += 1
        self._metrics.inside.dec()


class RequestMiddleware:
    """ASGI middleware that admits a request, or answers it at once, and logs it in either case."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        auth: Auth,
        limiter: ConcurrencyLimiter,
        memory: BodyMemory,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._settings = settings
        self._auth = auth
        self._limiter = limiter
        self._memory = memory
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = RequestState(_request_id(scope))
        scope.setdefault("state", {})["request"] = state
        started, status = time.monotonic(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                missing = _missing_headers(message, state.request_id)
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        try:
            await self._admit(scope, receive, framed)
        except Exception as error:  # noqa: BLE001 (the last resort: the server lives on)
            state.code = "internal"
            log_fault("fault", error, request_id=state.request_id)
            if status == 0:
                await error_response("internal", state.request_id)(scope, receive, framed)
        finally:
            self._note(scope, status, time.monotonic() - started)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = state_of(scope)
        code = self._refusal(scope)
        if code is not None:
            state.code = code
            await error_response(code, state.request_id)(scope, receive, send)
            return
        state.deadline = time.monotonic() + self._settings.deadline_s
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        await self._with_body(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        """What the head of a request alone is refused for; its body is left unread."""
        code = self._auth.refusal(scope)
        if code is not None:
            return code
        named = dict(scope["headers"])
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            return "content_encoding"
        declared = named.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._memory.most_bytes:
            return "body_too_large"
        return "overloaded" if scope["method"] == "POST" and self._limiter.is_full else None

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gather a body, which holds no place while it arrives, and answer it in a place."""
        state = state_of(scope)
        body, started = Body(self._memory), time.monotonic()
        try:
            async with asyncio.timeout(self._settings.body_deadline_s):
                message = await body.gather(scope, receive)
            if message["type"] == "http.disconnect":  # its form would be called malformed
                raise ApiError("client_gone")
            self._metrics.note(state.timings, "receive", time.monotonic() - started)
            if body.size and not self._limiter.take():
                raise ApiError("overloaded")
        except (ApiError, TimeoutError) as refusal:
            state.image = None
            body.release()
            state.code = refusal.code if isinstance(refusal, ApiError) else "body_deadline"
            await error_response(state.code, state.request_id)(scope, receive, send)
            return
        state.deadline = time.monotonic() + self._settings.deadline_s
        messages = iter([message])

        async def whole() -> Message:
            return next(messages, None) or await receive()

        try:
            await self._app(scope, whole, send)
        finally:
            state.image = None
            body.release()
            if body.size:
                self._limiter.leave()

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        state = state_of(scope)
        if state.code:
            self._metrics.refusals.labels(state.code).inc()
        facts: dict[str, Any] = {"key": state.key_id, "code": state.code, "timings": state.timings}
        log(
            "request",
            request_id=state.request_id,
            method=scope["method"] if scope["method"] in _METHODS else "other",
            route=route,
            status=status,
            ms=round(1000 * seconds, 1),
            **{name: fact for name, fact in facts.items() if fact},
        )


def _request_id(scope: Scope) -> str:
    """The client's id where it is one plain word, else a new one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    text: str = given[0].decode("latin-1") if len(given) == 1 else ""
    return text if _SAFE_ID.fullmatch(text) else uuid.uuid4().hex


def _missing_headers(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in message["headers"]}
    ours = ((b"x-request-id", request_id.encode()), *_ENCODED)
    return [(name, value) for name, value in ours if name not in present]


class Connection(Protocol):
    """What is known of an HTTP connection; uvicorn's protocols are."""

    cycle: Any
    """The request that is being, or was last, answered; None before the first."""
    transport: asyncio.Transport
    """The socket."""


async def close_silent(connections: Collection[Connection], deadline_s: float) -> None:
    """Close connections on which no request has begun for too long, until cancelled.

    `deadline_s`: seconds that a client has, from connecting or from the answer before, to send the
    headers of a request.
    """
    silent: dict[Connection, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(deadline_s / 10)
        now = time.monotonic()
        waiting = [item for item in connections if _is_waiting(item)]
        silent = {
            item: silent[item]
            if item in silent and silent[item][0] is item.cycle
            else (item.cycle, now)
            for item in waiting
        }
        for connection, (_, since) in silent.items():
            if now - since > deadline_s:
                connection.transport.abort()


def _is_waiting(connection: Connection) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
