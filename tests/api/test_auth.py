import hashlib
import logging
import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import Scope

from api.app import create_app
from api.auth import read_auth
from api.logging import RequestState, state_of
from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError

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


@pytest.mark.parametrize("key", [KEY, OTHER])
def test_each_key_opens_by_either_header(client: TestClient, key: str) -> None:
    named = {"X-API-Key": key, "X-Request-ID": "a"}
    assert client.get("/metrics", headers=named).status_code == 200
    assert client.get("/metrics", headers={"Authorization": f"bearer {key}"}).status_code == 200
    assert client.get("/metrics", headers={"Authorization": f"Basic {key}"}).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/classify", "/model"])
def test_no_other_origin_is_let_in(client: TestClient, path: str) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET", "POST"):
        answer = client.request(method, path, headers={**asked, "X-API-Key": KEY})
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_nothing_starts_without_key_or_permission(key_file: Path) -> None:
    with pytest.raises(ConfigError, match="exactly one"):
        create_app(ServeSettings(model="m"))
    with pytest.raises(ConfigError, match="exactly one"):
        create_app(ServeSettings(model="m", key_file=str(key_file), allow_anonymous=True))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_auth(ServeSettings(model="m", key_file=f"{key_file}.none"))


@pytest.mark.parametrize("mode", [0o444, 0o446, 0o460, 0o404])
def test_a_key_file_that_others_can_read_or_change_is_refused(key_file: Path, mode: int) -> None:
    key_file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod"):
        read_auth(ServeSettings(model="m", key_file=str(key_file)))


@pytest.mark.parametrize("text", ["", "k" * 31, f"{KEY}\nshort\n", "schlüssel" * 5])
def test_short_or_unreadable_keys_are_refused(key_file: Path, text: str) -> None:
    key_file.chmod(0o600)
    key_file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="key file") as refusal:
        read_auth(ServeSettings(model="m", key_file=str(key_file)))
    assert KEY not in str(refusal.value)


def scope(path: str = "/model", server: object = ("127.0.0.1", 8000), **headers: str) -> Scope:
    named = {"host": "localhost:8000"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    pairs = [(name.encode(), text.encode()) for name, text in named.items()]
    return {
        "type": "http",
        "path": path,
        "server": server,
        "headers": pairs,
        "state": {"request": RequestState("id")},
    }


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("127.0.0.1:8000", True),
        ("localhost", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:8000", False),
        ("", False),
    ],
)
def test_anonymous_requests_must_ask_for_this_machine(host: str, admitted: bool) -> None:
    auth = read_auth(ServeSettings(model="m", allow_anonymous=True))
    assert auth.refusal(scope(host=host)) == (None if admitted else "host_refused")


def test_with_keys_hosts_are_checked_where_they_are_named(key_file: Path) -> None:
    named = ("cxr.example", "[2001:db8::1]")
    auth = read_auth(ServeSettings(model="m", key_file=str(key_file), allowed_hosts=named))
    for host in ("cxr.example", "cxr.example:443", "[2001:db8::1]:443", "[2001:db8::1]"):
        assert auth.refusal(scope(host=host, x_api_key=KEY)) is None
        assert auth.refusal(scope(host=host)) == "unauthorized"
    for host in ("localhost", "127.0.0.1:8000", "[2001:db8::2]:443", "example"):
        assert auth.refusal(scope(host=host, x_api_key=KEY)) == "host_refused"
        assert auth.refusal(scope("/health", host=host)) == "host_refused"
    twice, without = scope(host="cxr.example"), scope()
    twice["headers"] *= 2
    without["headers"] = []
    assert auth.refusal(twice) == auth.refusal(without) == "host_refused"
    anyhow = read_auth(ServeSettings(model="m", key_file=str(key_file)))
    assert anyhow.refusal(scope(host="evil.example", x_api_key=KEY)) is None


@pytest.mark.parametrize(
    ("setting", "asked"),
    [
        ("Radio.Klinik.Example", ("radio.klinik.example", "RADIO.KLINIK.EXAMPLE.:8000")),
        ("radio.klinik.example.", ("Radio.Klinik.Example:443", "radio.klinik.example.")),
        ("Röntgen.Klinik.Example", ("xn--rntgen-wxa.klinik.example:8000",)),
        ("LOCALHOST", ("localhost", "LocalHost:1")),
        ("::1", ("[::1]:8000", "[0:0:0:0:0:0:0:1]")),
        ("[2001:DB8::1]", ("[2001:db8::1]", "[2001:db8:0::1]:443")),
    ],
)
def test_a_host_is_the_same_in_every_spelling(setting: str, asked: tuple[str, ...]) -> None:
    auth = read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=(setting,)))
    for host in asked:
        assert auth.refusal(scope(host=host)) is None
    for host in ("klinik.example", "radio.klinik.example.evil", "[::2]", "", "."):
        assert auth.refusal(scope(host=host)) == "host_refused"


@pytest.mark.parametrize("name", ["a.example:8000", "http://a.example", "a/b", "", "a b", "*"])
def test_a_host_setting_that_no_request_can_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name; give it without scheme, port"):
        read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=(name,)))


@pytest.mark.parametrize(
    ("server", "admitted"),
    [
        (None, True),
        (("127.0.0.1", 8000), True),
        (("::1", 8000), True),
        (("/run/service.sock", None), True),
        (("192.168.0.2", 8000), False),
        (("0.0.0.0", 8000), False),
        (("127.8.8.8", 8000), True),
        (("localhost.evil.example", 8000), False),
        (("fe80::1", 8000), False),
    ],
)
def test_anonymous_requests_are_answered_on_loopback_whoever_started_the_service(server, admitted):
    auth = read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=()))
    assert auth.refusal(scope(server=server)) == (None if admitted else "loopback_only")


def test_a_key_leaves_its_id_and_no_more(key_file: Path) -> None:
    auth = read_auth(ServeSettings(model="m", key_file=str(key_file)))
    asked = scope(x_api_key=KEY)
    assert auth.refusal(asked) is None
    assert state_of(asked) == RequestState(
        "id", key_id=hashlib.sha256(KEY.encode()).hexdigest()[:8]
    )
    assert KEY not in repr(vars(auth.keys))


def rewrite(path: Path, text: str, mode: int = 0o400) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(mode)
    fresh.replace(path)


def test_keys_are_exchanged_without_a_restart(key_file, caplog):
    caplog.set_level(logging.INFO)
    auth = read_auth(ServeSettings(model="m", key_file=str(key_file)))
    newest = "n" * 32
    assert auth.refusal(scope(x_api_key=newest)) == "unauthorized"
    rewrite(key_file, f"{OTHER}\n{newest}\n")
    assert auth.refusal(scope(x_api_key=newest)) is None
    assert auth.refusal(scope(x_api_key=OTHER)) is None
    assert auth.refusal(scope(x_api_key=KEY)) == "unauthorized"
    assert [record.msg for record in caplog.records] == ["keys_read"]
    for mtime_s in (2**31, 1):  # a restored file may be older
        key_file.chmod(0o600)
        key_file.write_text(f"{KEY[::-1]}\n{mtime_s:040d}\n")
        os.utime(key_file, (mtime_s, mtime_s))
        assert auth.refusal(scope(x_api_key=KEY[::-1])) is None
        assert auth.refusal(scope(x_api_key=f"{mtime_s:040d}")) is None
        assert auth.refusal(scope(x_api_key=newest)) == "unauthorized"


@pytest.mark.parametrize(
    ("text", "mode"), [("", 0o400), ("short", 0o400), ("n" * 32, 0o444), (None, 0)]
)
def test_a_bad_change_leaves_the_keys_as_they_were_and_is_logged(key_file, caplog, text, mode):
    auth = read_auth(ServeSettings(model="m", key_file=str(key_file)))
    if text is None:
        key_file.unlink()
    else:
        rewrite(key_file, text, mode)
    for _ in range(2):
        assert auth.refusal(scope(x_api_key=KEY)) is None
        assert auth.refusal(scope(x_api_key="n" * 32)) == "unauthorized"
    assert [record.msg for record in caplog.records] == ["keys_refused"]  # once, not per request


def test_keys_that_a_gone_file_leaves_valid_show_in_a_metric(tmp_path: Path) -> None:
    path = write_keys(tmp_path)
    client = TestClient(create_app(ServeSettings(model="none", key_file=str(path))))
    named = {"X-API-Key": KEY}
    assert "medclip_keys_current 1.0" in client.get("/metrics", headers=named).text
    path.unlink()
    assert "medclip_keys_current 0.0" in client.get("/metrics", headers=named).text
    write_keys(tmp_path)
    assert "medclip_keys_current 1.0" in client.get("/metrics", headers=named).text


def test_a_named_pipe_in_place_of_the_key_file_is_refused_unread(tmp_path: Path) -> None:
    path = write_keys(tmp_path)
    auth = read_auth(ServeSettings(model="m", key_file=str(path)))
    path.unlink()
    os.mkfifo(path, 0o400)
    assert auth.refusal(scope(x_api_key=KEY)) is None
    with pytest.raises(ConfigError, match="no regular file"):
        read_auth(ServeSettings(model="m", key_file=str(path)))


def test_comments_and_blank_lines_are_no_keys(key_file: Path) -> None:
    comment = "# this is a comment of 32 characters or more"
    rewrite(key_file, f"{comment}\n\n {KEY} \n  {comment}\n")
    auth = read_auth(ServeSettings(model="m", key_file=str(key_file)))
    assert auth.refusal(scope(x_api_key=comment)) == "unauthorized"
    assert auth.refusal(scope(x_api_key=KEY)) is None
    rewrite(key_file, f"{comment}\n")
    with pytest.raises(ConfigError, match="no key"):
        read_auth(ServeSettings(model="m", key_file=str(key_file)))


def test_ready_is_open_and_says_that_it_is_not(client: TestClient) -> None:
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["code"]) == (503, "loading")
    assert answer.headers["retry-after"]
