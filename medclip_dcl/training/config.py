"""All sections that a model is trained by, as its package keeps them."""

import json
from pathlib import Path

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.inference.model_package import CONFIG, PackagedConfig
from medclip_dcl.likelihood import EtaConfig, LanguageModelConfig
from medclip_dcl.training.settings import ObjectiveConfig, TrainConfig


class TrainingConfig(PackagedConfig):
    """The sections that make a model: those that it is used by, and how it is trained."""

    language_model: LanguageModelConfig
    eta: EtaConfig
    objective: ObjectiveConfig
    train: TrainConfig


def read_training_config(model: Path) -> TrainingConfig | None:
    """Read how a model, whose bytes have been checked, was trained; None: it was adopted.

    Raises:
        CheckpointError: its configuration cannot be read by this version.
    """
    try:
        tree = json.loads((model / CONFIG).read_text("utf-8"))
        # Another maker's model says nothing of its training.
        return TrainingConfig.model_validate(tree) if "train" in tree else None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"model in {model} has a configuration that this version cannot read; rerun train"
        ) from error
