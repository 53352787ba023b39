"""What a hostile server can take of whoever asks it: so many bytes, so much time, no more."""

import gzip
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ServiceError
from tests.support.hub import Handler, served

MOST_BYTES = 1 << 16
OVER = threading.Event()


def write(request: Handler, head: bytes, part: bytes, pause_s: float = 0.0) -> None:
    """Answer with a head, then the same bytes for as long as someone reads."""
    request.close_connection = True
    try:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + head)
        while not OVER.wait(pause_s):
            request.wfile.write(part)
    except OSError:
        pass


FAULTS: dict[str, tuple[Callable[[Handler], None], str, str]] = {
    "endless": (lambda r: write(r, b"\r\n", b" " * 4096), "no_answer", "exceeds 65536 bytes"),
    "dripping body": (lambda r: write(r, b"\r\n", b" ", 0.05), "unreachable", "the time ran out"),
    "dripping head": (lambda r: write(r, b"X-Long: ", b"x", 0.05), "unreachable", "time ran out"),
    "dripping chunks": (
        lambda r: write(r, b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.05),
        "unreachable",
        "the time ran out",
    ),
    "compressed": (
        lambda r: r.answer(200, gzip.compress(b" " * 10_000_000), Content_Encoding="gzip"),
        "no_answer",
        "compressed, unasked",
    ),
    "moved": (lambda r: r.answer(308, b"", Location="http://b/"), "no_answer", "to http://b/"),
    "nested": (lambda r: r.answer(500, b"[" * 50_000), "no_answer", "without an answer"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_answer_has_one_deadline_and_a_size(fault: str) -> None:
    answer, code, reason = FAULTS[fault]
    encodings = []

    class Service(Handler):
        def do_GET(self) -> None:  # noqa: N802 (http.server's name)
            encodings.append(self.headers["Accept-Encoding"])
            answer(self)

    OVER.clear()
    with served(Service) as url, Client(url, timeout_s=0.5, most_bytes=MOST_BYTES) as client:
        start = time.monotonic()
        with pytest.raises(ServiceError, match=reason) as refused:
            client.model()
        assert time.monotonic() - start < 5
        OVER.set()
    assert refused.value.code == code
    assert encodings == ["identity"]


def test_closing_ends_what_is_still_asked() -> None:
    is_asked = threading.Event()

    class Service(Handler):
        def do_GET(self) -> None:  # noqa: N802 (http.server's name)
            is_asked.set()
            OVER.wait(20)

    OVER.clear()
    with served(Service) as url, ThreadPoolExecutor(1) as threads:
        client = Client(url, timeout_s=30)
        asked = threads.submit(client.model)
        assert is_asked.wait(20)
        client.close()
        assert isinstance(asked.exception(5), ServiceError)
        OVER.set()


def test_a_refusal_that_comes_before_the_whole_body_is_read() -> None:
    class Service(Handler):
        def do_POST(self) -> None:  # noqa: N802 (http.server's name)
            self.close_connection = True
            self.answer(413, {"code": "too_many_bytes", "message": "smaller"})

    with served(Service) as url, Client(url) as client:
        for _ in range(20):
            with pytest.raises(ServiceError) as refused:
                client.classify(bytes(3_000_000))
            assert (refused.value.code, refused.value.status) == ("too_many_bytes", 413)


def test_a_server_that_reads_too_slowly_ends_at_the_deadline() -> None:
    class Service(Handler):
        def do_POST(self) -> None:  # noqa: N802 (http.server's name)
            while not OVER.wait(0.05):
                self.rfile.read(1)

    OVER.clear()
    with served(Service) as url, Client(url, timeout_s=0.5) as client:
        start = time.monotonic()
        with pytest.raises(ServiceError, match="time ran out"):
            client.classify(bytes(30_000_000))
        assert time.monotonic() - start < 5
        OVER.set()
