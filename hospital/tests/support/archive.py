"""An archive on loopback that speaks as much DICOMweb as we ask for, and lies where a test asks."""

import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from tests.support.hub import Handler, served

_BOUNDARY = "boundary-of-the-archive"
_INSTANCE = re.compile(r"/studies/([\d.]+)/series/([\d.]+)/instances/([\d.]+)")


@dataclass
class StubArchive:
    """What it holds, what it was asked, and how it misbehaves."""

    url: str = ""
    images: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    """Study, series and instance UID -> file."""
    asked: list[str] = field(default_factory=list)
    """Method and path of every request."""
    headers: list[dict[str, str]] = field(default_factory=list)
    """Headers of every request."""
    odd: Callable[[BaseHTTPRequestHandler], bool] = lambda _: False
    """Answers a request in another way, and says whether it did."""

    def add(self, number: int, image: bytes) -> None:
        """Hold an image under the UIDs that `orthanc.radiograph` gives this number."""
        root = f"1.2.826.0.1.3680043.10.1.{number}"
        self.images[f"{root}.1", f"{root}.2", f"{root}.3"] = image

    def count(self, end: str) -> int:
        """Count the requests whose path ends so."""
        return sum(line.endswith(end) for line in self.asked)


@contextmanager
def stub_archive(tls: ssl.SSLContext | None = None) -> Iterator[StubArchive]:
    """Run an archive."""
    archive = StubArchive()

    class Archive(Handler):
        def do_GET(self) -> None:  # noqa: N802 (http.server's name)
            address = urlsplit(self.path)
            path = address.path.removeprefix("/dicom-web")
            archive.asked.append(f"GET {path}")
            archive.headers.append(dict(self.headers))
            if archive.odd(self):
                return
            if found := _INSTANCE.fullmatch(path):
                self._file(archive.images.get(found.groups()))  # type: ignore[call-overload]
                return
            rows = [] if "0" not in parse_qs(address.query)["offset"] else sorted(archive.images)
            if path == "/series":
                self.answer(200, [_row(("0020000D", uid[0]), ("0020000E", uid[1])) for uid in rows])
            else:
                _, _, study, _, series, _ = path.split("/")
                own = [uid for uid in rows if uid[:2] == (study, series)]
                self.answer(200, [_row(("00080018", uid[2])) for uid in own])

        def do_POST(self) -> None:  # noqa: N802 (http.server's name)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            archive.asked.append("POST /studies")
            archive.headers.append(dict(self.headers))
            if not archive.odd(self):
                uids = set(re.findall(rb"\x08\x00\x18\x00UI..([\d.]+)", body))
                stored = [_row(("00081155", uid.decode())) for uid in uids]
                self.answer(200, {"00081199": {"vr": "SQ", "Value": stored}})

        def _file(self, data: bytes | None) -> None:
            if data is None:
                self.answer(404, b"")
                return
            head = f"--{_BOUNDARY}\r\nContent-Type: application/dicom\r\n\r\n".encode()
            body = head + data + f"\r\n--{_BOUNDARY}--\r\n".encode()
            self.answer(200, body, f'multipart/related; boundary="{_BOUNDARY}"')

    with served(Archive, tls) as address:
        archive.url = f"{address}/dicom-web"
        yield archive


def _row(*uids: tuple[str, str]) -> dict[str, object]:
    return {tag: {"vr": "UI", "Value": [uid]} for tag, uid in uids}


def nested(request: BaseHTTPRequestHandler, depth: int = 100_000) -> None:
    """Answer with JSON that no parser takes."""
    assert isinstance(request, Handler)
    request.answer(200, b"[" * depth)


def endless(request: BaseHTTPRequestHandler, part: bytes, pause_s: float = 0) -> None:
    """Answer with the same bytes for as long as someone reads."""
    request.send_response(200)
    request.send_header("Content-Type", "application/dicom+json")
    request.end_headers()
    request.close_connection = True
    try:
        while True:
            request.wfile.write(part)
            time.sleep(pause_s)
    except OSError:
        pass
