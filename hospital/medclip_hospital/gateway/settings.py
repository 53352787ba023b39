"""Settings of the gateway: a YAML file, then MEDCLIP_GATEWAY_* variables."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from medclip_dcl.core.settings import Section, read_settings_of
from medclip_hospital.dicomweb import DicomWeb
from medclip_hospital.instance import ResultsConfig

PREFIX = "MEDCLIP_GATEWAY_"
MEBIBYTE = 2**20
GIBIBYTE = 2**30

AeTitle = Annotated[str, Field(pattern=r"^[!-\[\]-~]{1,16}$")]
Port = Annotated[int, Field(ge=0, le=65535)]


class TlsFiles(Section):
    """A certificate, its key, and whom we trust on the other side."""

    certificate: Path
    """Our certificate with its chain, PEM."""
    key: Path
    """Its key, PEM."""
    ca: Path
    """Authorities that sign the certificates of the other side, PEM."""


class Archive(Section):
    """A DICOMweb service."""

    url: Annotated[str, Field(pattern=r"^https?://")]
    """Its root, such as `http://127.0.0.1:8042/dicom-web`."""
    key_file: str = ""
    """File with the value of the Authorization header."""

    def open(self, ca: Path | None, **limits: Any) -> DicomWeb:
        """Connect, with the key that its file holds now; ConfigError where it cannot be read."""
        return DicomWeb(self.url, Path(self.key_file) if self.key_file else None, ca=ca, **limits)


class DicomWebDestination(Archive):
    """Objects are stored by STOW-RS."""

    kind: Literal["dicomweb"]
    """`dicomweb`."""


class DimseDestination(Section):
    """Objects are stored by C-STORE."""

    kind: Literal["dimse"]
    """`dimse`."""
    ae_title: AeTitle
    """AE title that is called."""
    host: str
    """Its host."""
    port: Port
    """Its port."""
    tls: TlsFiles | None = None
    """Certificates, where it wants TLS."""


class CatchUp(Archive):
    """Images that were missed are asked for by QIDO-RS."""

    days: Annotated[int, Field(gt=0)] = 2
    """Days of studies that are looked at."""
    every_s: Annotated[float, Field(gt=0)] = 600
    """Seconds between two looks."""


class GatewaySettings(ResultsConfig):
    """Every setting of the gateway: those of the objects, and these."""

    ae_title: AeTitle = "MEDCLIP"
    """AE title that senders call."""
    host: str = "127.0.0.1"
    """Address that is bound; beyond loopback `tls` is needed, or `plain`."""
    port: Port = 11112
    """Port of the listener; 0: a free one, which is printed."""
    plain: bool = False
    """Listen beyond loopback without TLS, on a network that is trusted."""
    tls: TlsFiles | None = None
    """`{certificate, key, ca}`, PEM files: TLS 1.2 or newer, and callers must show a certificate
    that `ca` signed."""
    callers: Annotated[dict[AeTitle, tuple[str, ...]], Field(min_length=1)]
    """AE titles that may send, each with the addresses or networks that it may send from."""
    service: Annotated[str, Field(pattern=r"^https?://")]
    """Address of the service."""
    service_key_file: str = ""
    """File with the service's API key; read for each image, so that keys can be rotated."""
    ca: Path | None = None
    """PEM file of the authorities that sign the certificates of the service, of a `dicomweb`
    destination and of the PACS of `catch_up`; without it those that the variables SSL_CERT_FILE and
    SSL_CERT_DIR name, else certifi's."""
    destination: Annotated[DicomWebDestination | DimseDestination, Field(discriminator="kind")]
    """Where answers go: `{kind: dicomweb, url, key_file}`, or `{kind: dimse, ae_title, host, port,
    tls}`."""
    only_positive: bool = False
    """Whether images without a positive finding get no objects; one that is refused as out of range
    gets them all the same."""
    views: tuple[str, ...] = ("AP", "PA")
    """View positions that are answered; an empty string: images that name none."""
    body_parts: tuple[str, ...] = ("CHEST", "")
    """Body parts that are answered; an empty string: images that name none."""
    spool: Path
    """Folder of images and journal, which hold identity; mode 0700."""
    spool_gb: Annotated[float, Field(gt=0)] = 20
    """Size of the spool, GiB, from which on images are refused with 0xA700; so they are where the
    disk has less than 256 MiB left, or a twentieth of a small disk."""
    max_bytes_mb: Annotated[int, Field(gt=0, le=1024)] = 64
    """Largest image, MiB."""
    associations: Annotated[int, Field(gt=0)] = 4
    """Associations at once."""
    workers: Annotated[int, Field(gt=0)] = 2
    """Images that are answered at once."""
    keep_hours: Annotated[float, Field(ge=0)] = 24
    """Hours that an image and its answers stay in the spool after they were sent."""
    remember_days: Annotated[float, Field(gt=0)] = 90
    """Days after which the journal forgets an image; delivered again, it is answered again."""
    give_up_hours: Annotated[float, Field(gt=0)] = 48
    """Hours of failures after which an image waits for `retry`."""
    catch_up: CatchUp | None = None
    """`{url, key_file, days: 2, every_s: 600}`: ask a PACS for images that were not sent."""
    metrics_port: Port = 11113
    """Port of /metrics and /health on 127.0.0.1; 0: a free one, which is printed."""

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        for title, addresses in self.callers.items():
            if not addresses:
                raise ValueError(f"callers.{title} names no address; give one, or a network")
            for address in addresses:
                ipaddress.ip_network(address)
        if self.tls is None and not self.plain and not ipaddress.ip_address(self.host).is_loopback:
            raise ValueError(
                f"host {self.host} is not loopback; set tls, or plain=true on a trusted network"
            )
        return self


def read_gateway_settings(file: Path | None, environment: Mapping[str, str]) -> GatewaySettings:
    """Gather and validate the settings: of a YAML file, then of `MEDCLIP_GATEWAY_*` variables.

    ConfigError where the file cannot be read, a key or variable is unknown, or a value breaks its
    rule.
    """
    return read_settings_of(GatewaySettings, file, environment, PREFIX)
