"""Make a model package of a public checkpoint, without training."""

from pathlib import Path
from typing import Annotated

import typer

from medclip_dcl.inference import adoption


def adopt(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Folder of the checkpoint, or OWNER/NAME@COMMIT of a hub."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Receives it; must not exist.")],
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Findings that it is asked for.")
    ] = Path(adoption.PROMPTS),
) -> int:
    """Make a model package of a public checkpoint: CLIP, SigLIP, open_clip, BioViL, CXR-CLIP.

    Then everything that takes a package takes it: serve, evaluate (`evaluate.model`), build_index,
    fit_head, calibrate_scores, export. Families, and what was tried: docs/training.md.
    """
    made = adoption.adopt(model, out, prompts)
    print(f"{out}: {made.summary['family']} {made.digest[:12]}; medclip serve {out}")
    return 0
