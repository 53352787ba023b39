"""The gate: host, key, place and body limits, before anything of a body is read."""

import asyncio
import time

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
        code = self._refusal(scope)
        with_body = scope["method"] == "POST"
        if code is None and with_body and not self._places.take():
            code = "overloaded"
        if code is not None:
            state["code"] = code
            await failure_response(code, state["request_id"])(scope, receive, send)
            return
        try:
            body = _Body(receive, self._settings, self._figures)
            state["deadline"] = time.monotonic() + (
                self._settings.body_deadline_s + self._settings.deadline_s
            )
            await self._app(scope, body.receive, send)
        finally:
            if with_body:
                self._places.leave()

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
    """A body that is counted as it arrives, and must have arrived in time."""

    def __init__(self, receive: Receive, settings: ServeSettings, figures: Figures) -> None:
        self._receive = receive
        self._left = settings.max_body_bytes
        self._started = time.monotonic()
        self._deadline_s = settings.body_deadline_s
        self._figures = figures
        self._whole = False

    async def receive(self) -> Message:
        """Give the next piece; once the body is whole, wait for the client to leave.

        Returns:
            The ASGI message.

        Raises:
            Refusal: the body is too large or too slow.
        """
        if self._whole:
            return await self._receive()
        try:
            left_s = self._started + self._deadline_s - time.monotonic()
            async with asyncio.timeout(max(0.0, left_s)):
                message = await self._receive()
        except TimeoutError as error:
            raise Refusal("body_deadline") from error
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise Refusal("body_too_large")
        if not message.get("more_body", False):
            self._whole = True
            seconds = time.monotonic() - self._started
            self._figures.stage_seconds.labels("receive").observe(seconds)
        return message
