"""Ask a running service about a DICOM image, and write the answer as DICOM objects.

The service gets the pixels and what they mean; the header stays here.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from medclip_dcl.client import Client
from medclip_dcl.errors import ConfigError
from medclip_dcl.schemas import OUT_OF_RANGE, OUT_OF_RANGE_NOTE
from medclip_hospital.settings import OutOfRange, ResultsConfig

from .cli import tool_main


def command(
    image: Annotated[Path, typer.Argument(help="A DICOM file; its pixels alone are sent.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Receives the objects.")],
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8000",
    key_file: Annotated[Path | None, typer.Option(help="File with the API key.")] = None,
    ca: Annotated[
        Path | None,
        typer.Option(help="PEM file of the authorities that sign the other sides' certificates."),
    ] = None,
    stow: Annotated[str, typer.Option(help="DICOMweb of an archive that gets them, too.")] = "",
    stow_key_file: Annotated[
        Path | None, typer.Option(help="File with the Authorization for it.")
    ] = None,
    out_of_range: Annotated[
        OutOfRange,
        typer.Option(
            help="Images unlike those of training: objects that say so, or findings and a warning."
        ),
    ] = "refuse",
) -> int:
    """Ask a running service about a DICOM image, and write the answer as DICOM objects."""
    try:
        from medclip_hospital.report import write_report
    except ModuleNotFoundError as error:
        raise ConfigError(
            "report needs highdicom; run pip install '.[dicom]' in the checkout"
        ) from error
    with Client(url, key_file or "", ca=ca) as client:
        settings = ResultsConfig(out_of_range=out_of_range)
        answer = write_report(client, image, out, stow, stow_key_file, ca, settings)
    print(answer.model_dump_json(indent=1))
    if OUT_OF_RANGE in answer.flags:
        print(f"report: warning: {OUT_OF_RANGE}: {OUT_OF_RANGE_NOTE}", file=sys.stderr)
    return 0


main = tool_main("report", command)

if __name__ == "__main__":
    sys.exit(main())
