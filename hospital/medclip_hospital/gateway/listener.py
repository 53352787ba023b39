"""C-STORE SCP: who may send what, and the one rule: durable, then acknowledged."""

import ipaddress
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable
from typing import Any

import pynetdicom
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    DigitalXRayImageStorageForPresentation,
)
from pynetdicom import dimse_messages, evt
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.data.dicom.metadata import SYNTAXES

from .connections import HANDSHAKE_S, PDU_BYTES, Entity, Server, calling_title, socket_of
from .journal import WAITING, Journal
from .monitoring import Monitor, write_fault, write_line
from .settings import MEBIBYTE, GatewaySettings, TlsFiles
from .spool import IncomingImage, Spool

ACCEPTED = (ComputedRadiographyImageStorage, DigitalXRayImageStorageForPresentation)
"""SOP classes that are received. What we send is not among them: it cannot come back."""

SUCCESS, NO_RESOURCES, MISMATCH, UNPROCESSABLE = 0x0000, 0xA700, 0xA900, 0xC001
_STATUS = {"new": SUCCESS, "known": SUCCESS, "mismatch": MISMATCH}
_REJECT = (0x01, 0x01, 0x03)  # permanent, by the service user: calling AE title not recognised


class Intake:
    """Entrance of images, from the network or by catch-up: spool first, then journal."""

    def __init__(
        self, settings: GatewaySettings, spool: Spool, journal: Journal, monitor: Monitor
    ) -> None:
        self._max_bytes = settings.max_bytes_mb * MEBIBYTE
        self._spool, self.journal, self.monitor = spool, journal, monitor

    def part(self) -> IncomingImage:
        """Begin an image."""
        return IncomingImage(self._spool, self._max_bytes)

    def accept(self, part: IncomingImage, image_uid: str, caller: str) -> int:
        """Make an image durable and give the status of C-STORE; the part is used up."""
        started = time.monotonic()
        outcome = part.failure or self._keep(part, image_uid, caller)
        part.close()
        self.monitor.received.labels(outcome).inc()
        taken_ms = round(1000 * (time.monotonic() - started), 1)
        write_line(
            "received", part.digest, caller=caller, outcome=outcome, bytes=part.size, ms=taken_ms
        )
        return _STATUS.get(outcome, NO_RESOURCES)

    def _keep(self, part: IncomingImage, image_uid: str, caller: str) -> str:
        try:
            if part.instance_uid() != image_uid:
                return "mismatch"  # else an image could stand in the way of another by its name
            state = self.journal.state(part.digest)
            is_here = self._spool.image(part.digest).exists()
            if state is not None and (is_here or state not in {*WAITING, "stuck"}):
                return "known"
            self._spool.keep(part)
            self.journal.add(part.digest, image_uid, caller)
        except (OSError, sqlite3.Error) as error:
            write_fault("disk", error)
            return "disk"
        return "new"


class Listener:
    """The running SCP; `wake` is called after every image."""

    def __init__(self, settings: GatewaySettings, intake: Intake, wake: Callable[[], None]) -> None:
        """Bind and listen; ConfigError where the address cannot be bound."""
        self._intake, self._wake = intake, wake
        self._networks = {
            title: [ipaddress.ip_network(address) for address in addresses]
            for title, addresses in settings.callers.items()
        }
        self._take_over_parts()
        entity = Entity(ae_title=settings.ae_title)
        entity.maximum_associations = settings.associations
        entity.maximum_pdu_size = PDU_BYTES
        entity.acse_timeout = HANDSHAKE_S
        entity.require_called_aet = True
        entity.require_calling_aet = list(settings.callers)
        entity.add_supported_context(Verification)
        for sop_class in ACCEPTED:
            entity.add_supported_context(sop_class, list(SYNTAXES))
        try:
            server = entity.make_server(
                (settings.host, settings.port),
                ssl_context=server_context(settings.tls) if settings.tls else None,
                evt_handlers=[
                    (evt.EVT_REQUESTED, self._on_requested),
                    (evt.EVT_REJECTED, self._on_rejected),
                    (evt.EVT_C_STORE, self._on_store),
                    (evt.EVT_CONN_CLOSE, self._on_close),
                ],
                server_class=Server,
                networks=[item for networks in self._networks.values() for item in networks],
                turned_away=self._note_rejection,
            )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{settings.host}:{settings.port} cannot be bound, or its TLS files not be read "
                f"({error.strerror}); choose others"
            ) from error
        assert isinstance(server, Server)
        self._server = server

    @property
    def port(self) -> int:
        """Port that is bound."""
        assert self._server.socket is not None
        return int(self._server.socket.getsockname()[1])

    def close(self) -> None:
        """Stop listening; associations are aborted."""
        self._server.close()

    def _take_over_parts(self) -> None:
        # pynetdicom would hold images in memory, or in a temporary file whose errors end its
        # thread without an answer and whose size nothing limits. Its file is replaced by ours.
        pynetdicom._config.STORE_RECV_CHUNKED_DATASET = True
        setattr(dimse_messages, "NamedTemporaryFile", lambda **_: self._intake.part())  # noqa: B010

    def _on_requested(self, event: evt.Event) -> None:
        address = ipaddress.ip_address(event.assoc.requestor.address)
        networks = self._networks.get(calling_title(event.assoc))
        if networks is not None and not any(address in network for network in networks):
            event.assoc.acse.send_reject(*_REJECT)
            self._on_rejected(event)
            event.assoc.kill()

    def _on_rejected(self, event: evt.Event) -> None:
        title = calling_title(event.assoc)
        self._note_rejection(title if title in self._networks else "unknown")

    def _note_rejection(self, caller: str = "none") -> None:
        self._intake.monitor.rejected.inc()
        write_line("rejected", caller=caller)

    def _on_store(self, event: evt.Event) -> int:
        part = event.request._dataset_file
        if not isinstance(part, IncomingImage):
            return UNPROCESSABLE
        uid, caller = str(event.request.AffectedSOPInstanceUID), event.assoc.requestor.ae_title
        status = self._intake.accept(part, uid, caller)
        self._wake()
        return status

    def _on_close(self, event: evt.Event) -> None:
        # pynetdicom does not close what it cannot shut down: a caller that is gone already.
        if connection := socket_of(event.assoc):
            connection.close()
        # What an association that was cut has sent of an image.
        message = event.assoc.dimse.message
        part = getattr(message, "_data_set_file", None)
        if isinstance(part, IncomingImage):
            part.close()
            write_line("cut", bytes=part.size)


class _LateHandshake(ssl.SSLContext):
    """Leaves the handshake to the connection's thread: pynetdicom would do it in the listener's.

    There one caller that connects and is silent would keep all others out.
    """

    def wrap_socket(self, sock: socket.socket, *_: Any, **__: Any) -> ssl.SSLSocket:
        return super().wrap_socket(sock, server_side=True, do_handshake_on_connect=False)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context of a listener that wants certificates of its callers."""
    return _loaded(_LateHandshake(ssl.PROTOCOL_TLS_SERVER), files)


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Make the context of a caller that shows its certificate."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _loaded(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    for path in (files.certificate, files.key, files.ca):
        if not path.is_file():
            raise ConfigError(f"TLS file {path} is missing; correct the setting")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    return context
