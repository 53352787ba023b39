import hashlib
import logging
import os
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from starlette.types import Scope

from api.app import create_app
from api.auth import Auth, read_auth
from api.logging import RequestState, state_of
from api.settings import ServeSettings
from medclip_dcl.core.errors import ConfigError
from tests.support.wire import KEY

OTHER = "o" * 40


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    change(path, f"{KEY}\n{OTHER}\n", 0o440)
    return path


def test_nothing_starts_without_key_or_permission(key_file: Path) -> None:
    for more in ({}, {"key_file": str(key_file), "allow_anonymous": True}):
        with pytest.raises(ConfigError, match="exactly one"):
            create_app(ServeSettings(model="m", **more))


@pytest.mark.parametrize(
    ("text", "mode", "rule"),
    [
        *((KEY, mode, "chmod") for mode in (0o444, 0o446, 0o460, 0o404)),
        *((text, 0o600, "key file") for text in ("", "k" * 31, f"{KEY}\nshort\n", "schlüssel" * 5)),
        ("# this is a comment of 32 characters or more", 0o400, "no key"),
        (None, 0, "cannot be read"),
    ],
)
def test_a_key_file_that_others_can_use_or_that_has_no_good_key_is_refused(
    key_file: Path, text: str | None, mode: int, rule: str
) -> None:
    change(key_file, text, mode)
    with pytest.raises(ConfigError, match=rule) as refusal:
        keyed(key_file)
    assert KEY not in str(refusal.value)


def keyed(key_file: Path, **more: object) -> Auth:
    return read_auth(ServeSettings(model="m", key_file=str(key_file), **more))


def change(path: Path, text: str | None, mode: int = 0o400) -> None:
    """Rename another file into the place of one; without a text there is none."""
    if text is None:
        path.unlink()
        return
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)


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


LOOPBACK = ("localhost", "127.0.0.1:8000", "[::1]:8000")
STRANGE = ("evil.example", "127.0.0.1.evil.example:8000", "klinik.example", "[::2]", "", ".")


@pytest.mark.parametrize(
    ("named", "admitted", "others"),
    [
        ((), LOOPBACK, ()),
        (("cxr.example",), ("cxr.example", "cxr.example:443"), ("example", *LOOPBACK)),
        (
            ("Radio.A.Example",),
            ("radio.a.example", "RADIO.A.EXAMPLE.:8000"),
            ("radio.a.example.b",),
        ),
        (("radio.a.example.",), ("Radio.A.Example:443", "radio.a.example."), ()),
        (("Röntgen.A.Example",), ("xn--rntgen-wxa.a.example:8000",), ()),
        (("LOCALHOST",), ("localhost", "LocalHost:1"), ("127.0.0.1",)),
        (("::1",), ("[::1]:8000", "[0:0:0:0:0:0:0:1]"), ("localhost",)),
        (("[2001:DB8::1]",), ("[2001:db8::1]", "[2001:db8:0::1]:443"), ("[2001:db8::2]:443",)),
    ],
)
def test_a_host_is_the_same_in_every_spelling_and_no_other_is_admitted(
    key_file: Path, named: tuple[str, ...], admitted: tuple[str, ...], others: tuple[str, ...]
) -> None:
    auth = read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=named))
    with_key = keyed(key_file, allowed_hosts=named)
    for host in admitted:
        assert auth.refusal(scope(host=host)) is None
    for host in (*STRANGE, *others):
        assert auth.refusal(scope(host=host)) == "host_refused"
        if named:
            assert with_key.refusal(scope("/health", host=host, x_api_key=KEY)) == "host_refused"


def test_a_host_is_named_once_and_with_keys_any_will_do_unless_some_are_named(key_file):
    auth = keyed(key_file, allowed_hosts=("cxr.example",))
    assert auth.refusal(scope(host="cxr.example", x_api_key=KEY)) is None
    assert auth.refusal(scope(host="cxr.example")) == "unauthorized"
    assert auth.refusal(scope(host="localhost", x_api_key=KEY)) == "host_refused"
    twice, without = scope(host="cxr.example"), scope()
    twice["headers"] *= 2
    without["headers"] = []
    assert auth.refusal(twice) == auth.refusal(without) == "host_refused"
    assert keyed(key_file).refusal(scope(host="evil.example", x_api_key=KEY)) is None


@pytest.mark.parametrize("name", ["a.example:8000", "http://a.example", "a/b", "", "a b", "*"])
def test_a_host_setting_that_no_request_can_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name; give it without scheme, port"):
        read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=(name,)))


def test_anonymous_requests_are_answered_on_loopback_whoever_started_the_service() -> None:
    auth = read_auth(ServeSettings(model="m", allow_anonymous=True, allowed_hosts=()))
    for server in (None, ("127.0.0.1", 80), ("127.8.8.8", 80), ("::1", 80), ("/run/a.sock", None)):
        assert auth.refusal(scope(server=server)) is None
    for address in ("192.168.0.2", "0.0.0.0", "localhost.evil.example", "fe80::1"):
        assert auth.refusal(scope(server=(address, 8000))) == "loopback_only"


def test_a_key_leaves_its_id_and_no_more(key_file: Path) -> None:
    auth = keyed(key_file)
    asked = scope(x_api_key=KEY)
    assert auth.refusal(asked) is None
    assert state_of(asked) == RequestState(
        "id", key_id=hashlib.sha256(KEY.encode()).hexdigest()[:8]
    )
    assert KEY not in repr(vars(auth.keys))


def test_keys_are_exchanged_without_a_restart(key_file, caplog):
    caplog.set_level(logging.INFO)
    auth = keyed(key_file)
    newest = "n" * 32
    assert auth.refusal(scope(x_api_key=newest)) == "unauthorized"
    change(key_file, f"{OTHER}\n{newest}\n")
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
    ("text", "mode"), [("", 0o400), ("short", 0o400), ("n" * 32, 0o444), (None, 0), (None, 0o400)]
)
def test_a_bad_change_leaves_the_keys_as_they_were_and_is_logged(key_file, caplog, text, mode):
    auth = keyed(key_file)
    change(key_file, text, mode)
    if text is None and mode:  # a named pipe, which would wait for its writer
        os.mkfifo(key_file, mode)
        with pytest.raises(ConfigError, match="no regular file"):
            keyed(key_file)
    for _ in range(2):
        assert auth.refusal(scope(x_api_key=KEY)) is None
        assert auth.refusal(scope(x_api_key="n" * 32)) == "unauthorized"
    assert [record.msg for record in caplog.records] == ["keys_refused"]  # once, not per request


def test_keys_that_a_gone_file_leaves_valid_show_in_a_metric(key_file: Path) -> None:
    client = TestClient(create_app(ServeSettings(model="none", key_file=str(key_file))))
    for text, is_current in ((OTHER, 1), (None, 0), (KEY, 1)):
        change(key_file, text)
        figures = client.get("/metrics", headers={"X-API-Key": KEY if text == KEY else OTHER}).text
        assert f"medclip_keys_current {is_current}.0" in figures


def test_comments_and_blank_lines_are_no_keys(key_file: Path) -> None:
    comment = "# this is a comment of 32 characters or more"
    change(key_file, f"{comment}\n\n {KEY} \n  {comment}\n")
    auth = keyed(key_file)
    assert auth.refusal(scope(x_api_key=comment)) == "unauthorized"
    assert auth.refusal(scope(x_api_key=KEY)) is None
