"""What `train` needs to know of a run, be it of films and sentences or of images alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from medclip_dcl.artifacts import language_model
from medclip_dcl.artifacts.checkpoint import CheckpointStore
from medclip_dcl.artifacts.files import sha256_file
from medclip_dcl.artifacts.frame import Artifact, Kind
from medclip_dcl.config import Config
from medclip_dcl.errors import CheckpointError
from medclip_dcl.training.lesson import Ending

HOW_NOT_WHAT = (
    "torch_threads",
    "save_every_steps",
    "keep_checkpoints",
    "log_every_steps",
    "validate_every_steps",
    "validate_batches",
    "max_skipped",
    "loader_workers",
)
"""Settings of the loop that do not change what is learned."""

Trained = TypeVar("Trained")


@dataclass(frozen=True)
class TrainingRun(Generic[Trained]):
    """A run before it starts."""

    kind: Kind
    """Artifact that it makes."""
    settings: Mapping[str, Any]
    """Settings that determine what is learned."""
    digests: Mapping[str, Artifact | str]
    """What it is made from."""
    train: Callable[[CheckpointStore, Path, Callable[..., None]], Trained]
    """Checkpoints, their folder, a way to say facts -> the run's end."""
    ending: Callable[[Trained], Ending]
    """How a run ended."""
    publish: Callable[[Path, Trained], dict[str, Any]]
    """Writes the model into a folder and gives figures that people look at."""


def loop_settings(config: Config) -> dict[str, Any]:
    """Give the settings that every run depends on.

    Args:
        config: the configuration.

    Returns:
        Seed, model, objective, and of the loop what changes the result.
    """
    loop = config.train.model_dump(mode="json", exclude=set(HOW_NOT_WHAT))
    return {
        "seed": config.seed,
        "model": config.model,
        "objective": config.objective,
        "train": loop,
    }


def weights_digest(path: Path) -> str:
    """Hash pretrained weights.

    Args:
        path: safetensors file, or its directory.

    Returns:
        64 hexadecimal digits.

    Raises:
        CheckpointError: there is none.
    """
    file = path / language_model.WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"no weights at {file}; give a safetensors file or its directory")
    return sha256_file(file)
