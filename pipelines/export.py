"""Write a run's model as transformers' own classes, or as ONNX graphs.

The folder's README.md has the code that loads it. Digests of the model are checked first, the
export is compared with the model, and a killed export leaves no folder.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from medclip_dcl.core.artifact import HEADER
from medclip_dcl.inference import model_package
from medclip_dcl.inference.export import Format, export_formats
from medclip_dcl.models.pretrained import PACKAGE, fetch_weights

from .cli import run_folder, tool_main


def command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="Folder of a run or of a model, a config, or OWNER/NAME@COMMIT of a hub.",
        ),
    ],
    to: Annotated[Format, typer.Option(help="Who reads it.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Receives it; must not exist.")],
) -> int:
    """Write a model for another library and print how far its answers are from ours."""
    model = fetch_weights(model, PACKAGE)
    if not model.is_dir():
        model = run_folder(model)
    if not (model / HEADER).is_file():
        model = model_package.ARTIFACT.at(model)
    written = export_formats(model, to, out)
    for part, difference in written.summary.items():
        print(f"{part:12} largest difference {difference:.2g}")
    print(f"how to load it: {out / 'README.md'}")
    return 0


main = tool_main("export", command)

if __name__ == "__main__":
    sys.exit(main())
