"""A model behind a class of one's own, evaluated as ours are: `evaluate.adapter`."""

import hashlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.settings import EvaluationConfig
from medclip_dcl.models.settings import SimilarityConfig

# Scale of an adapted model's scores: CLIP's largest logit scale. It moves no metric, only the
# `score` that stands next to each margin.
_ADAPTED_GAMMA_SQUARED = 100.0
_RETIRED = ("transformers", "biovil")


def adapter_digest(config: EvaluationConfig) -> str:
    """Name the model of `evaluate.adapter`: SHA-256 of the callable's name and its weights."""
    digest = hashlib.sha256(config.evaluate.adapter.model.encode())
    weights = _adapter_weights(config)
    if weights is not None:
        for file in sorted(weights.rglob("*")) if weights.is_dir() else [weights]:
            if file.is_file():
                digest.update(f"{file.name} {sha256_file(file)}".encode())
    return digest.hexdigest()


def load_adapter(config: EvaluationConfig) -> EvaluatedModel:
    """Build the model that `evaluate.adapter` names; ConfigError where that is impossible."""
    settings = config.evaluate.adapter
    weights = _adapter_weights(config)
    encoders = _callable(settings.model)(*([] if weights is None else [str(weights)]))
    for name in ("embed_images", "embed_sentences"):
        if not callable(getattr(encoders, name, None)):
            raise ConfigError(
                f"what {settings.model} builds has no {name}; it needs embed_images and "
                "embed_sentences"
            )
    kind = getattr(encoders, "similarity", "global")
    try:
        similarity = SimilarityConfig(kind=kind)
    except ValidationError as error:
        raise ConfigError(
            f"what {settings.model} builds has similarity {kind!r}; give a model.similarity.kind"
        ) from error
    return EvaluatedModel(adapter_digest(config), encoders, similarity, _ADAPTED_GAMMA_SQUARED)


def _callable(name: str) -> Callable[..., Any]:
    if not all(name.partition(":")):
        remedy = "; make a package of the checkpoint: medclip adopt" if name in _RETIRED else ""
        raise ConfigError(
            f"evaluate.adapter.model is {name!r}; it must read module:callable{remedy}"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as `python -m` finds it
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.adapter.model {name!r} cannot be imported ({error}); put its module on "
            "the path"
        ) from error
    if not callable(found):
        raise ConfigError(f"evaluate.adapter.model {name!r} is not callable; name a function")
    built: Callable[..., Any] = found
    return built


def _adapter_weights(config: EvaluationConfig) -> Path | None:
    if not config.evaluate.adapter.weights:
        return None
    path = resolve_path(config.evaluate.adapter.weights, config.work)
    if not path.exists():
        raise ConfigError(f"evaluate.adapter.weights names {path}, which does not exist")
    return path
