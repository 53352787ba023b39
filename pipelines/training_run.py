"""What `train` needs to know of a run, be it of images and sentences or of images alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from medclip_dcl.artifact import Artifact, ArtifactType
from medclip_dcl.config import Config
from medclip_dcl.files import sha256_file
from medclip_dcl.models.pretrained import weights_file
from medclip_dcl.training.checkpoint import CheckpointStore
from medclip_dcl.training.trainer import TrainResult

NOT_IN_FINGERPRINT = (
    "torch_threads",
    "save_every_steps",
    "keep_checkpoints",
    "log_every_steps",
    "validate_every_steps",
    "validate_batches",
    "validate_images",
    "trackers",
    "gradient_checkpointing",
    "max_skipped",
    "loader_workers",
)
"""Settings of the loop that do not change what is learned."""

_WHAT_IS_BEST = {"validate_every_steps", "validate_batches", "validate_images"}

Trained = TypeVar("Trained")


@dataclass(frozen=True)
class TrainingRun(Generic[Trained]):
    """A run before it starts."""

    kind: ArtifactType
    """Artifact that it makes."""
    settings: Mapping[str, Any]
    """Settings that determine what is learned."""
    digests: Mapping[str, Artifact | str]
    """What it is made from."""
    train: Callable[[CheckpointStore, Path, Callable[..., None]], Trained]
    """Checkpoints, their folder, a way to say facts -> the run's end."""
    result: Callable[[Trained], TrainResult]
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
    how = set(NOT_IN_FINGERPRINT) - (_WHAT_IS_BEST if config.train.best_metric else set())
    loop = config.train.model_dump(mode="json", exclude=how)
    return {
        "seed": config.seed,
        "model": config.model,
        "objective": config.objective,
        "train": loop,
    }


def weights_digest(path: Path) -> str:
    """Hash pretrained weights.

    Args:
        path: a file of weights, or its directory.

    Returns:
        64 hexadecimal digits.

    Raises:
        CheckpointError: there is none.
    """
    return sha256_file(weights_file(path))
