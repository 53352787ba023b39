"""One DICOM image -> its answer as DICOM objects, by way of a service that learns no identity."""

import argparse
import datetime as dt
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from medclip_dcl.client import Client
from medclip_dcl.data.images import shared_decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.errors import MedclipError
from medclip_dcl.files import write_bytes
from medclip_dcl.schemas import OUT_OF_RANGE, OUT_OF_RANGE_NOTE, Schema

from .dicomweb import DicomWeb
from .instance import OutOfRange, ResultsConfig
from .results import encode_results

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run `medclip-hospital report`; gives 0 or the error's exit code."""
    parser = argparse.ArgumentParser(
        prog="medclip-hospital report",
        description="Ask a running service about a DICOM image, and write the answer as DICOM "
        "objects. The service gets the pixels and what they mean; the header stays here.",
    )
    add = parser.add_argument
    add("image", type=Path, help="a DICOM file; its pixels alone are sent")
    add("--out", type=Path, required=True, metavar="FOLDER", help="receives the objects")
    add("--url", default="http://127.0.0.1:8000", help="address of the service")
    add("--key-file", type=Path, metavar="FILE", help="file with the API key")
    add("--ca", type=Path, metavar="FILE", help="PEM file of the others' authorities")
    add("--stow", default="", metavar="URL", help="DICOMweb of an archive that gets them, too")
    add("--stow-key-file", type=Path, metavar="FILE", help="file with its Authorization")
    add("--out-of-range", choices=get_args(OutOfRange), default="refuse",
        help="images unlike those of training: objects that say so, or findings and a warning",
    )  # fmt: skip
    given = parser.parse_args(argv)
    settings = ResultsConfig(out_of_range=given.out_of_range)
    try:
        with Client(given.url, given.key_file or "", ca=given.ca) as client:
            answer = write_report(
                client, given.image, given.out, given.stow, given.stow_key_file, given.ca, settings
            )
    except MedclipError as error:
        print(f"report: {error}", file=sys.stderr)
        return error.exit_code
    print(answer.model_dump_json(indent=1))
    if OUT_OF_RANGE in answer.flags:
        print(f"report: warning: {OUT_OF_RANGE}: {OUT_OF_RANGE_NOTE}", file=sys.stderr)
    return 0
