"""A service on loopback that costs nothing: it answers `/v1/classify` alike for every image."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.hub import Handler, served

FINDINGS = ("Effusion", "Pneumothorax")
MODEL = "ab" * 32


def stub_answer(rows: int = 40, columns: int = 50) -> dict[str, Any]:
    """An answer of the service: the first finding is positive, with a box; the second is not."""
    where = {
        "affine": [25, 0, 12.5, 0, 20, 10],
        "peak": {"x": 37.5, "y": 30, "score": 0.9},
        "threshold": 0.5,
        "box": {"x": 25, "y": 20, "width": 20, "height": 15},
    }
    findings = [
        {
            "name": name,
            "score": 0.9 - 0.7 * row,
            "margin": 0.3 - 0.6 * row,
            "decision": not row,
            "probability": None,
            "probability_note": "not calibrated",
            "heatmap": [[0.1, 0.2], [0.3, 0.9]],
            "where": where if not row else {**where, "box": None},
        }
        for row, name in enumerate(FINDINGS)
    ]
    image = {"width_px": columns, "height_px": rows, "source": "dicom", "flags": []}
    return {"model": MODEL, "image": image, "findings": findings}


@dataclass
class StubService:
    """Answers `/v1/classify` at once, the same for every image; keeps what it was sent."""

    answer: dict[str, Any]
    """About every image."""
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    status: int = 200
    code: str = "loading"
    """Of an answer that is not 200."""
    key: str = ""
    """The key that it wants; empty: none."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of every answer, with _ for -."""


@contextmanager
def stub_service(
    rows: int = 40, columns: int = 50, tls: ssl.SSLContext | None = None
) -> Iterator[StubService]:
    """Run a service that costs nothing; it answers about images of one size."""
    stub = StubService(stub_answer(rows, columns))

    class Service(Handler):
        def do_POST(self) -> None:  # noqa: N802 (http.server's name)
            stub.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            status, code = stub.status, stub.code
            if stub.key not in ("", self.headers["X-API-Key"]):
                status, code = 401, "unauthorized"
            failure = {"code": code, "message": "not yet", "request_id": "0"}
            self.answer(status, stub.answer if status == 200 else failure, **stub.headers)

    with served(Service, tls) as stub.url:
        yield stub
