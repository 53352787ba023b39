"""TLS in front of the service, as the pages have it: a real nginx with a private authority."""

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ServiceError
from tests.support.processes import ROOT, free_port, listens
from tests.support.stub_service import stub_service
from tests.support.tls import HAS_OPENSSL, Certificates, make_certificates

SITE = (ROOT / "docker/systemd/nginx.conf").read_text()
PROXY = (ROOT / "docker/nginx.conf").read_text()
PAGE = (ROOT / "docs/deployment.md").read_text()

pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None or not HAS_OPENSSL, reason="not installed: nginx, openssl"
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls") / "files")


def adapted(text: str, certificates: Certificates, folder: Path, port: int, service: str) -> str:
    """A configuration with the files, folders and addresses of a test."""
    text = text.replace("/tmp/", f"{folder}/")
    text = re.sub(r"(ssl_certificate) \S+;", rf"\1 {certificates.server};", text)
    text = re.sub(r"(ssl_certificate_key) \S+;", rf"\1 {certificates.server_key};", text)
    text = re.sub(r"listen (443|8443) ", f"listen 127.0.0.1:{port} ", text)
    text = re.sub(r"listen (\[::\]:443|8080)[^;]*;", "", text)
    return re.sub(r"http://(127\.0\.0\.1|\$service):8000", service, text)


@contextmanager
def nginx(folder: Path, text: str, port: int) -> Iterator[None]:
    file = folder / "nginx.conf"
    (folder / "resolver.conf").touch()
    file.write_text(text)
    words = ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(file), "-g", "daemon off;"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            if listens(port):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.communicate()


def configurations() -> dict[str, str]:
    folders = "".join(
        f"{name}_temp_path /tmp/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    site = f"pid /tmp/pid; events {{}} http {{ {folders} {SITE} }}"
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    line = "listen 8080 default_server;\n"
    assert line in PROXY
    return {"systemd": site, "containers": PROXY.replace(line, line + block)}


@pytest.mark.parametrize("page", ["systemd", "containers"])
def test_the_page_s_configuration_answers_by_tls(page, tmp_path, certificates):
    port = free_port()
    with stub_service() as service:
        text = adapted(configurations()[page], certificates, tmp_path, port, service.url)
        with nginx(tmp_path, text, port):
            url = f"https://localhost:{port}"
            with Client(url, ca=certificates.ca) as client:
                assert client.classify(bytes(3 << 20)).findings
            with Client(url) as client, pytest.raises(ServiceError) as refused:
                client.classify(b"image")
            assert refused.value.code == "certificate"
            plain = Client(url.replace("https", "http"))
            with plain, pytest.raises(ServiceError, match="status 400"):
                plain.classify(b"image")
    (body, *_) = service.bodies
    assert len(body) > 3 << 20


def test_both_proxies_have_the_same_limits() -> None:
    names = (
        *("client_header_timeout", "client_body_timeout", "send_timeout", "keepalive_timeout"),
        *("client_max_body_size", "large_client_header_buffers", "proxy_request_buffering"),
        *("proxy_max_temp_file_size", "proxy_connect_timeout", "proxy_send_timeout"),
        *("proxy_read_timeout", "access_log", "error_log", "server_tokens"),
    )
    for name in names:
        of_site, of_proxy = (re.findall(rf"^\s*{name} ([^;]+);", t, re.M) for t in (SITE, PROXY))
        assert of_site == of_proxy != [], name
