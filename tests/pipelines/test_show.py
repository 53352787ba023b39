import http.client
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.show import _OnePage
from pipelines.stages import REPORT


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    (tmp_path / REPORT).write_text("figures")
    (tmp_path / "secret").write_text("secret")
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_OnePage, directory=str(tmp_path))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, *hosts: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.putrequest(method, path, skip_host=True)
    for host in hosts:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:9000", "LOCALHOST:1"])
def test_the_report_and_nothing_else_is_shown(port: int, host: str) -> None:
    assert ask(port, "/", host) == ask(port, f"/{REPORT}", host) == (200, "figures")
    for path in ("/favicon.ico", "/secret", "/../secret", "/%00"):
        assert ask(port, path, host)[0] == 404
        assert ask(port, path, host, method="HEAD")[0] == 404


@pytest.mark.parametrize(
    "hosts",
    [(), ("evil.example",), ("localhost.evil.example",), ("localhost", "localhost"), ("[",)],
)
def test_no_other_name_reads_it(port: int, hosts: tuple[str, ...]) -> None:
    for method in ("GET", "HEAD"):
        status, text = ask(port, "/", *hosts, method=method)
        assert (status, "figures" in text) == (421, False)
