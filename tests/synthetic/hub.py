"""A model hub on loopback: as much of its API as a push uses, with a real client before it."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"


@dataclass
class Hub:
    """What was sent."""

    url: str = ""
    visibility: str = ""
    """Of the repository; empty: there is none."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Committed files by name."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """Large files by digest, before they are committed."""
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub; weights go as large files, all else inside the commit."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                self._answer(401, {"error": "no token"})
            elif self.path == "/api/repos/create":
                hub.visibility = hub.visibility or json.loads(body)["visibility"]
                self._answer(200, {"url": f"{hub.url}/someone/images"})
            elif self.path == "/api/validate-yaml":
                self._answer(200, {"errors": [], "warnings": []})
            elif "/preupload/" in self.path:
                names = [item["path"] for item in json.loads(body)["files"]]
                self._answer(200, {"files": [_mode(name) for name in names]})
            elif self.path.endswith("/objects/batch"):
                wanted = json.loads(body)["objects"]
                objects = [
                    item | {"actions": {"upload": {"href": f"{hub.url}/blobs/{item['oid']}"}}}
                    for item in wanted
                ]
                self._answer(200, {"transfer": "basic", "objects": objects})
            elif "/commit/" in self.path:
                _commit(hub, body)
                self._answer(
                    200, {"commitUrl": f"{hub.url}/someone/images/commit/1", "commitOid": "1"}
                )
            else:
                self._answer(404, {"error": "unknown"})

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            private = hub.visibility == "private"
            if self.headers.get("authorization") != f"Bearer {TOKEN}":
                self._answer(401, {"error": "no token"})
                return
            self._answer(200, {"id": "someone/images", "private": private, "siblings": []})

        def do_PUT(self) -> None:
            body = self._body()
            hub.blobs[hashlib.sha256(body).hexdigest()] = body
            self._answer(200, {})

        def _body(self) -> bytes:
            hub.asked.append(f"{self.command} {self.path}")
            if self.headers.get("transfer-encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("content-length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _answer(self, status: int, tree: dict[str, Any]) -> None:
            data = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _mode(name: str) -> dict[str, Any]:
    large = name.endswith(".safetensors")
    return {"path": name, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}


def _commit(hub: Hub, body: bytes) -> None:
    for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "file":
            hub.files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            hub.files[value["path"]] = hub.blobs[value["oid"]]
