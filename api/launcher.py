"""Start the service: arguments, settings, socket and server."""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from medclip_dcl.core.errors import ArtifactMissing, ConfigError, MedclipError
from medclip_dcl.core.files import raise_open_file_limit
from medclip_dcl.inference import model_package
from medclip_dcl.retrieval import embeddings

from .app import create_app
from .auth import is_loopback
from .errors import error_response
from .logging import configure_logging
from .model_manager import fetch_model
from .settings import ServeSettings, read_service_settings

_LONGEST_HEAD = 16 * 1024  # bytes
_IDLE_S = 5  # of a connection before its first request and between two
_FREE_CHUNKS = 256
_SMALLEST_CHUNKS = 64  # bytes on average; each costs h11 as much time as a large one


class _Connection(h11.Connection):
    """Refuses bodies in tiny chunks: 100 kB of them would hold the event loop for .2 s."""

    _chunks, _bytes = 0, 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks, self._bytes = 0, 0
            if event.target[:4].lower() == b"http":  # the absolute form, as proxies are asked
                path = b"".join(event.target.split(b"/", 3)[3:])
                event = replace(event, target=b"/" + path)
            if event.http_version not in {b"1.0", b"1.1"}:
                raise h11.RemoteProtocolError("another HTTP")
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            if self._chunks > _FREE_CHUNKS and self._bytes < _SMALLEST_CHUNKS * self._chunks:
                raise h11.RemoteProtocolError("a body in tiny chunks")
        return event


class _Protocol(H11Protocol):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Connection(h11.SERVER, _LONGEST_HEAD)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Close a connection that sends nothing at all, as one that waits between requests."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (its words are uvicorn's)
        """Answer what is not well-formed HTTP in the service's own form."""
        number = uuid.uuid4().hex
        rule = "send HTTP/1.1 with one Host and one length"
        body = bytes(error_response("malformed_body", number, rule).body)
        head = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:  # else an answer has begun
            self.transport.write(f"{head}X-Request-ID: {number}\r\n\r\n".encode() + body)
        self.transport.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service until a signal stops it; exit code 0 stopped, 2 configuration, 4 no model."""
    raise_open_file_limit()
    parser = argparse.ArgumentParser(prog="python -m api")
    parser.add_argument("--config", type=Path, required=True, help="settings, a YAML file")
    parser.add_argument("--run", type=Path, help="folder of a run: its model and its index")
    parser.add_argument("--model", type=Path, help="folder of a model, without an index")
    parser.add_argument("--host", help="address to bind")
    parser.add_argument("--port", type=int, help="port to bind; 0: a free one")
    arguments = parser.parse_args(argv)
    try:
        given: dict[str, Any] = {}
        if arguments.run is not None:
            model, index = (kind.ARTIFACT.at(arguments.run) for kind in (model_package, embeddings))
            given = {"model": str(model), "index": str(index) if index.is_dir() else ""}
        if arguments.model is not None:
            given = {"model": str(arguments.model), "index": ""}
        given |= {"host": arguments.host, "port": arguments.port}
        settings = fetch_model(read_service_settings(arguments.config, os.environ, **given))
        _check(settings)
        app = create_app(settings)
        listener = _listen(settings)
    except MedclipError as error:
        print(f"api: {error}", file=sys.stderr)
        return error.exit_code
    configure_logging()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # uvicorn raises it again once it has drained
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    line = {"service": "listening", "host": host, "port": port, "url": f"http://{shown}:{port}/"}
    print(json.dumps(line), flush=True)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=_Protocol,
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=settings.drain_s,
        )
    )
    server.run(sockets=[listener])
    return 0


def _check(settings: ServeSettings) -> None:
    if settings.allow_anonymous and not is_loopback(settings.host):
        raise ConfigError(
            f"allow_anonymous answers on loopback alone, host is {settings.host}; set key_file"
        )
    try:
        is_there = (Path(settings.model) / "artifact.json").is_file()
    except PermissionError:
        is_there = True  # readiness says who may not read it, and tries again
    if not is_there:
        raise ArtifactMissing(
            f"no model in {settings.model}; run {model_package.ARTIFACT.job} first"
        )


def _listen(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{settings.host}:{settings.port} cannot be bound ({error.strerror}); choose another"
        ) from error
    listener.listen()
    return listener
