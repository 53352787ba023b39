import json
import socket
import time

import pytest

from api.launcher import main
from tests.support.service import png, running, store
from tests.support.wire import KEY


@pytest.mark.parametrize(
    ("host", "code", "words"), [("0.0.0.0", 2, "loopback"), ("127.0.0.1", 4, "no model in m")]
)
def test_what_cannot_start_says_why(tmp_path, capsys, host, code, words):
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"model": "m", "allow_anonymous": True, "host": host}))
    assert main(["--config", str(file), "--port", "0"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err


def test_with_a_key_any_address_may_be_bound_and_the_index_must_fit(tmp_path, key_file):
    store(tmp_path, model_digest="f" * 64)
    with running(tmp_path, "--host", "127.0.0.1", wait=False, key_file=str(key_file)) as service:
        with service.client() as client:
            answer = client.get("/ready")
            while answer.json()["code"] == "loading":
                answer = client.get("/ready")
            assert (answer.status_code, answer.json()["code"]) == (503, "index_mismatch")
            assert client.post("/classify", files={"image": ("a", png())}).status_code == 401
        with socket.create_connection(service.address, timeout=10) as late:
            late.sendall(b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.1)
            late.sendall(b"too late.")  # a connection that ended before would be reset
            refusal = b"".join(iter(lambda: late.recv(4096), b""))
            assert refusal.startswith(b"HTTP/1.1 401 ")
        with service.client(**{"X-API-Key": KEY}) as client:
            asked = {"target": "image", "text": "x"}
            assert client.post("/retrieve", data=asked).json()["code"] == "index_mismatch"
            assert client.post("/classify", files={"image": ("a", png())}).status_code == 200
        assert any(line["event"] == "index_unusable" for line in service.lines())
