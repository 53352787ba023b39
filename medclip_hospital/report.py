"""One DICOM image -> its answer as DICOM objects, by way of a service that learns no identity."""

import datetime as dt
from pathlib import Path

from medclip_dcl.client import Client
from medclip_dcl.data.images import shared_decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.files import write_bytes
from medclip_dcl.schemas import Schema
from medclip_hospital.dicomweb import DicomWeb

from .results import encode_results
from .settings import ResultsConfig

_DEFAULTS = ResultsConfig()


class WrittenObject(Schema):
    """An object that was written."""

    file: str
    """Path of the file."""
    sop_class: str
    """Its class."""
    stored: bool
    """Whether an archive has it, too."""


class ReportAnswer(Schema):
    """Answer on one image: its flags and findings, and the objects that were written."""

    model: str
    """Digest of the model."""
    flags: list[str]
    """What is special about the image, as in an answer of `/classify`."""
    present: list[str]
    """Findings that are present; none of an image that was not analysed."""
    objects: list[WrittenObject]
    """Objects that were written."""


def write_report(
    client: Client,
    image: Path,
    out: Path,
    archive_url: str = "",
    key_file: Path | None = None,
    ca: Path | None = None,
    settings: ResultsConfig = _DEFAULTS,
) -> ReportAnswer:
    """Ask a service about an image, and write the answer as DICOM objects into a folder.

    The header stays here: the service gets the pixels and what they mean.

    Args:
        client: of the service.
        image: DICOM file.
        out: folder, made where it is missing; files begin with the image's name.
        archive_url: DICOMweb of an archive that stores the objects; empty: none.
        key_file: file whose line the archive gets as `Authorization`.
        ca: PEM file of the authorities that sign the archive's certificate; None: `https.trusted`.
        settings: which objects, and what becomes of an image that is out of range.

    Raises:
        ImageError: the image is refused, here or by the service.
        ServiceError: the service or the archive cannot be reached, or refuses.
        ConfigError: highdicom is not installed.
    """
    decoder = shared_decoder(ImagesConfig())
    separated = decoder.separate(image)
    answer = client.classify(separated.stripped, explain=True)
    now = dt.datetime.now().astimezone()
    objects = encode_results(separated.header, answer, decoder.open(image), now, settings)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{image.stem}.{item.kind}.dcm" for item in objects]
    for path, item in zip(paths, objects, strict=True):
        write_bytes(path, item.data)
    if archive_url:
        with DicomWeb(archive_url, key_file, ca=ca) as archive:
            archive.store({item.sop_instance_uid: item.data for item in objects})
    present = [finding.name for finding in answer.findings if finding.decision]
    return ReportAnswer(
        model=answer.model,
        flags=answer.image.flags,
        present=[] if settings.refuses(answer) else present,
        objects=[
            WrittenObject(file=str(path), sop_class=item.sop_class_uid, stored=bool(archive_url))
            for path, item in zip(paths, objects, strict=True)
        ],
    )
