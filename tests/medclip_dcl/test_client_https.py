"""HTTPS with an authority of one's own, as hospitals have, and what a failed connection says."""

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from medclip_dcl.client import Client, main, unreachable
from medclip_dcl.core.errors import ConfigError, ServiceError
from tests.support.hub import Handler, served
from tests.support.stub_service import stub_service
from tests.support.tls import HAS_OPENSSL, Certificates, make_certificates

needs_openssl = pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module")
def service(certificates: Certificates) -> Iterator[str]:
    with stub_service(tls=certificates.server_context()) as stub:
        yield stub.url


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "ALL_PROXY"):  # which are not used
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def classify(url: str, ca: Path | None, timeout_s: float = 60) -> object:
    with Client(url, ca=ca, timeout_s=timeout_s) as client:
        return client.classify(b"image")


def refusal(url: str, ca: Path | None = None, timeout_s: float = 60) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        classify(url, ca, timeout_s)
    return refused.value


@needs_openssl
def test_an_authority_is_trusted_once_it_is_named(service, certificates, monkeypatch):
    for other in (None, certificates.stranger):
        error = refusal(service, other)
        assert error.code == "certificate"
        for word in ("CERTIFICATE_VERIFY_FAILED", "`ca`", "SSL_CERT_FILE"):
            assert word in error.message
    classify(service, certificates.ca)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))
    classify(service, None)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca.with_name("none.pem")))
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read as certificates"):
        classify(service, None)


@needs_openssl
def test_the_command_names_an_authority(service, certificates, tmp_path, capsys):
    image = tmp_path / "image.png"
    image.write_bytes(b"image")
    words = ["classify", str(image), "--url", service]
    assert main(words) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert main([*words, "--ca", str(certificates.ca)]) == 0
    assert main([*words, "--ca", str(image)]) == 2
    assert "name a PEM file" in capsys.readouterr().err


@needs_openssl
def test_another_name_than_the_certificate_s_is_said(service, certificates, monkeypatch):
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **kw: look_up("127.0.0.1", *rest, **kw)
    )
    error = refusal(service.replace("127.0.0.1", "ai.example"), certificates.ca)
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
