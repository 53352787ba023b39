"""The other side of the gateway: Orthanc as a PACS, a modality that sends, a service that answers.

Orthanc and DCMTK are Debian packages: orthanc, orthanc-dicomweb, dcmtk.
"""

import io
import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from pydicom import dcmread
from pydicom.dataset import Dataset
from pynetdicom import AE, evt

from medclip_hospital.gateway.settings import GatewaySettings, TlsFiles
from tests.support.dicom import dicom_bytes, ramp
from tests.support.processes import free_port
from tests.support.tls import make_certificates

PLUGIN = Path("/usr/share/orthanc/plugins/libOrthancDicomWeb.so")
PATIENCE_S = 60.0


def missing() -> str:
    """Name the Debian packages that are not installed; empty where all are."""
    parts = {"orthanc": shutil.which("Orthanc"), "orthanc-dicomweb": PLUGIN.exists()}
    parts["dcmtk"] = shutil.which("dcmsend")
    return ", ".join(name for name, found in parts.items() if not found)


class Orthanc:
    """A PACS on free ports; it can be killed and started again on the same storage."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.http_port, self.port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http_port}"
        self.web = f"{self.url}/dicom-web"
        self._config, self._log = folder / "orthanc.json", folder / "orthanc.log"
        settings = {
            "StorageDirectory": str(folder / "storage"),
            "IndexDirectory": str(folder / "storage"),
            "HttpPort": self.http_port,
            "DicomPort": self.port,
            "DicomAet": "ORTHANC",
            "RemoteAccessAllowed": False,
            "AuthenticationEnabled": False,
            "DicomAlwaysAllowStore": True,
            "OverwriteInstances": False,
            "Plugins": [str(PLUGIN)],
            "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
        }
        self._config.write_text(json.dumps(settings))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(["Orthanc", str(self._config)], stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                self.instances()
            except httpx.HTTPError:
                assert self._process.poll() is None, self._log.read_text()[-2000:]
                time.sleep(0.02)
            else:
                return
        raise AssertionError("Orthanc does not answer")

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def instances(self) -> list[str]:
        """Return its own ids of everything it holds."""
        return list(httpx.get(f"{self.url}/instances", trust_env=False, timeout=10).json())

    def upload(self, image: bytes) -> None:
        """Store a file over its own interface."""
        httpx.post(f"{self.url}/instances", content=image, trust_env=False).raise_for_status()

    def uids(self) -> list[str]:
        """Return the SOP instance UIDs of everything it holds."""
        listing = httpx.get(f"{self.url}/instances?expand", trust_env=False, timeout=30).json()
        return [item["MainDicomTags"]["SOPInstanceUID"] for item in listing]

    def datasets(self, names: Iterable[str] | None = None) -> list[Dataset]:
        """Return DICOM datasets by Orthanc's ids; None: of everything it holds."""
        names = self.instances() if names is None else names
        with httpx.Client(base_url=self.url, trust_env=False) as client:
            return [dataset(client.get(f"/instances/{name}/file").content) for name in names]

    def file(self, uid: str) -> bytes:
        """Return an object as it was stored, by its UID."""
        with httpx.Client(base_url=self.url, trust_env=False) as client:
            (name,) = client.post("/tools/lookup", content=uid).json()
            return client.get(f"/instances/{name['ID']}/file").content


def dataset(data: bytes) -> Dataset:
    return dcmread(io.BytesIO(data))


@contextmanager
def running(folder: Path) -> Iterator[Orthanc]:
    """Run Orthanc; end it on leaving."""
    pacs = Orthanc(folder)
    pacs.start()
    try:
        yield pacs
    finally:
        pacs.kill()


def radiograph(
    number: int = 0,
    *,
    rows: int = 40,
    columns: int = 50,
    pixels: np.ndarray | None = None,
    **tags: Any,
) -> bytes:
    """A CR image of patient `number` as a file; its UIDs go by the number.

    Without `pixels` it shows a ramp, of so many rows and columns.
    """
    shown = np.roll(ramp(rows, columns), 7 * number) if pixels is None else pixels
    given: dict[str, Any] = {
        "SOPInstanceUID": f"1.2.826.0.1.3680043.10.1.{number}.3",
        "SeriesInstanceUID": f"1.2.826.0.1.3680043.10.1.{number}.2",
        "StudyInstanceUID": f"1.2.826.0.1.3680043.10.1.{number}.1",
        "PatientID": f"ID{number:04d}",
        "PatientName": f"Doe^Jane{number}",
        "PatientBirthDate": "19500102",
        "PatientSex": "F",
        "StudyDate": "20260301",
        "StudyTime": "101112",
        "AccessionNumber": f"A{number}",
        "BodyPartExamined": "CHEST",
    }
    return dicom_bytes(shown, **(given | tags))


def send(
    port: int,
    files: Sequence[bytes],
    *,
    calling: str = "MODALITY",
    called: str = "MEDCLIP",
    tls: ssl.SSLContext | None = None,
    linger_s: float = 5,
) -> list[int | None]:
    """Send files by C-STORE on one association: their statuses, None where no answer came.

    ConnectionRefusedError where there is no association.
    """
    entity = AE(ae_title=calling)
    entity.connection_timeout = entity.acse_timeout = entity.dimse_timeout = linger_s
    datasets = [dataset(data) for data in files]
    for kind in {(item.SOPClassUID, item.file_meta.TransferSyntaxUID) for item in datasets}:
        entity.add_requested_context(*kind)
    opened: list[socket.socket] = []  # pynetdicom forgets, and never closes, what was reset
    association = entity.associate(
        "127.0.0.1",
        port,
        ae_title=called,
        tls_args=(tls, "localhost") if tls else None,
        evt_handlers=[
            (evt.EVT_CONN_OPEN, lambda event: opened.append(event.assoc.dul.socket.socket))
        ],
    )
    try:
        if not association.is_established:
            raise ConnectionRefusedError("rejected" if association.is_rejected else "aborted")
        statuses: list[int | None] = []
        for item in datasets:
            try:
                statuses.append(association.send_c_store(item).get("Status"))
            except (RuntimeError, ValueError):
                statuses.append(None)
        if association.is_established:
            association.release()
        return statuses
    finally:
        for connection in opened:
            connection.close()


def gateway_settings(
    folder: Path, service: str, destination: object = None, **given: object
) -> GatewaySettings:
    """Settings of a gateway on free ports; without a destination one that nobody answers at."""
    tree = {"port": 0, "metrics_port": 0, "callers": {"MODALITY": ["127.0.0.1"]}}
    nowhere = {"kind": "dicomweb", "url": "http://127.0.0.1:9/dicom-web"}
    tree |= {"service": service, "destination": destination or nowhere, "spool": folder / "spool"}
    return GatewaySettings.model_validate(tree | given)


def tls_files(folder: Path) -> dict[str, TlsFiles]:
    """Certificates for the gateway, `gateway`, and of someone whom nobody signed, `stranger`."""
    made = make_certificates(folder)
    ours = TlsFiles(certificate=made.server, key=made.server_key, ca=made.ca)
    theirs = TlsFiles(certificate=made.stranger, key=made.stranger_key, ca=made.ca)
    return {"gateway": ours, "stranger": theirs}


def wait_until(condition: Any, patience_s: float = PATIENCE_S) -> None:
    """Wait until something holds; AssertionError after `patience_s`."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.01)
