"""Image-only model: what the probes load.

model.safetensors   weights of image encoder, head and gamma
config.json         the whole configuration, `work` left out
model.json          the card: what it was made from, and how training ended
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from medclip_dcl.artifacts.frame import Kind, open_artifact
from medclip_dcl.artifacts.published import (
    CARD,
    finite_weights,
    read_facts,
    write_config_and_card,
    write_weights,
)
from medclip_dcl.config import Config

KIND = Kind("image_model", 1, "train")


@dataclass(frozen=True)
class ImageModel:
    """An image-only model whose bytes have been checked."""

    path: Path
    """Its folder."""
    digest: str
    """Digest of all its files."""
    config: Config
    """The configuration that it was trained with; `work` is the model's own folder."""
    card: Mapping[str, Any]
    """Facts about it."""

    def weights(self) -> dict[str, Tensor]:
        """Read the weights.

        Returns:
            Parameters and buffers by name, on the CPU.

        Raises:
            CheckpointError: they cannot be read, or one is not finite.
        """
        return finite_weights(self.path)


def write_image_model(
    folder: Path, weights: Mapping[str, Tensor], config: Config, card: Mapping[str, Any]
) -> None:
    """Write the files of an image-only model.

    Args:
        folder: the draft's directory.
        weights: parameters and buffers by name.
        config: the configuration.
        card: facts about the model, JSON-serialisable.
    """
    write_weights(folder, weights)
    write_config_and_card(folder, config, card)


def read_image_model(path: Path) -> ImageModel:
    """Open an image-only model after checking every byte.

    Args:
        path: its folder.

    Returns:
        The model's facts; `weights()` reads the rest.

    Raises:
        ArtifactError: it is missing, damaged or of another version.
        CheckpointError: its configuration or card cannot be read by this version.
    """
    artifact = open_artifact(path, KIND)
    config, (card,) = read_facts(artifact, CARD)
    return ImageModel(path, artifact.digest, config, card)
