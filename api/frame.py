"""The outermost layer: a request id, safe headers, a log line, and an answer in every case."""

import re
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.failures import error_response
from api.journal import Metrics, log, log_fault

_SAFE_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"))
"""What a log line may call a method: a client can make up others."""

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


class RequestContextMiddleware:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
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
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = _request_id(scope)
        started, status = time.monotonic(), 0

        async def framed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_headers(message, request_id)]
            await send(message)

        try:
            await self._app(scope, receive, framed)
        except Exception as error:  # noqa: BLE001 (the last resort: the server lives on)
            state["code"] = "internal"
            log_fault("fault", error, request_id=request_id)
            if status == 0:
                await error_response("internal", request_id)(scope, receive, framed)
        finally:
            self._note(scope, status, time.monotonic() - started)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        state = scope["state"]
        facts = {name: state[name] for name in ("key", "code", "timings") if state.get(name)}
        if "code" in facts:
            self._metrics.refusals.labels(facts["code"]).inc()
        log(
            "request",
            request_id=state["request_id"],
            method=scope["method"] if scope["method"] in _METHODS else "other",
            route=route,
            status=status,
            ms=round(1000 * seconds, 1),
            **facts,
        )


def _request_id(scope: Scope) -> str:
    """The client's id where it is one plain word, else a new one."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    text: str = given[0].decode("latin-1") if len(given) == 1 else ""
    if _SAFE_ID.fullmatch(text):
        return text
    return uuid.uuid4().hex


def _headers(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in message["headers"]}
    ours = ((b"x-request-id", request_id.encode()), *_ENCODED)
    return [(name, value) for name, value in ours if name not in present]
