"""One DICOM image -> its answer as DICOM objects, by way of a service that learns no identity."""

import argparse
import datetime as dt
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from medclip_dcl.client import Client
from medclip_dcl.core.errors import MedclipError
from medclip_dcl.core.files import write_bytes
from medclip_dcl.data.images import shared_decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.schemas import OUT_OF_RANGE, OUT_OF_RANGE_NOTE

from .instance import OutOfRange, ResultsConfig
from .results import encode_results


def write_report(client: Client, image: Path, out: Path, settings: ResultsConfig) -> dict[str, Any]:
    """Ask a service about an image, and write the answer as DICOM objects into a folder.

    The header stays here: the service gets the pixels and what they mean.

    Returns:
        Digest of the `model`, `flags` of the image, names of the findings that are `present`, and
        the `objects`: `file` and `sop_class`.

    ImageError where the image is refused, here or by the service; ServiceError where the service
    cannot be reached, or refuses.
    """
    decoder = shared_decoder(ImagesConfig())
    separated = decoder.separate(image)
    answer = client.classify(separated.stripped, explain=True)
    now = dt.datetime.now().astimezone()
    objects = encode_results(separated.header, answer, decoder.open(image), now, settings)
    out.mkdir(parents=True, exist_ok=True)
    files = {out / f"{image.stem}.{item.kind}.dcm": item for item in objects}
    for path, item in files.items():
        write_bytes(path, item.data)
    present = [] if settings.refuses(answer) else answer.findings
    return {
        "model": answer.model,
        "flags": answer.image.flags,
        "present": [finding.name for finding in present if finding.decision],
        "objects": [
            {"file": str(path), "sop_class": item.sop_class_uid} for path, item in files.items()
        ],
    }


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
    add("--ca", type=Path, metavar="FILE", help="PEM file of the service's authorities")
    add("--out-of-range", choices=get_args(OutOfRange), default="refuse",
        help="images unlike those of training: objects that say so, or findings and a warning",
    )  # fmt: skip
    given = parser.parse_args(argv)
    settings = ResultsConfig(out_of_range=given.out_of_range)
    try:
        with Client(given.url, given.key_file or "", ca=given.ca) as client:
            answer = write_report(client, given.image, given.out, settings)
    except MedclipError as error:
        print(f"report: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(answer, indent=1))
    if OUT_OF_RANGE in answer["flags"]:
        print(f"report: warning: {OUT_OF_RANGE}: {OUT_OF_RANGE_NOTE}", file=sys.stderr)
    return 0
