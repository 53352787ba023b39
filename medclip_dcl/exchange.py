"""HTTP exchanges whose bounds hold whatever the other side does: one deadline, and a size.

A limit of silence alone is never reached by a head or body that drips, so each read and each part
that is written waits for what is left of the exchange's time. What is compressed has no size that
could be bounded before it is unpacked, so nothing compressed is taken.
"""

import socket
import ssl
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple

import httpcore
import httpx

_PART_BYTES = 1 << 14  # a slow reader may take its time for each
_end: ContextVar[float] = ContextVar("end")  # of this thread's exchange


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes


class UnboundedReply(Exception):
    """The answer is larger than allowed, or compressed; the message says which."""


class Exchange:
    """Connections to one server, kept open between exchanges; threads may share it."""

    def __init__(
        self,
        url: str,
        *,
        deadline_s: float,
        verify: ssl.SSLContext,
        headers: Mapping[str, str] | None = None,
        auth: httpx.Auth | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Set it up; nothing is sent yet.

        Args:
            url: what paths are relative to.
            deadline_s: limit of a request and its whole answer.
            verify: whose certificates are trusted.
            headers: of every request.
            auth: adds a key to every request.
            transport: what carries the requests; None: the network.

        Raises:
            httpx.InvalidURL: the url is malformed.
        """
        self._deadline_s = deadline_s
        self._network = _Network()
        if transport is None:
            transport = httpx.HTTPTransport()
            transport._pool = httpcore.ConnectionPool(
                ssl_context=verify, network_backend=self._network
            )
        self._http = httpx.Client(
            base_url=url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            auth=auth,
            timeout=deadline_s,
            trust_env=False,  # proxies of the environment would see images, names and keys
            transport=transport,
        )

    def ask(self, method: str, path: str, most_bytes: int, **request: Any) -> Reply:
        """Send a request and wait for its whole answer.

        Raises:
            httpx.HTTPError: the deadline has passed, there is no connection, or what comes is not
                HTTP.
            UnboundedReply: the answer exceeds `most_bytes`, or is compressed.
        """
        _end.set(time.monotonic() + self._deadline_s)
        with self._http.stream(method, path, **request) as reply:
            if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise UnboundedReply("the answer is compressed, unasked; let the server not do it")
            body = bytearray()
            for part in reply.iter_bytes():
                body += part
                if len(body) > most_bytes:
                    raise UnboundedReply(f"the answer exceeds {most_bytes} bytes")
            return Reply(reply.status_code, reply.headers, bytes(body))

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer gets none."""
        self._network.shut_down()
        self._http.close()


class _Network(httpcore.SyncBackend):
    def __init__(self) -> None:
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002 (the deadline's is less)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, _left_s(), local_address, socket_options)
        return self.kept(stream)

    def kept(self, stream: httpcore.NetworkStream) -> "_Stream":
        self._sockets.add(stream.get_extra_info("socket"))
        return _Stream(self, stream)

    def shut_down(self) -> None:
        for connection in list(self._sockets):
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # closing wakes no reader


class _Stream(httpcore.NetworkStream):
    def __init__(self, network: _Network, stream: httpcore.NetworkStream) -> None:
        self._network, self._stream = network, stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002
        return self._stream.read(max_bytes, _left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002
        for start in range(0, len(buffer), _PART_BYTES):
            self._stream.write(buffer[start : start + _PART_BYTES], _left_s())

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002
    ) -> httpcore.NetworkStream:
        return self._network.kept(self._stream.start_tls(ssl_context, server_hostname, _left_s()))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left_s() -> float:
    left_s = _end.get() - time.monotonic()
    if left_s <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return left_s
