"""Who may ask: API keys from a file, open pages, host names and addresses."""

import hashlib
import hmac
import ipaddress
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.types import Scope

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import read_keys

from .logging import log, state_of
from .settings import ServeSettings

_SHORTEST_KEY = 32
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # as the Host header writes the machine itself

STATIC = {file.name: file for file in (Path(__file__).parent / "static").glob("*.[cj]s*")}
"""Scripts and style sheet of the viewer, by name."""
_PAGE = ("/", *(f"/static/{name}" for name in STATIC))
OPEN_PATHS = frozenset((*_PAGE, "/health", "/ready", "/v1/health", "/v1/ready"))
"""Paths that need no key; every other one does, whether it exists or not."""


class ApiKeys:
    """The API keys of a file. A file that changes is read again; a bad one changes nothing.

    Only hashes are kept. What a request sends is compared with every one of them, in time that does
    not depend on the key. ConfigError where the file is readable by others, unreadable, or holds a
    short key.
    """

    is_current = True
    """Whether these are the keys that the file held when it last changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mark = file_mark(file)
        self._hashes = _read_hashes(file)

    def id_of(self, key: bytes) -> str | None:
        """Name a key by the first eight digits of its SHA-256; None where the file lacks it."""
        self._refresh()
        hashed = hashlib.sha256(key).digest()
        equal = [hmac.compare_digest(hashed, stored) for stored in self._hashes]
        return hashed.hex()[:8] if any(equal) else None  # all were compared

    def _refresh(self) -> None:
        mark = file_mark(self._file)
        if mark == self._mark:
            return
        self._mark = mark  # taken before the file is read: a change in between is seen again
        try:
            self._hashes = _read_hashes(self._file)
        except ConfigError as error:
            self.is_current = False
            log("keys_refused", logging.ERROR, reason=str(error))
        else:
            self.is_current = True
            log("keys_read", keys=len(self._hashes))


@dataclass(frozen=True)
class Auth:
    """The key check of every request."""

    keys: ApiKeys | None  # the known keys; None: none is asked for, on loopback alone
    hosts: frozenset[str]  # host names that may be asked for; empty: any

    def refusal(self, scope: Scope) -> str | None:
        """Return the code by which a request is refused, or leave its key's id in its state."""
        headers = scope["headers"]
        if not self._admits_host(headers):  # against DNS rebinding
            return "host_refused"
        if self.keys is None:
            return None if _came_over_loopback(scope) else "loopback_only"
        if scope["path"] in OPEN_PATHS:
            return None
        given = _given_keys(headers)
        key_id = self.keys.id_of(given[0]) if len(given) == 1 else None
        if key_id is None:
            return "unauthorized"
        state_of(scope).key_id = key_id
        return None

    def _admits_host(self, headers: list[tuple[bytes, bytes]]) -> bool:
        if not self.hosts:
            return True
        named = [value.decode("latin-1") for name, value in headers if name == b"host"]
        return len(named) == 1 and _plain_host(named[0]) in self.hosts


def read_auth(settings: ServeSettings) -> Auth:
    """Read the keys and host names that the settings name.

    ConfigError where there is neither a key nor permission to do without one, or the key file is
    readable by others, unreadable, or holds a short key.
    """
    if bool(settings.key_file) == settings.allow_anonymous:
        raise ConfigError("set exactly one of key_file and allow_anonymous: true")
    named = settings.allowed_hosts or (_LOOPBACK if settings.allow_anonymous else ())
    hosts = frozenset(map(_host_setting, named))
    if settings.allow_anonymous:
        return Auth(None, hosts)
    return Auth(ApiKeys(Path(settings.key_file)), hosts)


def is_loopback(host: str) -> bool:
    """Return whether an address that is to be bound is reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _came_over_loopback(scope: Scope) -> bool:
    """Whether the socket that took the connection has an address of this machine alone."""
    server = scope.get("server")
    return server is None or server[1] is None or is_loopback(server[0])  # None: a Unix socket


def _given_keys(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    given = [value for name, value in headers if name == b"x-api-key"]
    for name, value in headers:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            given.append(token.strip() if scheme.lower() == b"bearer" else b"")
    return given


def file_mark(file: Path) -> tuple[int, ...] | None:
    """Return device, inode, time, size and mode, which change when a file does; None: no file."""
    try:
        facts = file.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size, facts.st_mode


def _read_hashes(file: Path) -> tuple[bytes, ...]:
    if file.exists() and not file.is_file():  # to read a named pipe would wait for its writer
        raise ConfigError(f"key file {file} is no regular file; write the keys into one")
    keys = read_keys(file)
    if min(map(len, keys)) < _SHORTEST_KEY:
        raise ConfigError(f"key file {file} needs keys of at least {_SHORTEST_KEY} characters")
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


def _plain_host(host: str) -> str:
    """Write a host as every spelling of it: without port and final dot, in small letters."""
    if host.startswith("["):
        with suppress(ValueError):
            return f"[{ipaddress.IPv6Address(host[1:].partition(']')[0])}]"
    return host.partition(":")[0].lower().removesuffix(".")


def _host_setting(name: str) -> str:
    """Read an entry of `allowed_hosts` as clients send it; ConfigError where none can."""
    bare = name.strip()
    with suppress(ValueError):
        return f"[{ipaddress.IPv6Address(bare.strip('[]'))}]"
    try:
        plain = bare.encode("idna").decode() if not bare.isascii() else bare
    except UnicodeError:
        plain = ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", plain):
        raise ConfigError(
            f"allowed_hosts = {name!r} is not a host name; give it without scheme, port and path"
        )
    return _plain_host(plain)
