"""Connections until they are associations: pynetdicom trusts them more than a network should.

It counts a connection that has said nothing as an association, waits for the rest of a PDU without
end, and takes as much memory as a PDU announces. Here a connection is handed to it once a request
for an association is whole: from a known address, of a bounded size, within a time.
"""

import socket
import ssl
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address
from socketserver import BaseServer
from typing import Any

from pynetdicom import AE, evt
from pynetdicom.association import Association
from pynetdicom.transport import AssociationSocket, RequestHandler, ThreadedAssociationServer

Networks = Sequence[IPv4Network | IPv6Network]

PENDING = 32
"""Connections without an association, of up to two threads each; one more ends the oldest of the
address that has most."""
PDU_BYTES = 1 << 20
"""Largest PDU that is negotiated."""
HANDSHAKE_S, PDU_S = 15.0, 60.0
"""Time for TLS, and for the request after it; and for a PDU of an association."""

_REQUEST = 0x01
_HEAD_BYTES = 6  # type, a reserved byte, length
_REQUEST_BYTES = 1 << 18  # 128 contexts, each with every transfer syntax that there is, take less
_SLACK = _HEAD_BYTES  # some senders leave the head out of the largest length


def calling_title(association: Association) -> str:
    """Return the title under which an association was asked for; empty: none was yet."""
    request = association.requestor.primitive
    return request.calling_ae_title if request else ""


def socket_of(association: Association) -> socket.socket | None:
    """Return the socket of an association, where it still has one."""
    connection = association.dul.socket
    return connection.socket if connection else None


class Entity(AE):
    """An application entity that counts what was asked for under a known title, and no more."""

    @property
    def active_associations(self) -> list[Association]:
        """Associations that count against `maximum_associations`."""
        titles = self.require_calling_aet
        return [
            item
            for item in super().active_associations
            if calling_title(item) in titles and not item.is_rejected
        ]


class Server(ThreadedAssociationServer):
    """The listener; `turned_away` is called for each connection that does not come to a request."""

    daemon_threads = True
    request_queue_size = PENDING

    def __init__(
        self, *words: Any, networks: Networks, turned_away: Callable[[], None], **given: Any
    ) -> None:
        self._networks, self._turned_away = networks, turned_away
        self._pending: weakref.WeakKeyDictionary[socket.socket, str] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        super().__init__(*words, **{**given, "request_handler": _Handler})
        self.bind(evt.EVT_ESTABLISHED, self._on_established)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end every connection."""
        BaseServer.shutdown(self)
        self.server_close()
        with self._lock:
            ended = list(self._pending)
        for connection in (*ended, *map(socket_of, self.active_associations)):
            if connection is not None:
                _end(connection)

    def verify_request(self, _request: Any, client_address: Any) -> bool:
        """Whether some caller may send from an address."""
        address = ip_address(client_address[0])
        is_known = any(address in network for network in self._networks)
        if not is_known:
            self._turned_away()
        return is_known

    def process_request(self, request: Any, client_address: Any) -> None:
        """Read from a connection in a thread of its own; where too many wait, end one of them."""
        with self._lock:
            self._pending[request] = client_address[0]
            waiting = [item for item in self._pending.items() if item[0].fileno() >= 0]
        if len(waiting) > PENDING:
            # The oldest: a sender's request takes milliseconds, whoever waits longer sends none.
            ((most, _),) = Counter(address for _, address in waiting).most_common(1)
            _end(next(item for item, address in waiting if address == most))
        super().process_request(request, client_address)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Count a connection that ended, or took too long, before its request was whole."""
        self._turned_away()

    def _on_established(self, event: evt.Event) -> None:
        connection = socket_of(event.assoc)
        if connection is not None:
            with self._lock:
                self._pending.pop(connection, None)


class _Handler(RequestHandler):
    def handle(self) -> None:
        # An exception closes the connection, and goes to `Server.handle_error`.
        connection: socket.socket = self.request
        connection.settimeout(HANDSHAKE_S)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        head = _read(connection, _HEAD_BYTES, HANDSHAKE_S)
        size = int.from_bytes(head[2:], "big")
        if head[0] != _REQUEST or size > _REQUEST_BYTES:
            raise ConnectionAbortedError
        self._begun = head + _read(connection, size, HANDSHAKE_S)
        super().handle()

    def _create_association(self) -> Association:
        association = super()._create_association()
        association.dul.event_queue.get_nowait()  # "connected", which the next line says again
        association.dul.socket = _Connection(association, self.request, self._begun)
        return association


class _Connection(AssociationSocket):
    """Yields what was read of a connection already, then PDUs of a bounded size within a time."""

    def __init__(
        self, association: Association, connection: socket.socket, first_bytes: bytearray
    ) -> None:
        super().__init__(association, client_socket=connection)
        self._first_bytes = first_bytes

    @property
    def ready(self) -> bool:
        """Whether there is something to read."""
        return bool(self._first_bytes) or super().ready

    def recv(self, nr_bytes: int) -> bytearray:
        """Read exactly so many bytes; OSError, which ends the association, where they are many."""
        if self._first_bytes:
            start, self._first_bytes = self._first_bytes[:nr_bytes], self._first_bytes[nr_bytes:]
            return start
        # Of a message pynetdicom keeps the command, and data that are no image, in memory.
        message = self.assoc.dimse.message
        parts = (message.encoded_command_set, message.data_set) if message else ()
        held = sum(part.getbuffer().nbytes for part in parts if part)
        if self.socket is None or nr_bytes > PDU_BYTES + _SLACK or held > PDU_BYTES:
            raise ConnectionAbortedError
        limit_s = PDU_S if self.assoc.is_established else HANDSHAKE_S
        return _read(self.socket, nr_bytes, limit_s)


def _read(connection: socket.socket, size: int, limit_s: float) -> bytearray:
    """Read exactly `size` bytes; OSError where they do not come within the time."""
    end = time.monotonic() + limit_s
    data = bytearray()
    try:
        while len(data) < size:
            connection.settimeout(max(end - time.monotonic(), 0.001))
            part = connection.recv(min(size - len(data), 1 << 16))
            if not part:
                raise ConnectionResetError
            data += part
    finally:
        connection.settimeout(PDU_S)  # of an answer
    return data


def _end(connection: socket.socket) -> None:
    """Wake whoever reads from a connection: there is nothing more."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
