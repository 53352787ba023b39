from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.access import is_loopback, read_access
from api.app import create_app
from api.settings import ServeSettings
from medclip_dcl.errors import ConfigError

KEY = "k" * 20 + "0123456789abcdef"
OTHER = "o" * 40


def write_keys(folder: Path) -> Path:
    path = folder / "key"
    path.write_text(f"{KEY}\n{OTHER}\n")
    path.chmod(0o440)
    return path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_keys(tmp_path)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    path = write_keys(tmp_path_factory.mktemp("keys"))
    app = create_app(ServeSettings(model="nowhere", key_file=str(path), publish_schema=True))
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "path", ["/", "/static/viewer.js", "/static/viewer.css", "/health", "/v1/health"]
)
def test_page_and_health_are_open(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def test_ready_is_open_and_says_that_it_is_not(client: TestClient) -> None:
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["code"]) == (503, "loading")
    assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    "path",
    [
        "/model",
        "/v1/model",
        "/metrics",
        "/openapi.json",
        "/images/x",
        "/nowhere",
        "/docs",
        "/health/",
        "/Health",
        "/health%2f..%2fmodel",
        "/static/../model",
        "/static/secret",
        "/%2e%2e/model",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
def test_everything_else_asks_for_a_key(client: TestClient, method: str, path: str) -> None:
    answer = client.request(method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-API-Key": ""},
        {"X-API-Key": KEY[:-1]},
        {"X-API-Key": KEY + "x"},
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {KEY}", "X-API-Key": KEY},
    ],
)
def test_wrong_or_doubled_keys_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    assert client.get("/metrics", headers=headers).status_code == 401


def test_a_key_in_the_query_is_none(client: TestClient) -> None:
    assert client.get(f"/metrics?key={KEY}&X-API-Key={KEY}").status_code == 401


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_key_opens_by_either_header(client: TestClient, key: str) -> None:
    assert client.get("/metrics", headers={"X-API-Key": key}).status_code == 200
    assert client.get("/metrics", headers={"Authorization": f"bearer {key}"}).status_code == 200


def test_nothing_starts_without_key_or_permission(key_file: Path) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        create_app(ServeSettings(model="m"))
    with pytest.raises(ConfigError, match="exactly one"):
        create_app(ServeSettings(model="m", key_file=str(key_file), allow_anonymous=True))


@pytest.mark.parametrize("mode", [0o444, 0o446, 0o460, 0o404])
def test_a_key_file_that_others_can_read_or_change_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod"):
        read_access(ServeSettings(model="m", key_file=str(key_file)))


@pytest.mark.parametrize("text", ["", "short\n", f"{KEY}\nshort\n", "schlüssel" * 5])
def test_short_or_unreadable_keys_are_refused(key_file: Path, text: str) -> None:
    key_file.chmod(0o600)
    key_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="key file") as refusal:
        read_access(ServeSettings(model="m", key_file=str(key_file)))
    assert KEY not in str(refusal.value)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_access(ServeSettings(model="m", key_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        (b"127.0.0.1:8000", True),
        (b"localhost", True),
        (b"[::1]:8000", True),
        (b"evil.example", False),
        (b"127.0.0.1.evil.example:8000", False),
        (b"", False),
    ],
)
def test_anonymous_requests_must_ask_for_this_machine(host: bytes, admitted: bool) -> None:
    access = read_access(ServeSettings(model="m", allow_anonymous=True))
    assert access.admits_host([(b"host", host)]) is admitted


@pytest.mark.parametrize("path", ["//health", "/health/", "/static/", "/static/index.html", ""])
def test_paths_that_only_look_open_are_not(key_file: Path, path: str) -> None:
    access = read_access(ServeSettings(model="m", key_file=str(key_file)))
    assert access.admits("/health", [])
    assert not access.admits(path, [])


def test_loopback_is_this_machine_alone() -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.168.0.2")
