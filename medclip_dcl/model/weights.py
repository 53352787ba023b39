"""Pretrained weights -> a module, with an account of every key."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from medclip_dcl.errors import CheckpointError

_FILE = "model.safetensors"


@dataclass(frozen=True)
class LoadReport:
    """What became of each key of a checkpoint.

    Attributes:
        matched: keys that filled a weight of the module.
        missing: weights of the module that the checkpoint does not hold.
        unexpected: keys of the checkpoint that the module has no place for.
    """

    matched: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors checkpoint.

    Args:
        path: the file, or a directory with `model.safetensors`.

    Returns:
        Tensors by key, on the CPU.

    Raises:
        CheckpointError: there is no such file, or it is no safetensors file.
    """
    file = path / _FILE if path.is_dir() else path
    try:
        return load_file(file)
    except FileNotFoundError as error:
        raise CheckpointError(
            f"no weights at {file}; give a safetensors file or a directory with {_FILE}"
        ) from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} is no readable safetensors file; convert the checkpoint to safetensors"
        ) from error


def fill(module: nn.Module, state: Mapping[str, Tensor], heads: tuple[str, ...]) -> LoadReport:
    """Copy weights into a module; nothing may be left over in silence.

    Args:
        module: module whose every weight must be filled.
        state: weights by the module's own keys.
        heads: prefixes of keys that belong to heads which the module leaves out.

    Returns:
        The account; `missing` is empty, and `unexpected` holds head keys alone.

    Raises:
        CheckpointError: a weight is missing or has another shape, or a key belongs
            neither to the module nor to a head. The module is then unchanged.
    """
    own = module.state_dict()
    report = LoadReport(
        matched=tuple(sorted(own.keys() & state.keys())),
        missing=tuple(sorted(key for key in own.keys() - state.keys() if not _is_counter(key))),
        unexpected=tuple(sorted(state.keys() - own.keys())),
    )
    strange = [key for key in report.unexpected if not key.startswith(heads)]
    if report.missing or strange:
        raise CheckpointError(
            f"checkpoint matches {len(report.matched)} of {len(own)} weights: "
            f"{len(report.missing)} missing {_sample(report.missing)}, "
            f"{len(strange)} unknown {_sample(strange)}; give weights of the same architecture"
        )
    for key in report.matched:
        if state[key].shape != own[key].shape:
            raise CheckpointError(
                f"weight {key} has shape {tuple(state[key].shape)}, the model asks for "
                f"{tuple(own[key].shape)}; set the model's sizes to those of the checkpoint"
            )
    module.load_state_dict({key: state[key] for key in report.matched}, strict=False)
    return report


def _is_counter(key: str) -> bool:
    return key.endswith("num_batches_tracked")  # converted checkpoints drop it; nothing reads it


def _sample(keys: tuple[str, ...] | list[str]) -> str:
    return f"({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})" if keys else "()"
