"""Around every route: id, admission by the head alone, sizes, deadlines, headers and a log line."""

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .auth import Auth
from .errors import ApiError, error_response
from .logging import Metrics, RequestState, log_fault
from .settings import MAX_FORM_KB, MEBIBYTE, ServeSettings

_SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
    (b"content-security-policy", _POLICY.encode()),
    (b"cache-control", b"no-store"),
)
_STRANGERS = {"unauthorized", "loopback_only", "host_refused"}
_READ_ANYWAY = 16 * 1024  # bytes of a refused body; the connection of a stranger ends after less
_READ_ANYWAY_S = 0.5
_SAFE_S = 0.5  # who has moved bytes within so many seconds keeps its room
_MOST_PARSING_S = 2.0  # for a form; an honest one of 64 MiB takes a tenth

PIECE = 64 * 1024
"""Bytes of an answer that its reader has to take in `PIECE_S`."""
PIECE_S = 10.0
"""Seconds."""

_Result = TypeVar("_Result")


class RequestMiddleware:
    """ASGI middleware that admits a request, or answers it at once, and logs it in either case.

    Attributes:
        free: bytes of `max_bodies_mb` that no body or answer under way takes.
        inside: questions that have arrived whole; a slow sender is not one of them.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, auth: Auth, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.free, self.inside = settings.max_bodies_mb * MEBIBYTE, 0
        self.moving: set[_Exchange] = set()
        self._app, self._auth = app, auth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})["request"] = RequestState(_request_id(scope))
        exchange = _Exchange(self, state, receive, send, scope)
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            state.code = self._refusal(scope, exchange.headers)
            app = error_response(state.code, state.request_id) if state.code else self._app
            if state.code in _STRANGERS:
                await exchange.read_anyway()
            await app(inner, exchange.receive, exchange.send)
        except Exception as error:  # noqa: BLE001 (the last resort: the server lives on)
            state.code = "internal"
            log_fault("fault", error, request_id=state.request_id)
            if exchange.status == 0:
                await error_response("internal", state.request_id)(inner, receive, exchange.send)
        finally:
            exchange.leave()
            scope["route"], seconds = inner.get("route"), time.monotonic() - exchange.started
            by_stranger = state.code in _STRANGERS or (self._auth.keys and not state.key_id)
            self.metrics.note_request(
                scope, exchange.status, seconds, by_stranger=bool(by_stranger)
            )

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        """Return the code by which a head alone is refused; the body is left unread."""
        declared = headers.get(b"content-length", b"0")
        most, is_full = self.settings.max_body_mb * MEBIBYTE, self.inside >= self.settings.queue
        if code := self._auth.refusal(scope):
            return code
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            return "content_encoding"
        if b"content-length" in headers and b"transfer-encoding" in headers:
            return "malformed_body"  # a proxy may find its end elsewhere (RFC 9112, 6.1)
        if not declared.isdigit() or int(declared) > most:
            return "body_too_large"
        return "overloaded" if scope["method"] == "POST" and is_full else ""


class _Exchange:
    """One request, counted as its body arrives and as its answer leaves."""

    def __init__(
        self,
        around: RequestMiddleware,
        state: RequestState,
        receive: Receive,
        send: Send,
        scope: Scope,
    ) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self._is_openai = scope["path"].endswith("/embeddings")  # whose JSON has images in it
        self.headers, self.status, self.started = headers, 0, time.monotonic()
        self.held, self.moved_at = 0, self.started
        self._around, self._state, self._receive, self._send = around, state, receive, send
        self._limit: asyncio.Timeout | None = None
        self._size, self._parsing_s, self._given_at = 0, 0.0, time.monotonic()
        self._is_whole = self._is_cut = self._has_place = False
        self._start: Message | None = None
        state.deadline = self.started + around.settings.deadline_s

    async def receive(self) -> Message:
        """Return the next piece of the body; ApiError: it is too large, too slow or hostile."""
        if self._is_whole:
            return await self._receive()
        self._around.moving.add(self)
        # From a piece to the next the parser of the form has the event loop to itself.
        self._parsing_s += time.monotonic() - self._given_at if self._size else 0.0
        left_s = self.started + self._around.settings.body_deadline_s - time.monotonic()
        try:
            message = await self._move(self._receive(), left_s)
        except TimeoutError as error:
            raise ApiError("overloaded" if self._is_cut else "body_deadline") from error
        if message["type"] != "http.request":
            raise ApiError("client_gone")
        self._count(len(message.get("body", b"")))
        if not message.get("more_body", False):
            self._let_in()
        self._given_at = time.monotonic()
        return message

    async def read_anyway(self) -> None:
        """Read a small body that is refused: closing over unread bytes resets the connection."""
        if not self._ends_connection() or b"expect" in self.headers:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_ANYWAY_S):
                while (await self._receive()).get("more_body", False):
                    pass

    def _ends_connection(self) -> bool:
        declared = self.headers.get(b"content-length", b"0")
        is_short = b"transfer-encoding" not in self.headers and declared.isdigit()
        return self._state.code in _STRANGERS and is_short and int(declared) <= _READ_ANYWAY

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._around.settings.max_body_mb * MEBIBYTE:
            raise ApiError("body_too_large")
        kind = self.headers.get(b"content-type", b"").lower()
        holds_files = kind.startswith(b"multipart/form-data") or self._is_openai
        if self._parsing_s > _MOST_PARSING_S or (
            self._size > MAX_FORM_KB * 1024 and not holds_files
        ):
            raise ApiError("malformed_body")
        self._hold(size)

    def _let_in(self) -> None:
        """Let the question in, whose last byte has come: it has a place and a deadline now."""
        around, now = self._around, time.monotonic()
        self._is_whole = True
        around.moving.discard(self)
        around.metrics.note(self._state.timings, "receive", now - self.started)
        self._state.deadline = now + around.settings.deadline_s
        if self._size and around.inside >= around.settings.queue:
            raise ApiError("overloaded")
        self._has_place = self._size > 0
        around.inside += self._has_place
        around.metrics.inside.set(around.inside)

    def leave(self) -> None:
        """Free its room and its place."""
        self._around.moving.discard(self)
        self._around.free += self.held
        self._around.inside -= self._has_place
        self._around.metrics.inside.set(self._around.inside)
        self.held, self._has_place = 0, False

    async def send(self, message: Message) -> None:
        """Pass a message of the application on, a body in pieces."""
        if self._is_cut and self.status:
            return
        self.leave()  # a slow reader keeps nobody out
        if message["type"] == "http.response.start":
            self._start = message  # until there is room for what follows
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        self._is_cut, self.moved_at = False, time.monotonic()
        self._around.moving.add(self)
        try:
            self._hold(len(body) if len(body) > PIECE else 0)
            await self._begin()
            # The server takes a piece once the one before has almost left. So what a slow reader
            # leaves is counted here, and not in the buffer of its connection.
            for at in range(0, max(len(body), 1), PIECE):
                piece = {"body": body[at : at + PIECE], "more_body": more or at + PIECE < len(body)}
                await self._move(self._send({"type": "http.response.body", **piece}), PIECE_S)
        except (ApiError, TimeoutError):
            await self._stop()
        finally:
            self.leave()

    async def _begin(self) -> None:
        if self._start is None:
            return
        start, self._start = self._start, None
        self.status = start["status"]
        ours = [(b"x-request-id", self._state.request_id.encode()), *_HEADERS]
        if self._ends_connection():
            ours.append((b"connection", b"close"))  # nor are requests behind it read
        present = {name.lower() for name, _ in start["headers"]}
        missing = [(name, value) for name, value in ours if name not in present]
        await self._send({**start, "headers": [*start["headers"], *missing]})

    async def _stop(self) -> None:
        """Refuse an answer that finds no room; leave one that has begun, which ends it."""
        self._is_cut = self.status > 0
        self._state.code = "client_gone" if self._is_cut else "overloaded"
        if not self._is_cut:
            refusal = error_response("overloaded", self._state.request_id)
            await refusal({"type": "http"}, self._receive, self.send)

    async def _move(self, moved: Awaitable[_Result], seconds: float) -> _Result:
        """Await the next bytes; TimeoutError after so long, or where others need the room."""
        try:
            async with asyncio.timeout(seconds) as self._limit:
                result = await moved
        finally:
            self._limit, self.moved_at = None, time.monotonic()
        if self._is_cut:
            raise TimeoutError
        return result

    def _hold(self, size: int) -> None:
        """Take room, where it is full that of the slowest others; ApiError where there is none."""
        while size > self._around.free:
            late = time.monotonic() - _SAFE_S
            others = self._around.moving - {self}
            slow = [item for item in others if item.held and item.moved_at < late]
            if not slow:
                raise ApiError("overloaded")
            min(slow, key=lambda item: item.moved_at)._cut()
        self._around.free -= size
        self.held += size

    def _cut(self) -> None:
        self._is_cut = True
        self.leave()
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time())


def _request_id(scope: Scope) -> str:
    """The client's id where it is one plain word, else a new one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    text: str = given[0].decode("latin-1") if len(given) == 1 else ""
    return text if _SAFE_ID.fullmatch(text) else uuid.uuid4().hex
