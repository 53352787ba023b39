"""What a hostile server can take of whoever asks it: so many bytes, so much time, no more."""

import gzip
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ServiceError
from tests.support.hub import Handler, served

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
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


def serving(reply: Callable[[Handler], object]) -> AbstractContextManager[str]:
    """Serve at the address given; one function replies to every request."""
    OVER.clear()
    return served(type("Service", (Handler,), {"do_GET": reply, "do_POST": reply}))


@pytest.mark.parametrize(
    ("answer", "code", "reason"),
    [
        (lambda r: write(r, b"\r\n", b" " * 4096), "no_answer", "exceeds 65536 bytes"),
        (lambda r: write(r, b"\r\n", b" ", 0.05), "unreachable", "the time ran out"),
        (lambda r: write(r, b"X-Long: ", b"x", 0.05), "unreachable", "time ran out"),
        (lambda r: write(r, CHUNKED, b"1\r\n \r\n", 0.05), "unreachable", "the time ran out"),
        (
            lambda r: r.answer(200, gzip.compress(b" " * 10_000_000), Content_Encoding="gzip"),
            "no_answer",
            "compressed, unasked",
        ),
        (lambda r: r.answer(308, b"", Location="http://b/"), "no_answer", "to http://b/"),
        (lambda r: r.answer(500, b"[" * 50_000), "no_answer", "without an answer"),
    ],
    ids=["endless", "body", "head", "chunks", "compressed", "moved", "nested"],
)
def test_an_answer_has_one_deadline_and_a_size(
    answer: Callable[[Handler], None], code: str, reason: str
) -> None:
    encodings = []

    def reply(request: Handler) -> None:
        encodings.append(request.headers["Accept-Encoding"])
        answer(request)

    with serving(reply) as url, Client(url, timeout_s=0.5, most_bytes=1 << 16) as client:
        start = time.monotonic()
        with pytest.raises(ServiceError, match=reason) as refused:
            client.model()
        assert time.monotonic() - start < 5
        OVER.set()
    assert refused.value.code == code
    assert encodings == ["identity"]


def test_closing_ends_what_is_still_asked() -> None:
    is_asked = threading.Event()

    def reply(_request: Handler) -> None:
        is_asked.set()
        OVER.wait(20)

    with serving(reply) as url, ThreadPoolExecutor(1) as threads:
        client = Client(url, timeout_s=30)
        asked = threads.submit(client.model)
        assert is_asked.wait(20)
        client.close()
        assert isinstance(asked.exception(5), ServiceError)
        OVER.set()


def test_a_refusal_that_comes_before_the_whole_body_is_read() -> None:
    def reply(request: Handler) -> None:
        request.close_connection = True
        request.answer(413, {"code": "too_many_bytes", "message": "smaller"})

    with serving(reply) as url, Client(url) as client:
        for _ in range(20):
            with pytest.raises(ServiceError) as refused:
                client.classify(bytes(3_000_000))
            assert (refused.value.code, refused.value.status) == ("too_many_bytes", 413)


def test_a_server_that_reads_too_slowly_ends_at_the_deadline() -> None:
    def reply(request: Handler) -> None:
        while not OVER.wait(0.05):
            request.rfile.read(1)

    with serving(reply) as url, Client(url, timeout_s=0.5) as client:
        start = time.monotonic()
        with pytest.raises(ServiceError, match="time ran out"):
            client.classify(bytes(30_000_000))
        assert time.monotonic() - start < 5
        OVER.set()
