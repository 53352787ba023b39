"""Public checkpoints: whole models of images and texts that others made, a family a module.

A module has `FAMILY` and `read(folder)`, which returns a `Checkpoint`, or None for a folder of
another layout; how images become inputs it says of a folder that it has read.
"""

from pathlib import Path

from medclip_dcl.models.pretrained import OPEN_CLIP, PROCESSORS, read_json
from medclip_dcl.models.public import biovil, open_clip, transformers_pair
from medclip_dcl.models.public.checkpoint import Checkpoint, Preprocessing, processor_fit


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read a whole model from its folder.

    Raises:
        CheckpointError: a file is missing or damaged, or of a kind that is not known here.
    """
    found = biovil.read(folder) or open_clip.read(folder)
    return found or transformers_pair.read(folder)


def read_preprocessing(folder: Path, family: str, image_px: int) -> Preprocessing:
    """Read how the maker turns an image into an input of `image_px` pixels a side.

    Raises:
        CheckpointError: the folder does not say it, or in a way that is not known here.
    """
    if family == biovil.FAMILY:
        return biovil.preprocessing(image_px)
    for name in PROCESSORS:
        is_own = family != open_clip.FAMILY or not (folder / OPEN_CLIP).is_file()
        if is_own and (folder / name).is_file():
            tree = read_json(folder / name)
            return processor_fit(tree.get("image_processor", tree), image_px, name)
    return open_clip.preprocessing(folder, image_px)
