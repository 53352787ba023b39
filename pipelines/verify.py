"""Hash every file of an artifact, or of all artifacts of a run, and compare them with the headers.

Elsewhere a file is not hashed again while it has the size, times and inode with which it was hashed
before. This finds what these do not show: bytes that a disk has lost or changed by itself. Exit
code 4 where an artifact is damaged, after all others were looked at.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from medclip_dcl.artifact import HEADER, verify_artifact
from medclip_dcl.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing

from .cli import run_folder, tool_main


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="An artifact, a run, or a run's config.")
    ],
) -> int:
    """Print a line for each artifact; ArtifactCorrupt at the end where one is damaged."""
    folder = run_folder(folder)
    nested = [file.parent for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{HEADER}")]
    paths = [folder] if (folder / HEADER).is_file() else sorted(nested)
    if not paths:
        raise ArtifactMissing(f"{folder} holds no artifact; name a run's folder, or an artifact's")
    damaged = []
    for path in paths:
        try:
            artifact = verify_artifact(path)
        except ArtifactError as error:
            damaged.append(path.name)
            print(f"{path.name:20} {error}", flush=True)
        else:
            size = sum(entry["bytes"] for entry in artifact.files.values())
            print(f"{path.name:20} whole, {len(artifact.files)} files, {size:,} bytes", flush=True)
    if damaged:
        raise ArtifactCorrupt(f"{', '.join(damaged)} of {folder} damaged; rerun their jobs")
    return 0


main = tool_main("verify", command)

if __name__ == "__main__":
    sys.exit(main())
