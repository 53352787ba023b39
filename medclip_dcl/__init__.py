"""Contrastive training of medical image-text models with sample-specific debiasing.

Nothing is imported before it is asked for (PEP 562): a decode worker, or a loop that
wants a loss alone, does not pay for the rest.
"""

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# Once imported, onnxruntime (1.29 and newer) and openvino write an id of this machine and send
# facts about it and its models to their makers, unless this stands first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it then has a stub

if TYPE_CHECKING:
    from medclip_dcl.data.images import open_image
    from medclip_dcl.inference.adoption import adopt
    from medclip_dcl.inference.predictor import load
    from medclip_dcl.inference.prompts import Finding
    from medclip_dcl.likelihood.eta import eta, eta_from_pll
    from medclip_dcl.likelihood.pll import pseudo_log_likelihood, score_sentences
    from medclip_dcl.losses.debiased import debiased_contrastive_loss, debiasing_gauges
    from medclip_dcl.losses.gather import gather_with_grad
    from medclip_dcl.losses.info_nce import info_nce_loss, multi_positive_loss
    from medclip_dcl.text.labeler.labels import read_claims
    from pipelines.python import evaluate, train

__all__ = [
    "Finding",
    "adopt",
    "debiased_contrastive_loss",
    "debiasing_gauges",
    "eta",
    "eta_from_pll",
    "evaluate",
    "gather_with_grad",
    "info_nce_loss",
    "load",
    "multi_positive_loss",
    "open_image",
    "pseudo_log_likelihood",
    "read_claims",
    "score_sentences",
    "train",
]

# The jobs stand above the library, and no module of it may import them (.importlinter). These two
# are resolved here, by name and when they are asked for, so that a user needs one import.
_HOMES = {
    "Finding": "inference.prompts",
    "adopt": "inference.adoption",
    "debiased_contrastive_loss": "losses.debiased",
    "debiasing_gauges": "losses.debiased",
    "eta": "likelihood.eta",
    "eta_from_pll": "likelihood.eta",
    "evaluate": "pipelines.python",
    "gather_with_grad": "losses.gather",
    "info_nce_loss": "losses.info_nce",
    "load": "inference.predictor",
    "multi_positive_loss": "losses.info_nce",
    "open_image": "data.images",
    "pseudo_log_likelihood": "likelihood.pll",
    "read_claims": "text.labeler.labels",
    "score_sentences": "likelihood.pll",
    "train": "pipelines.python",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name == "__version__":
        return version("medclip-dcl")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
