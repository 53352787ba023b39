"""How an answer leaves: with the headers of safety, in pieces, counted until its reader has it."""

import asyncio
import functools
from http import HTTPStatus

from starlette.types import Message, Receive, Scope, Send

from .bodies import STEP, STEP_S, BodyMemory, Transfer
from .errors import ApiError, error_response
from .logging import state_of

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


class Answer:
    """One answer. A large one takes room of `memory` until its reader has it.

    `status` is 0 until it begins. `is_cut`: its reader was too slow, or it lost its room.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, memory: BodyMemory) -> None:
        self.status = 0
        self.is_cut = False
        self._scope, self._receive, self._send = scope, receive, send
        self._memory = memory
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Take a message of the application; `send` of ASGI."""
        if self.is_cut:
            return
        if message["type"] == "http.response.start":
            self._start = message  # until there is room for what follows
            return
        body = message.get("body", b"")
        try:
            async with asyncio.timeout(STEP_S) as limit:
                transfer = Transfer(self._memory, limit)
                try:
                    if len(body) > STEP:
                        transfer.hold(len(body))
                    await self._begin()
                    await self._pass_on(body, message.get("more_body", False), limit, transfer)
                finally:
                    transfer.release()
        except ApiError as refusal:
            await self._refuse(refusal.code)
        except TimeoutError:
            self.is_cut = True

    async def _begin(self) -> None:
        if self._start is None:
            return
        start, self._start = self._start, None
        self.status = start["status"]
        missing = _missing_headers(start, state_of(self._scope).request_id)
        await self._send({**start, "headers": [*start["headers"], *missing]})

    async def _pass_on(
        self, body: bytes, more: bool, limit: asyncio.Timeout, transfer: Transfer
    ) -> None:
        # The server passes a piece on once the one before has almost left. So what a slow reader
        # leaves lying is counted here, and not in the buffer of its connection.
        for at in range(0, max(len(body), 1), STEP):
            is_last = at + STEP >= len(body)
            piece = body[at : at + STEP]
            await self._send(
                {"type": "http.response.body", "body": piece, "more_body": more or not is_last}
            )
            if transfer.is_cut:  # while the server waited for the reader
                raise TimeoutError
            transfer.move(len(piece))
            limit.reschedule(asyncio.get_running_loop().time() + STEP_S)

    async def _refuse(self, code: str) -> None:
        if self.status:  # it has begun
            self.is_cut = True
            return
        state = state_of(self._scope)
        state.code = code
        await error_response(code, state.request_id)(self._scope, self._receive, self.send)


def _missing_headers(message: Message, request_id: str) -> list[tuple[bytes, bytes]]:
    present = {name.lower() for name, _ in message["headers"]}
    ours = ((b"x-request-id", request_id.encode()), *_ENCODED)
    return [(name, value) for name, value in ours if name not in present]


def refusal_bytes(code: str, request_id: str) -> bytes:
    """Make the answer with a code of `ERRORS` as it goes over the wire."""
    return request_id.encode().join(_around_id(code, len(request_id)))


@functools.lru_cache(maxsize=256)
def _around_id(code: str, length: int) -> list[bytes]:
    """Make a refusal once for all ids of a length: what stands around the places of the id."""
    place = "\x7f" * length  # in no id
    answer = error_response(code, place)
    start = {"headers": answer.raw_headers}
    status = HTTPStatus(answer.status_code)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}".encode()]
    lines += [
        b": ".join(header) for header in (*answer.raw_headers, *_missing_headers(start, place))
    ]
    return b"\r\n".join((*lines, b"", bytes(answer.body))).split(place.encode())
