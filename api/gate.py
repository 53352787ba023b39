"""The gate: host, key, place and body limits, before anything of a body is looked at."""

import asyncio
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import Access
from api.admission import Places
from api.failures import Refusal, failure_response
from api.journal import Figures
from api.settings import ServeSettings


class Gate:
    """ASGI middleware that admits a request, or answers it at once."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        access: Access,
        places: Places,
        figures: Figures,
    ) -> None:
        self._app = app
        self._settings = settings
        self._access = access
        self._places = places
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Args:
            scope: of the connection.
            receive: gives the body.
            send: takes the answer.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"]
        state["timings"] = {}
        code = self._refusal(scope)
        if code is None and scope["method"] == "POST" and self._places.is_full:
            code = "overloaded"
        if code is not None:
            state["code"] = code
            await failure_response(code, state["request_id"])(scope, receive, send)
            return
        body = _Body(receive, state, self._settings, self._places, self._figures)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.leave()

    def _refusal(self, scope: Scope) -> str | None:
        code = self._access.refusal(scope)
        if code is not None:
            return code
        named = dict(scope["headers"])
        if named.get(b"content-encoding", b"identity").lower() != b"identity":
            return "content_encoding"
        declared = named.get(b"content-length", b"0")
        if not declared.isdigit() or int(declared) > self._settings.max_body_bytes:
            return "body_too_large"
        return None


class _Body:
    """A body that is counted as it arrives, in time, and takes a place once it is whole."""

    def __init__(
        self,
        receive: Receive,
        state: dict[str, Any],
        settings: ServeSettings,
        places: Places,
        figures: Figures,
    ) -> None:
        self._receive = receive
        self._state = state
        self._settings = settings
        self._places = places
        self._figures = figures
        self._started = time.monotonic()
        self._held = 0
        self._whole = self._has_place = False
        state["deadline"] = self._started + settings.deadline_s

    async def receive(self) -> Message:
        """Give the next piece; once the body is whole, wait for the client to leave.

        Returns:
            The ASGI message.

        Raises:
            Refusal: the body is too large or too slow, or there is no room or place for it.
        """
        if self._whole:
            return await self._receive()
        message = await self._piece()
        if message["type"] != "http.request":
            self._whole = True
            return message
        self._hold(len(message.get("body", b"")))
        if not message.get("more_body", False):
            self._end()
        return message

    def leave(self) -> None:
        """Give place and room back."""
        self._places.release(self._held)
        if self._has_place:
            self._places.leave()

    async def _piece(self) -> Message:
        try:
            left_s = self._started + self._settings.body_deadline_s - time.monotonic()
            async with asyncio.timeout(max(0.0, left_s)):
                return await self._receive()
        except TimeoutError as error:
            raise Refusal("body_deadline") from error

    def _hold(self, size: int) -> None:
        if self._held + size > self._settings.max_body_bytes:
            raise Refusal("body_too_large")
        if not self._places.hold(size):
            raise Refusal("overloaded")
        self._held += size

    def _end(self) -> None:
        now = time.monotonic()
        self._whole = True
        self._figures.note(self._state["timings"], "receive", now - self._started)
        self._state["deadline"] = now + self._settings.deadline_s
        if not self._held:
            return
        self._has_place = self._places.take()
        if not self._has_place:
            raise Refusal("overloaded")
