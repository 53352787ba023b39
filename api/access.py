"""Who may ask: API keys from a file, open pages, and host names."""

import hashlib
import hmac
import stat
from dataclasses import dataclass
from pathlib import Path

from api.settings import ServeSettings
from medclip_dcl.errors import ConfigError

SHORTEST_KEY = 32
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""Host names of the machine itself, as the Host header writes them."""

OPEN_PATHS = frozenset(
    {
        path if prefix == "" else f"{prefix}{path}"
        for prefix in ("", "/v1")
        for path in ("/health", "/ready")
    }
    | {"/", "/static/viewer.js", "/static/viewer.css"}
)
"""Paths that need no key; every other one does, whether it exists or not."""


@dataclass(frozen=True)
class Access:
    """What a request must bring.

    Attributes:
        key_hashes: SHA-256 of each key; empty: no key is asked for.
        hosts: host names that may be asked for; empty: any.
    """

    key_hashes: tuple[bytes, ...]
    hosts: frozenset[str]

    def admits_host(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Say whether the Host header names this service, against DNS rebinding.

        Args:
            headers: of the request, names in lower case.

        Returns:
            Whether it does.
        """
        if not self.hosts:
            return True
        named = [value.decode("latin-1") for name, value in headers if name == b"host"]
        return len(named) == 1 and _without_port(named[0]) in self.hosts

    def admits(self, path: str, headers: list[tuple[bytes, bytes]]) -> bool:
        """Say whether a request may go on, in time that does not depend on the key.

        Args:
            path: its path, percent-decoded.
            headers: its headers, names in lower case.

        Returns:
            Whether the path is open, no key is asked for, or the one that was sent is right.
        """
        if not self.key_hashes or path in OPEN_PATHS:
            return True
        given = [value for name, value in headers if name == b"x-api-key"]
        for name, value in headers:
            if name == b"authorization":
                scheme, _, token = value.partition(b" ")
                given.append(token.strip() if scheme.lower() == b"bearer" else b"")
        if len(given) != 1:
            return False
        hashed = hashlib.sha256(given[0]).digest()
        equal = [hmac.compare_digest(hashed, known) for known in self.key_hashes]
        return any(equal)  # all were compared: the time tells nothing


def read_access(settings: ServeSettings) -> Access:
    """Read the keys and host names that the settings name.

    Args:
        settings: of the service.

    Returns:
        What a request must bring.

    Raises:
        ConfigError: there is neither a key nor permission to do without one, or the
            key file is readable by others, unreadable, or holds a short key.
    """
    if bool(settings.key_file) == settings.allow_anonymous:
        raise ConfigError("set exactly one of key_file and allow_anonymous: true")
    hosts = frozenset(settings.allowed_hosts or (LOOPBACK if settings.allow_anonymous else ()))
    if settings.allow_anonymous:
        return Access((), hosts)
    return Access(_read_keys(Path(settings.key_file)), hosts)


def is_loopback(host: str) -> bool:
    """Say whether an address is reachable from this machine alone.

    Args:
        host: address that is to be bound.

    Returns:
        Whether it is one of the loopback names.
    """
    return host in {"127.0.0.1", "localhost", "::1"}


def _read_keys(file: Path) -> tuple[bytes, ...]:
    try:
        mode = file.stat().st_mode
        keys = file.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = type(error).__name__
        raise ConfigError(
            f"key file {file} cannot be read ({reason}); give an ASCII file"
        ) from error
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise ConfigError(f"key file {file} is open to others; run chmod 440 on it")
    if not keys or min(map(len, keys)) < SHORTEST_KEY:
        raise ConfigError(f"key file {file} needs keys of at least {SHORTEST_KEY} characters")
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
