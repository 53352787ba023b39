"""An object store on this machine: moto's server, behind a gate that fails now and then.

moto wants older packages than ours, so it is installed apart, and `MOTO_SERVER` names its command:

    python -m venv MOTO && MOTO/bin/pip install 'moto[s3]' flask flask-cors
    export MOTO_SERVER=$PWD/MOTO/bin/moto_server
"""

import http.client
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from testing.processes import free_port

_BUCKET = "studies"
_START_S = 60.0
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class FailingStore(NamedTuple):
    """A bucket, and what has been asked of it."""

    url: str
    environment: dict[str, str]
    """Variables by which a client finds it."""
    requests: "itertools.count[int]"
    """The next number is that of all requests so far."""


@contextmanager
def failing_store(folder: Path, every: int) -> Iterator[FailingStore]:
    """Serve the files of a folder as objects; every so many requests is answered with 503."""
    port, numbers = free_port(), itertools.count(1)
    server = subprocess.Popen(
        [os.environ["MOTO_SERVER"], "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    class Gate(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if next(numbers) % every == 0:
                self._answer(503, {}, b"")
                return
            asked = http.client.HTTPConnection("127.0.0.1", port)
            asked.request(self.command, self.path, body or None, headers=dict(self.headers))
            found = asked.getresponse()
            self._answer(found.status, dict(found.getheaders()), found.read())
            asked.close()

        do_PUT = do_GET  # noqa: N815

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response_only(status)
            kept = {"etag", "last-modified", "content-type", "content-range"}
            for name, value in headers.items():
                if name.lower() in kept:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    gate = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    threading.Thread(target=gate.serve_forever, daemon=True).start()
    try:
        _fill(port, folder)
        where = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{gate.server_port}"}
        where |= {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
        yield FailingStore(f"s3://{_BUCKET}", where | dict.fromkeys(_KEYS, "test"), numbers)
    finally:
        gate.shutdown()
        gate.server_close()
        server.kill()
        server.wait()


def _fill(port: int, folder: Path) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        _BUCKET,
        endpoint=f"http://127.0.0.1:{port}",
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
        client_options={"allow_http": True},
    )
    _make_bucket(port, time.monotonic() + _START_S)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            obstore.put(store, file.relative_to(folder).as_posix(), file.read_bytes())


def _make_bucket(port: int, deadline: float) -> None:
    while True:
        asked = http.client.HTTPConnection("127.0.0.1", port)
        try:
            asked.request("PUT", f"/{_BUCKET}")
            asked.getresponse().read()
        except ConnectionRefusedError:  # it starts
            assert time.monotonic() < deadline, "moto does not start"
            time.sleep(0.1)
        else:
            return
        finally:
            asked.close()
