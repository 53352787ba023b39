"""The gate: host, key, place and body limits, before anything of a body is looked at."""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import Auth
from api.admission import ConcurrencyLimiter
from api.failures import ApiError, error_response
from api.journal import Metrics
from api.settings import ServeSettings
from api.uploads import set_image_aside


class AdmissionMiddleware:
    """ASGI middleware that admits a request, or answers it at once."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServeSettings,
        auth: Auth,
        limiter: ConcurrencyLimiter,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._settings = settings
        self._auth = auth
        self._limiter = limiter
        self._metrics = metrics

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
        if code is None and scope["method"] == "POST" and self._limiter.is_full:
            code = "overloaded"
        if code is not None:
            state["code"] = code
            await error_response(code, state["request_id"])(scope, receive, send)
            return
        state["deadline"] = time.monotonic() + self._settings.deadline_s
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gather a body, which holds no place while it arrives, and answer it in a place."""
        state = scope["state"]
        body = _Body(receive, self._settings, self._limiter)
        try:
            message = await body.gathered()
            self._metrics.note(state["timings"], "receive", time.monotonic() - body.started)
            if body.size and not self._limiter.take():
                raise ApiError("overloaded")
        except ApiError as refusal:
            body.release()
            state["code"] = refusal.code
            await error_response(refusal.code, state["request_id"])(scope, receive, send)
            return
        state["deadline"] = time.monotonic() + self._settings.deadline_s
        form, state["image"] = set_image_aside(
            message.get("body", b""), dict(scope["headers"]).get(b"content-type", b"")
        )
        messages = iter([{**message, "body": form}])

        async def whole() -> Message:
            return next(messages, None) or await receive()

        try:
            await self._app(scope, whole, send)
        finally:
            body.release()
            if body.size:
                self._limiter.leave()

    def _refusal(self, scope: Scope) -> str | None:
        code = self._auth.refusal(scope)
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

    def __init__(
        self, receive: Receive, settings: ServeSettings, limiter: ConcurrencyLimiter
    ) -> None:
        self.started = time.monotonic()
        self.size = 0
        self._receive = receive
        self._settings = settings
        self._limiter = limiter
        self._held = 0

    async def gathered(self) -> Message:
        """Wait for all of it.

        Returns:
            The body as one ASGI message, or the word that the client has left.

        Raises:
            Refusal: it is too large or too slow, or there is no room for it.
        """
        pieces = []
        try:
            async with asyncio.timeout(self._settings.body_deadline_s):
                while True:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        return message
                    pieces.append(message.get("body", b""))
                    self._hold(len(pieces[-1]))
                    if not message.get("more_body", False):
                        break
        except TimeoutError as error:
            raise ApiError("body_deadline") from error
        return {"type": "http.request", "body": b"".join(pieces), "more_body": False}

    def release(self) -> None:
        """Give its room back."""
        self._limiter.release(self._held)
        self._held = 0

    def _hold(self, size: int) -> None:
        self.size += size
        if self.size > self._settings.max_body_bytes:
            raise ApiError("body_too_large")
        if not self._limiter.hold(size):
            raise ApiError("overloaded")
        self._held += size
