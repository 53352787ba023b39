"""Around every route: id, admission, body and log line; and silent connections."""

import asyncio
import re
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Auth
from .bodies import STEP, Answer, Body, BodyMemory, refusal_bytes
from .errors import ERRORS, ApiError, error_response
from .logging import Metrics, RequestState, log_fault, state_of
from .settings import ServeSettings

_SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


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


@dataclass(frozen=True)
class Admission:
    """Checks of a request by its head alone; the body of a refused one is left unread."""

    auth: Auth
    limiter: ConcurrencyLimiter
    memory: BodyMemory
    metrics: Metrics

    def refuse(self, scope: Scope, arrived: int) -> bytes | None:
        """Give the whole answer to a request that is refused; None where it may come in.

        For servers that can answer before they start the application (`ServiceProtocol.refuse`).
        `arrived`: bytes of the body that came with the head, at most.
        """
        state = self.begin(scope)
        if not state.code:
            # Many requests come in one turn of the loop: each keeps a place until its task starts,
            # and none that is still being sent.
            length = int(dict(scope["headers"]).get(b"content-length", b"-1"))
            is_whole = scope["method"] == "POST" and 0 <= length <= arrived
            state.has_place = is_whole and self.limiter.take()
            return None
        self.metrics.note_request(scope, ERRORS[state.code][0], 0.0)
        return refusal_bytes(state.code, state.request_id)

    def begin(self, scope: Scope) -> RequestState:
        """Give a request its state, with the code that it is refused with, if it is."""
        states = scope.setdefault("state", {})
        if "request" not in states:
            states["request"] = RequestState(_request_id(scope))
            states["request"].code = self._refusal(scope) or ""
        return state_of(scope)

    def _refusal(self, scope: Scope) -> str | None:
        code = self.auth.refusal(scope)
        if code is not None:
            return code
        named = dict(scope["headers"])
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            return "content_encoding"
        declared = named.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self.memory.most_bytes:
            return "body_too_large"
        return "overloaded" if scope["method"] == "POST" and self.limiter.is_full else None


class RequestMiddleware:
    """ASGI middleware that admits a request, or answers it at once, and logs it in either case."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, admission: Admission) -> None:
        self._app = app
        self._settings = settings
        self._admission = admission
        self._limiter, self._memory = admission.limiter, admission.memory
        self._metrics = admission.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self._admission.begin(scope)
        if state.has_place:  # it is taken again in this step where the whole body has come
            state.has_place = False
            self._limiter.leave()
        started, answer = time.monotonic(), Answer(scope, receive, send, self._memory)
        try:
            await self._admit(scope, receive, answer.send)
        except Exception as error:  # noqa: BLE001 (the last resort: the server lives on)
            state.code = "internal"
            log_fault("fault", error, request_id=state.request_id)
            if answer.status == 0:
                failed = error_response("internal", state.request_id)
                await failed(scope, receive, answer.send)
        finally:
            if answer.is_cut:
                state.code = "client_gone"
            self._metrics.note_request(scope, answer.status, time.monotonic() - started)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = state_of(scope)
        if state.code:
            await error_response(state.code, state.request_id)(scope, receive, send)
            return
        state.deadline = time.monotonic() + self._settings.deadline_s
        if scope["method"] != "POST" or not _is_routed(scope):  # the router says 404 or 405
            await self._app(scope, receive, send)
            return
        await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gather a body, which holds no place while it arrives, and answer it in a place."""
        state = state_of(scope)
        body, started = Body(self._memory, self._settings.body_deadline_s), time.monotonic()
        try:
            message = await body.gather(scope, receive)
            if message["type"] == "http.disconnect":  # its form would be called malformed
                raise ApiError("client_gone")
            self._metrics.note(state.timings, "receive", time.monotonic() - started)
            if body.size and not self._limiter.take():
                raise ApiError("overloaded")
        except ApiError as refusal:
            state.files = ()
            body.release()
            state.code = refusal.code
            await error_response(state.code, state.request_id)(scope, receive, send)
            return
        state.deadline = time.monotonic() + self._settings.deadline_s
        messages = iter([message])
        is_inside = True

        async def whole() -> Message:
            return next(messages, None) or await receive()

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                state.files = ()
                body.release()
                if body.size:
                    self._limiter.leave()

        async def answered(message: Message) -> None:
            leave()  # a slow reader keeps nobody out
            await send(message)

        try:
            await self._app(scope, whole, answered)
        finally:
            leave()


def _request_id(scope: Scope) -> str:
    """The client's id where it is one plain word, else a new one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    text: str = given[0].decode("latin-1") if len(given) == 1 else ""
    return text if _SAFE_ID.fullmatch(text) else uuid.uuid4().hex


def _is_routed(scope: Scope) -> bool:
    """Whether a route takes this path and method."""
    return any(route.matches(scope)[0] is Match.FULL for route in scope["app"].router.routes)


class Connection(Protocol):
    """The HTTP connection under a request, as far as it is known; `ServiceProtocol` is one."""

    is_waiting: bool
    """Whether nothing is asked: what is not yet sent is all that is left to do."""
    cycle: Any
    """The request that is being, or was last, answered; None before the first."""
    transport: asyncio.Transport
    """The socket."""


async def close_silent(connections: Collection[Connection], deadline_s: float) -> None:
    """Close connections on which nothing happens for too long, until cancelled.

    `deadline_s`: seconds that a client has, from connecting or from the answer before, to send the
    headers of a request, and for each `STEP` bytes of an answer that waits to be read.
    """
    silent: dict[Connection, tuple[Any, float]] = {}
    while True:
        await asyncio.sleep(deadline_s / 10)
        now = time.monotonic()
        marks = {item: _mark(item) for item in connections if item.is_waiting}
        silent = {
            item: silent[item] if item in silent and silent[item][0] == mark else (mark, now)
            for item, mark in marks.items()
        }
        for connection, (_, since) in silent.items():
            if now - since > deadline_s:
                connection.transport.abort()


def _mark(connection: Connection) -> tuple[Any, int]:
    """Give the request and what waits to be sent; an answer that leaves changes one of them."""
    return connection.cycle, -(-connection.transport.get_write_buffer_size() // STEP)
