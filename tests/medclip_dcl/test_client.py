"""The client and its command line: against the real service, over HTTPS, and hostile servers."""

import gzip
import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from medclip_dcl.client import Client, main, unreachable
from medclip_dcl.core.errors import ConfigError, ImageError, ServiceError
from medclip_dcl.schemas import ClassifyAnswer
from tests.support.dicom import dicom_bytes, ramp
from tests.support.hub import Handler, served
from tests.support.service import FINDINGS, Service, running
from tests.support.stub_service import MODEL, stub_service
from tests.support.tls import HAS_OPENSSL, Certificates, make_certificates

KEY = "k" * 40
README = (Path(__file__).parents[2] / "api/README.md").read_text(encoding="utf-8")
LINES = re.findall(r"^python -m medclip_dcl\.client (.+)$", README, re.MULTILINE)
(PYTHON,) = re.findall(r"```python\n(.+?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("client")
    (folder / "image.dcm").write_bytes(dicom_bytes(ramp(96, 64)))
    (folder / "key").write_text(f"{KEY}\n")
    (folder / "key").chmod(0o400)
    return folder


@pytest.fixture(scope="module")
def service(published: Path, folder: Path) -> Iterator[Service]:
    with running(published, key_file=str(folder / "key")) as service:
        yield service


def classify(url: str, **settings: Any) -> ClassifyAnswer:
    with Client(url, **settings) as client:
        return client.classify(b"image")


def refusal(url: str, **settings: Any) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        classify(url, **settings)
    return refused.value


def test_a_service_that_is_loading_is_waited_for(monkeypatch):
    waits = []
    with stub_service() as service, Client(service.url) as client:
        service.status, service.headers = 503, {"Retry_After": "5"}

        def loaded_after(seconds: float) -> None:
            waits.append(seconds)
            service.status = 503 if len(waits) < 3 else 200

        monkeypatch.setattr(time, "sleep", loaded_after)
        assert refusal(service.url, patience_s=4).code == "loading"
        assert not waits
        assert client.classify(b"image").model == MODEL
        assert waits == [5.0, 5.0, 5.0]  # what the service names
        assert all(b"\r\n\r\nimage\r\n" in body for body in service.bodies)
        assert len(service.bodies) == 5  # the whole image each time


def test_every_question_is_answered_and_one_sentence_or_image_stands_for_a_list(service, folder):
    path = folder / "image.dcm"
    asked = {"name": "one", "positive": "Effusion", "negative": "No effusion"}
    with Client(service.url, KEY) as client:
        answer = client.classify(path.read_bytes(), [asked], explain=True)
        assert [item.name for item in client.classify(path, asked).findings] == ["one"]
        grounded = client.ground(path, ["Effusion", "Pneumonia"])
        assert len(client.ground(path, "Effusion").phrases) == 1
        images = client.retrieve("image", text="No effusion.", k=3, finding=FINDINGS[:1])
        texts = client.retrieve("text", image=path, box=(10, 20, 30, 40), split=["train", "test"])
        assert client.embed(texts=["Effusion"]) == client.embed(texts="Effusion")
        for image in (path, str(path), path.read_bytes()):
            assert client.embed(image).shape[0] == 1
            assert len(client.classify_all(image)) == 1
    (finding,) = answer.findings
    assert finding.name == "one"
    assert (answer.image.height_px, answer.image.width_px) == (96, 64)
    assert np.shape(finding.heatmap) == (4, 4)
    assert len(grounded.phrases) == 2
    assert len(images.hits) == 3
    assert all(hit.study_id for hit in images.hits)
    assert [hit.score for hit in texts.hits] == sorted((h.score for h in texts.hits), reverse=True)


def test_refusals_bear_the_code_of_the_service(service: Service, folder: Path) -> None:
    stranger = refusal(service.url, key="w" * 40)
    assert (stranger.code, stranger.status) == ("unauthorized", 401)
    with Client(service.url, KEY) as client:
        with pytest.raises(ServiceError, match="unknown_format"):
            client.classify(b"no image")
        with pytest.raises(ServiceError, match="invalid_request"):
            client.retrieve("image", text="x", finding="Gout")
        with pytest.raises(ImageError) as missing:
            client.classify(folder / "nowhere.dcm")
        assert "nowhere" not in str(missing.value)


def test_the_key_of_a_file_is_the_one_that_stands_there_now(service, tmp_path):
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("w" * 40)
    with Client(service.url, file) as client:
        with pytest.raises(ServiceError, match="unauthorized"):
            client.model()
        file.write_text(KEY)
        digest = client.model().digest
        file.write_text("")  # half written
        assert client.model().digest == digest
        file.unlink()
        with pytest.raises(ConfigError, match="cannot be read"):
            Client(service.url, file)


@pytest.mark.parametrize("line", LINES)
def test_line_of_the_readme_runs(line, service, folder, capsys):
    words = shlex.split(line)
    assert words[-2:] == ["--url", "http://127.0.0.1:8000"]
    words = [str(folder / word) if word == "image.dcm" else word for word in words[:-1]]
    code = main([*words, service.url, "--key-file", str(folder / "key")])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert json.loads(captured.out)["model"]


def test_python_of_the_readme_runs(service, folder, capsys):
    asked = f'Client("{service.url}", "{KEY}")'
    text = PYTHON.replace('Client("http://127.0.0.1:8000")', asked)
    assert asked in text
    text = text.replace('"image.dcm"', repr(str(folder / "image.dcm")))
    exec(compile(text, "README", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["effusion", "pneumonia"]


def test_failures_of_the_command_line_end_with_a_line_and_a_code(service, folder, capsys):
    loose = folder / "loose"
    loose.write_text(KEY)
    loose.chmod(0o644)
    words = ["classify", str(folder / "image.dcm"), "--url", service.url]
    assert main(words) == 1
    assert "unauthorized" in capsys.readouterr().err
    assert main([*words, "--key-file", str(loose)]) == 2
    assert "chmod 440" in capsys.readouterr().err


def test_the_command_line_warns_of_an_image_out_of_range(folder, capsys):
    image = folder / "image.dcm"
    with stub_service(96, 64) as service:
        service.answer["image"]["flags"] = ["out_of_range"]
        assert main(["classify", str(image), "--url", service.url]) == 0
        assert "warning: out_of_range" in capsys.readouterr().err
        with Client(service.url) as client:
            assert client.classify(image).image.is_out_of_range


needs_openssl = pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates) -> Iterator[str]:
    """The address of a service over TLS."""
    with stub_service(tls=certificates.server_context()) as stub:
        yield stub.url


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "ALL_PROXY"):  # which are not used
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@needs_openssl
def test_an_authority_is_trusted_once_it_is_named(encrypted, certificates, monkeypatch):
    for other in (None, certificates.stranger):
        error = refusal(encrypted, ca=other)
        assert error.code == "certificate"
        for word in ("CERTIFICATE_VERIFY_FAILED", "`ca`", "SSL_CERT_FILE"):
            assert word in error.message
    classify(encrypted, ca=certificates.ca)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    classify(encrypted)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca.with_name("none.pem")))
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read as certificates"):
        classify(encrypted)


@needs_openssl
def test_the_command_names_an_authority(encrypted, certificates, folder, capsys):
    image = str(folder / "image.dcm")
    words = ["classify", image, "--url", encrypted]
    assert main(words) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert main([*words, "--ca", str(certificates.ca)]) == 0
    assert main([*words, "--ca", image]) == 2
    assert "name a PEM file" in capsys.readouterr().err


@needs_openssl
def test_another_name_than_the_certificate_s_is_said(encrypted, certificates, monkeypatch):
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **kw: look_up("127.0.0.1", *rest, **kw)
    )
    error = refusal(encrypted.replace("127.0.0.1", "ai.example"), ca=certificates.ca)
    assert error.code == "certificate"
    assert "ai.example" in error.message


def test_why_nobody_answered_is_said(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert "time ran out" in refusal(f"http://127.0.0.1:{port}", timeout_s=0.2).message
    for host in ("127.0.0.1", "localhost"):  # where nobody listens any more
        assert "the connection was refused" in refusal(f"http://{host}:{port}").message
    with pytest.raises(ServiceError, match="does not begin with http"):
        Client("localhost:8000")
    with served(Handler) as plain:
        assert "TLS failed" in refusal(plain.replace("http", "https")).message

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "name of its host is unknown" in refusal("http://ai.example").message


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.RemoteProtocolError("sent"), "what came is not HTTP; is the port right?"),
        (httpx.ReadError("sent"), "the connection ended early; is it up?"),
        (OSError("sent"), "is it up?"),
    ],
)
def test_no_reason_quotes_what_was_sent(error: Exception, words: str) -> None:
    assert unreachable(error, "the archive").message == f"the archive gave no answer: {words}"


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
def test_an_answer_has_one_deadline_and_a_size(answer, code, reason):
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
