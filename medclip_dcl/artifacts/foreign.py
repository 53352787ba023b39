"""Weights that others made: safetensors, or a torch file read as plain tensors.

Releases of CXR-BERT, BioViL and torchvision come as torch files, which are pickles. They
are opened here and nowhere else, by torch's tensors-only unpickler, and only where a
recipe names one to start from. Models that this project publishes hold none.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from medclip_dcl.errors import CheckpointError

NAMES = ("model.safetensors", "pytorch_model.bin")
"""Files that hold the weights of a released folder; the first that is there is read."""

_TORCH_FILES = {".bin", ".pt", ".pth"}
_NESTED = ("state_dict", "model")


def weights_file(path: Path) -> Path:
    """Find the file that holds a checkpoint's weights.

    Args:
        path: the file, or a folder with one of `NAMES`.

    Returns:
        The file.

    Raises:
        CheckpointError: there is none.
    """
    files = [path / name for name in NAMES] if path.is_dir() else [path]
    found = [file for file in files if file.is_file()]
    if not found:
        raise CheckpointError(
            f"no weights at {path}: give a safetensors or torch file, or a directory with "
            f"{' or '.join(NAMES)}"
        )
    return found[0]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a checkpoint's weights.

    Args:
        path: the file, or a folder with one of `NAMES`; .bin, .pt and .pth are torch's,
            others safetensors.

    Returns:
        Tensors by key, on the CPU; floating ones as float32. A torch file may keep them
        under `state_dict` or `model`.

    Raises:
        CheckpointError: there is no such file, it cannot be read, or it holds more than
            tensors.
    """
    file = weights_file(path)
    try:
        if file.suffix in _TORCH_FILES:
            state = _unnested(torch.load(file, map_location="cpu", weights_only=True))
        else:
            state = load_file(file)
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{file} cannot be read as plain tensors; it is no readable safetensors or torch file, "
            "or holds code"
        ) from error
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(f"{file} holds more than tensors; save its state_dict alone")
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def _unnested(tree: Any) -> Mapping[str, Any]:
    for name in _NESTED:
        if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
            tree = tree[name]
    return tree if isinstance(tree, Mapping) else {"": tree}
