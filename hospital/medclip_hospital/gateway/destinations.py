"""Where objects go: STOW-RS or C-STORE. What was acknowledged is given back by UID."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from pydicom.uid import (
    Comprehensive3DSRStorage,
    ComprehensiveSRStorage,
    ExplicitVRLittleEndian,
    GrayscaleSoftcopyPresentationStateStorage,
    SecondaryCaptureImageStorage,
)
from pynetdicom import AE

from medclip_dcl.core.errors import ConfigError, ServiceError
from medclip_hospital.dicomweb import DUPLICATE

from .connections import socket_of
from .listener import client_context
from .settings import DicomWebDestination, DimseDestination

SENT = (
    Comprehensive3DSRStorage,
    ComprehensiveSRStorage,
    GrayscaleSoftcopyPresentationStateStorage,
    SecondaryCaptureImageStorage,
)
"""SOP classes that are sent, in Explicit VR Little Endian."""

TIMEOUT_S = 60.0
"""Of a connection by DIMSE, and of a whole exchange by STOW-RS."""


class Destination(Protocol):
    """A PACS, however it is spoken to."""

    def send(self, objects: Mapping[str, Path]) -> Sequence[str]:
        """Send objects by UID; return the UIDs that it acknowledged. Raises ServiceError."""


class Stow:
    """STOW-RS, all objects of an image in one request."""

    def __init__(self, settings: DicomWebDestination, ca: Path | None) -> None:
        self._open = partial(settings.open, ca, deadline_s=TIMEOUT_S)
        self._open()  # a key that cannot be read ends the start

    def send(self, objects: Mapping[str, Path]) -> Sequence[str]:
        """Send all in one request."""
        try:
            archive = self._open()
        except ConfigError as error:  # the key is being exchanged
            raise ServiceError("key_file", str(error)) from error
        with archive:
            archive.store({uid: path.read_bytes() for uid, path in objects.items()})
        return list(objects)


class Dimse:
    """C-STORE, an association for each image."""

    def __init__(self, settings: DimseDestination, our_title: str) -> None:
        self._settings = settings
        self._tls = (client_context(settings.tls), settings.host) if settings.tls else None
        self._entity = AE(ae_title=our_title)
        self._entity.connection_timeout = TIMEOUT_S
        for sop_class in SENT:
            self._entity.add_requested_context(sop_class, ExplicitVRLittleEndian)

    def send(self, objects: Mapping[str, Path]) -> Sequence[str]:
        """Send one after the other."""
        to = self._settings
        association = self._entity.associate(
            to.host, to.port, ae_title=to.ae_title, tls_args=self._tls
        )
        if not association.is_established:
            if connection := socket_of(association):
                connection.close()  # pynetdicom leaves open what it could not shut down
            raise _failure("rejected" if association.is_rejected else "unreachable")
        stored = []
        try:
            for uid, path in objects.items():
                status = association.send_c_store(str(path)).get("Status")
                if status is None:
                    raise _failure("cut")
                if status == DUPLICATE or status == 0 or status >> 12 == 0xB:
                    stored.append(uid)
        except ValueError as error:  # no presentation context was accepted for the object
            raise _failure("no_context") from error
        finally:
            association.release()
        return stored


def _failure(code: str) -> ServiceError:
    return ServiceError(code, "the destination did not take an object by C-STORE")


def open_destination(
    settings: DicomWebDestination | DimseDestination, our_title: str, ca: Path | None = None
) -> Destination:
    """Set up what the settings name; nothing is sent yet."""
    if isinstance(settings, DimseDestination):
        return Dimse(settings, our_title)
    return Stow(settings, ca)
