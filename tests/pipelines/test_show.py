import http.client
import threading
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from pipelines.show import _OnePage, main
from pipelines.stages import REPORT
from tests.support.headers import make


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


def test_every_artifact_of_a_run_is_hashed_and_damaged_ones_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "whole")
    make(tmp_path / "checkpoints" / "step-1")
    assert main(["--verify", str(tmp_path)]) == 0
    assert capfd.readouterr().out.count("whole, 1 files, 7 bytes") == 2
    (tmp_path / "whole" / "data.txt").write_bytes(b"CONTENT")
    assert main(["--verify", str(tmp_path)]) == 4
    output = capfd.readouterr()
    assert "data.txt of" in output.out
    assert "step-1               whole" in output.out
    assert "whole of" in output.err
    assert main(["--verify", str(tmp_path / "checkpoints" / "step-1")]) == 0
    (tmp_path / "empty").mkdir()
    assert main(["--verify", str(tmp_path / "empty")]) == 4
    assert "holds no artifact" in capfd.readouterr().err
