"""Trackers beside the metrics log: TensorBoard, and what else Accelerate knows by name."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import get_available_trackers

from medclip_dcl.config import Config
from medclip_dcl.config.training import TrainConfig
from medclip_dcl.errors import ConfigError

FOLDER = "trackers"
"""Where trackers write that keep files, below the recipe's folder."""

_RUN = "medclip-dcl"
_PACKAGES = {"tensorboard": "tensorboardX", "comet_ml": "comet-ml"}


def tracker_options(settings: TrainConfig, work: Path | None) -> dict[str, Any]:
    """Give what an `Accelerator` must be told of trackers.

    Args:
        settings: which ones.
        work: the recipe's folder; None: nothing is tracked.

    Returns:
        Arguments of `Accelerator`.

    Raises:
        ConfigError: a tracker's package is not installed.
    """
    if not settings.trackers or work is None:
        return {}
    present = {str(name) for name in get_available_trackers()}
    absent = [name for name in settings.trackers if name not in present]
    if absent:  # Accelerate would leave them out without a word
        packages = " ".join(_PACKAGES.get(name, name) for name in absent)
        raise ConfigError(
            f"train.trackers names {', '.join(absent)}, not installed here; pip install {packages}"
        )
    return {"log_with": list(settings.trackers), "project_dir": str(work / FOLDER)}


def open_trackers(accelerator: Accelerator, config: Config, step: int) -> None:
    """Begin what trackers record of this start of a run; `Accelerator.end_training` ends it.

    Args:
        accelerator: with the arguments of `tracker_options`.
        config: the configuration; trackers are told seed, model, objective and loop.
        step: steps that the run has done; TensorBoard drops what a killed run wrote later.
    """
    if not accelerator.log_with:
        return
    tree = config.model_dump(mode="json", include={"seed", "model", "objective", "train"})
    tensorboard = {"purge_step": step + 1}
    accelerator.init_trackers(_RUN, _plain(tree), {"tensorboard": tensorboard})


def _plain(tree: dict[str, Any], prefix: str = "") -> dict[str, int | float | str | bool]:
    """Flatten settings; where weights lie on this machine is nobody's business."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= _plain(value, f"{prefix}{name}.")
        elif name != "pretrained" and value is not None:
            is_plain = isinstance(value, int | float | str | bool)
            flat[prefix + name] = value if is_plain else str(value)
    return flat
