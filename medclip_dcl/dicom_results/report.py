"""One DICOM image -> its answer as DICOM objects, by way of a service that learns no identity."""

import datetime as dt
from pathlib import Path

from medclip_dcl.client import Client
from medclip_dcl.data.images import ImagesConfig, shared_decoder
from medclip_dcl.data.sources.dicomweb import DicomWeb
from medclip_dcl.files import write_bytes
from medclip_dcl.schemas import Schema

from .results import encode_results


class WrittenObject(Schema):
    """An object that was written."""

    file: str
    """Path of the file."""
    sop_class: str
    """Its class."""
    stored: bool
    """Whether an archive has it, too."""


class ReportAnswer(Schema):
    """What became of an image."""

    model: str
    """Digest of the model."""
    present: list[str]
    """Findings that are present."""
    objects: list[WrittenObject]
    """Objects that were written."""


def write_report(
    client: Client, image: Path, out: Path, archive_url: str = "", key_file: Path | None = None
) -> ReportAnswer:
    """Ask a service about an image, and write the answer as DICOM objects into a folder.

    The header stays here: the service gets the pixels and what they mean.

    Args:
        client: of the service.
        image: DICOM file.
        out: folder, made where it is missing; files begin with the image's name.
        archive_url: DICOMweb of an archive that stores the objects; empty: none.
        key_file: file whose line the archive gets as `Authorization`.

    Raises:
        ImageError: the image is refused, here or by the service.
        ServiceError: the service or the archive cannot be reached, or refuses.
        ConfigError: highdicom is not installed.
    """
    decoder = shared_decoder(ImagesConfig())
    separated = decoder.separate(image)
    answer = client.classify(separated.stripped, explain=True)
    now = dt.datetime.now().astimezone()
    objects = encode_results(separated.header, answer, decoder.open(image), now)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{image.stem}.{item.kind}.dcm" for item in objects]
    for path, item in zip(paths, objects, strict=True):
        write_bytes(path, item.data)
    if archive_url:
        with DicomWeb(archive_url, key_file) as archive:
            archive.store({item.sop_instance_uid: item.data for item in objects})
    return ReportAnswer(
        model=answer.model,
        present=[finding.name for finding in answer.findings if finding.decision],
        objects=[
            WrittenObject(file=str(path), sop_class=item.sop_class_uid, stored=bool(archive_url))
            for path, item in zip(paths, objects, strict=True)
        ],
    )
