"""Public checkpoints: whole models of images and texts that others made, a family a module.

A module has `FAMILY` and `read(folder)`, which returns a `Checkpoint`, or None for a folder of
another layout.
"""

from pathlib import Path

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.pretrained import OPEN_CLIP, PROCESSORS, read_json
from medclip_dcl.models.public import biovil, cxr_clip, open_clip, transformers_pair
from medclip_dcl.models.public.checkpoint import Checkpoint, Preprocessing, processor_fit


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a whole model from its folder.

    Raises:
        CheckpointError: a file is missing or damaged, or of a kind that is not known here.
    """
    checkpoint = biovil.read(folder) or cxr_clip.read(folder) or open_clip.read(folder)
    return checkpoint or transformers_pair.read(folder)


def read_preprocessing(folder: Path, pair: Checkpoint, image_px: int) -> Preprocessing:
    """Read how the maker of a model of this folder turns an image into an input of `image_px`.

    Raises:
        CheckpointError: the folder does not say it, or in a way that is not known here.
    """
    if pair.preprocessing:
        return pair.preprocessing
    if pair.family == open_clip.FAMILY and (folder / OPEN_CLIP).is_file():
        return open_clip.preprocessing(folder, image_px)
    for name in PROCESSORS:
        if (folder / name).is_file():
            tree = read_json(folder / name)
            return processor_fit(tree.get("image_processor", tree), image_px, name)
    raise CheckpointError(
        f"{folder} has no {PROCESSORS[0]}, which says how images are made into inputs; add it"
    )
