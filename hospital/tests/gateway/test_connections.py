"""Connections that say nothing, or too much: known senders get in all the same."""

import socket
import struct
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from pynetdicom import AE

from hospital.tests.support.orthanc import gateway_settings, radiograph, send, tls_files, wait_until
from medclip_hospital.gateway import connections, launcher
from medclip_hospital.gateway.listener import client_context
from tests.support.tls import HAS_OPENSSL

CR, LITTLE = "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.1.2.1"
REQUEST, ACCEPT, DATA = 1, 2, 4
"""Types of PDUs."""


@contextmanager
def running(folder: Path, service, **given):
    settings = gateway_settings(folder, service.url, views=["none"], **given)
    with launcher.started(settings) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory, service):
    with running(tmp_path_factory.mktemp("gateway"), service) as gateway:
        yield gateway


def connect(port: int, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 10, (source, 0))
    connection.sendall(data)
    return connection


def is_closed(connection: socket.socket, within_s: float = 5) -> bool:
    """Whether the other side ends the connection."""
    connection.settimeout(within_s)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def pdu(kind: int, body: bytes) -> bytes:
    return struct.pack(">BxL", kind, len(body)) + body


def request(calling: str) -> bytes:
    """An A-ASSOCIATE-RQ for one class of images, by hand."""

    def item(kind: int, body: bytes) -> bytes:
        return struct.pack(">BxH", kind, len(body)) + body

    syntaxes = item(0x30, CR.encode()) + item(0x40, LITTLE.encode())
    user = item(0x51, struct.pack(">L", 1 << 14)) + item(0x52, b"1.2.3")
    body = struct.pack(">H2x16s16s32x", 1, b"MEDCLIP".ljust(16), calling.encode().ljust(16))
    body += item(0x10, b"1.2.840.10008.3.1.1.1") + item(0x20, b"\x01\0\0\0" + syntaxes)
    return pdu(REQUEST, body + item(0x50, user))


@contextmanager
def held(port: int, number: int, data: bytes):
    """Keep connections open on which something was sent."""
    with ExitStack() as stack:
        opened = [stack.enter_context(connect(port, data)) for _ in range(number)]
        time.sleep(0.1)
        yield opened


ANNOUNCED = {
    "nothing": b"",
    "three bytes": b"\x01\x00\x00",
    "half a request": b"\x01\x00\x00\x00\x00\x80half",
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "a stranger who was rejected and stays": request("STRANGER") + b"\x04\x00\x00",
}


@pytest.mark.parametrize("data", ANNOUNCED.values(), ids=ANNOUNCED)
def test_connections_that_ask_for_nothing_take_no_place(gateway, data: bytes) -> None:
    with held(gateway.port, 2 * gateway.settings.associations, data):
        assert send(gateway.port, [radiograph()]) == [0]


def test_more_connections_than_wait_at_once_end_the_oldest_and_not_the_sender_s(gateway) -> None:
    with held(gateway.port, connections.PENDING + 3, b"\x01\x00\x00") as opened:
        assert send(gateway.port, [radiograph()]) == [0]
        assert is_closed(opened[0])
        assert not is_closed(opened[-1], 0.2)


def test_associations_beyond_the_setting_are_rejected(gateway) -> None:
    entity = AE(ae_title="MODALITY")
    entity.add_requested_context(CR, LITTLE)
    most = gateway.settings.associations
    opened = [entity.associate("127.0.0.1", gateway.port, ae_title="MEDCLIP") for _ in range(most)]
    assert all(item.is_established for item in opened)
    with pytest.raises(ConnectionRefusedError, match="rejected"):
        send(gateway.port, [radiograph()])
    for item in opened:
        item.release()
    assert send(gateway.port, [radiograph()]) == [0]


def test_an_address_that_no_caller_has_is_turned_away_before_it_says_anything(gateway) -> None:
    with connect(gateway.port, source="127.0.0.2") as stranger:
        assert is_closed(stranger)


def test_a_request_that_announces_too_much_ends_the_connection(gateway) -> None:
    for size in (1 << 20, 0xFFFFFFFF):
        with connect(gateway.port, struct.pack(">BxL", REQUEST, size)) as stranger:
            assert is_closed(stranger)


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">BxL", DATA, 0x80000000),  # a PDU beyond what was negotiated
        # a command, and data of a message that keeps them in memory, without an end
        *(
            pdu(DATA, struct.pack(">LBB", 1 << 19, 1, kind) + bytes((1 << 19) - 2)) * 8
            for kind in (1, 0)
        ),
    ],
    ids=["pdu", "command", "data"],
)
def test_an_association_that_says_too_much_is_ended(gateway, said: bytes) -> None:
    with connect(gateway.port, request("MODALITY")) as caller:
        assert caller.recv(1 << 16)[0] == ACCEPT
        try:
            caller.sendall(said)
        except ConnectionError:
            return
        assert is_closed(caller)


def test_a_pdu_that_does_not_end_in_time_ends_the_association(gateway, monkeypatch) -> None:
    monkeypatch.setattr(connections, "PDU_S", 0.3)
    with connect(gateway.port, request("MODALITY")) as caller:
        assert caller.recv(1 << 16)[0] == ACCEPT
        caller.sendall(b"\x04\x00\x00\x00\x00\x80drip")
        assert is_closed(caller)


def test_a_gateway_that_stops_waits_for_nobody(tmp_path, service) -> None:
    with running(tmp_path, service) as gateway:
        caller = connect(gateway.port, request("MODALITY"))
        assert caller.recv(1 << 16)[0] == ACCEPT
        caller.sendall(b"\x04\x00\x00")
        silent = connect(gateway.port, b"\x01\x00\x00")
        time.sleep(0.1)
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    with caller, silent:
        assert is_closed(caller)
        assert is_closed(silent)


@pytest.mark.skipif(not HAS_OPENSSL, reason="not installed: openssl")
def test_connections_without_tls_take_no_place_of_callers_with_a_certificate(tmp_path, service):
    files = tls_files(tmp_path / "tls")
    with running(tmp_path, service, tls=files["gateway"]) as gateway:
        ours = client_context(files["gateway"])
        for data in (b"", b"\x01\x00\x00", b"\x16\x03\x01\x02"):
            with held(gateway.port, 2 * gateway.settings.associations, data):
                assert send(gateway.port, [radiograph()], tls=ours) == [0]
        wait_until(lambda: gateway.journal.counts()["refused"] == 1)
