"""Other people's model as `evaluate.adapter` names it."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medclip_dcl.config import Config, resolve_path
from medclip_dcl.errors import ConfigError
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.files import sha256_file


def adapter_digest(config: Config) -> str:
    """Name an adapted model by what it is built from.

    Args:
        config: the recipe; `evaluate.adapter.model` is set.

    Returns:
        SHA-256 of the callable's name and of every file of its weights, 64 digits.

    Raises:
        ConfigError: the weights are no file and no folder.
    """
    digest = hashlib.sha256(config.evaluate.adapter.model.encode())
    weights = _weights(config)
    if weights is not None:
        files = sorted(weights.rglob("*")) if weights.is_dir() else [weights]
        for file in files:
            if file.is_file():
                digest.update(f"{file.name} {sha256_file(file)}".encode())
    return digest.hexdigest()


def load_adapter(config: Config) -> EvaluatedModel:
    """Build an adapted model.

    Args:
        config: the recipe; `evaluate.adapter.model` is set.

    Returns:
        The model, ready to be examined.

    Raises:
        ConfigError: the callable cannot be imported, or what it builds lacks a function.
    """
    settings = config.evaluate.adapter
    weights = _weights(config)
    encoders = _callable(settings.model)(*([] if weights is None else [str(weights)]))
    for name in ("embed_images", "embed_sentences"):
        if not callable(getattr(encoders, name, None)):
            raise ConfigError(
                f"{settings.model} builds a {type(encoders).__name__} without {name}; it needs "
                "embed_images and embed_sentences"
            )
    return EvaluatedModel(
        adapter_digest(config), encoders, settings.similarity, settings.gamma_squared
    )


def _callable(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"evaluate.adapter.model is {name!r}; it must read module:callable")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the recipe's command, as `python -m` finds it
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.adapter.model {name!r} cannot be imported ({error}); put its module on "
            "the path"
        ) from error
    if not callable(found):
        raise ConfigError(f"evaluate.adapter.model {name!r} is no callable; name one")
    built: Callable[..., Any] = found
    return built


def _weights(config: Config) -> Path | None:
    if not config.evaluate.adapter.weights:
        return None
    path = resolve_path(config.evaluate.adapter.weights, config)
    if not path.exists():
        raise ConfigError(f"evaluate.adapter.weights names {path}, which does not exist")
    return path
