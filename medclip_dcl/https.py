"""HTTPS of the clients here: whose certificates are trusted, and why a connection failed."""

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx

from .errors import ConfigError, ServiceError

_REMEDIES: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLError, "TLS failed; does it speak TLS at this port?"),
    (ConnectionRefusedError, "the connection was refused; is it up, and is the port right?"),
    (socket.gaierror, "the name of its host is unknown; is the url right?"),
    (TimeoutError, "the time ran out; is it up, and does a firewall let this through?"),
    (httpx.TimeoutException, "the time ran out; is it up, and does a firewall let this through?"),
)


def trusted(ca: Path | None) -> ssl.SSLContext:
    """Trust the authorities of a PEM file.

    None: those that the variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's. ConfigError
    where a file has none.
    """
    try:
        return ssl.create_default_context(cafile=str(ca)) if ca else httpx.create_ssl_context()
    except OSError as error:  # an SSLError is one
        name = ca or os.environ.get("SSL_CERT_FILE")
        raise ConfigError(
            f"ca {name} cannot be read as certificates ({type(error).__name__}); name a PEM file"
        ) from error


def unreachable(error: Exception, whom: str) -> ServiceError:
    """Say why someone gave no answer, and what to do: `certificate` or `unreachable`."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ServiceError(
                "certificate",
                f"{whom} shows a certificate that is not trusted (CERTIFICATE_VERIFY_FAILED: "
                f"{cause.verify_message}); name its authority's PEM file as `ca` or in the "
                "variable SSL_CERT_FILE, or use the host name that it holds",
            )
    why = (line for kind, line in _REMEDIES for cause in causes if isinstance(cause, kind))
    reason = f"{type(error).__name__}; is it up?"
    return ServiceError("unreachable", f"{whom} gave no answer: {next(why, reason)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):  # of several addresses of a host
            for part in error.exceptions:
                yield from _causes(part)
        error = error.__cause__ or error.__context__
