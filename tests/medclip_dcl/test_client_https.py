"""HTTPS with an authority of one's own, as hospitals have, and what a failed connection says."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from medclip_dcl.client import Client, main, unreachable
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import ConfigError, ServiceError
from medclip_hospital.dicomweb import DicomWeb
from medclip_sources.dicom_folder import read_dicomweb
from testing.dicomweb import StubArchive, stub_archive
from testing.hospital import radiograph
from testing.hub import Handler, served
from testing.orthanc import stub_answer
from testing.tls import HAS_OPENSSL, Certificates, make_certificates

needs_openssl = pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")


class Service(Handler):
    def do_POST(self) -> None:  # noqa: N802 (http.server's name)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, stub_answer())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "files")


@pytest.fixture(scope="module")
def archive(certificates: Certificates) -> Iterator[StubArchive]:
    with stub_archive(certificates.server_context()) as archive:
        yield archive


@pytest.fixture(scope="module")
def service(certificates: Certificates) -> Iterator[str]:
    with served(Service, certificates.server_context()) as url:
        yield url


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTPS_PROXY", "ALL_PROXY"):  # which are not used
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def classify(url: str, ca: Path | None) -> object:
    with Client(url, ca=ca) as client:
        return client.classify(b"image")


def listed(url: str, ca: Path | None) -> object:
    with DicomWeb(url, ca=ca, waits_s=()) as web:
        return web.images(["CR"])


def refusal(ask: Callable[..., object], url: str, ca: Path | None = None) -> ServiceError:
    with pytest.raises(ServiceError) as refused:
        ask(url, ca)
    return refused.value


@needs_openssl
def test_an_authority_is_trusted_once_it_is_named(
    archive: StubArchive, service: str, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ask, url in ((classify, service), (listed, archive.url)):
        for other in (None, certificates.stranger):
            said = refusal(ask, url, other)
            assert said.code == "certificate"
            for word in ("CERTIFICATE_VERIFY_FAILED", "`ca`", "SSL_CERT_FILE"):
                assert word in said.message
        ask(url, certificates.ca)
        with monkeypatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(certificates.ca))
            ask(url, None)
            patch.setenv("SSL_CERT_FILE", str(certificates.ca.with_name("none.pem")))
            with pytest.raises(ConfigError, match=r"none\.pem cannot be read as certificates"):
                ask(url, None)


@needs_openssl
def test_a_source_and_the_command_name_an_authority(
    archive: StubArchive,
    service: str,
    certificates: Certificates,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = SourceConfig(kind="dicomweb", archive=archive.url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(certificates.ca))
        assert read_dicomweb(tmp_path / "images", settings, Path).images == []

    image = tmp_path / "image.dcm"
    image.write_bytes(radiograph())
    words = ["classify", str(image), "--url", service]
    assert main(words) == 1
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert main([*words, "--ca", str(certificates.ca)]) == 0
    assert main([*words, "--ca", str(image)]) == 2
    assert "name a PEM file" in capsys.readouterr().err


@needs_openssl
def test_another_name_than_the_certificate_s_is_said(
    archive: StubArchive, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda _, *rest, **kw: look_up("127.0.0.1", *rest, **kw)
    )
    said = refusal(listed, archive.url.replace("127.0.0.1", "pacs.example"), certificates.ca)
    assert said.code == "certificate"
    assert "pacs.example" in said.message


@pytest.mark.parametrize("ask", [classify, listed])
def test_why_nobody_answered_is_said(
    ask: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    assert "the connection was refused" in refusal(ask, url).message
    assert (
        "the connection was refused" in refusal(ask, url.replace("127.0.0.1", "localhost")).message
    )
    with served(Handler) as plain:
        assert "TLS failed" in refusal(ask, plain.replace("http", "https")).message

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "name of its host is unknown" in refusal(ask, "http://pacs.example").message


def test_silence_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, timeout_s=0.2) as client,
            pytest.raises(ServiceError, match="time ran out"),
        ):
            client.model()
        web = DicomWeb(url, deadline_s=0.2, waits_s=())
        with web, pytest.raises(ServiceError, match="time ran out"):
            web.images(["CR"])


def test_what_is_unknown_is_named_by_its_type() -> None:
    said = unreachable(httpx.RemoteProtocolError("what it was sent"), "the archive")
    assert said.message == "the archive gave no answer: RemoteProtocolError; is it up?"
