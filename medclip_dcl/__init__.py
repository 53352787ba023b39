"""Contrastive training of medical image-text models with sample-specific debiasing."""

from importlib import import_module
from typing import Any

_HOMES = {
    "debiased_contrastive_loss": "medclip_dcl.objective.debiased",
    "debiasing_gauges": "medclip_dcl.objective.gauges",
    "eta_from_pll": "medclip_dcl.likelihood.eta",
    "gather_with_grad": "medclip_dcl.objective.gather",
    "info_nce_loss": "medclip_dcl.objective.infonce",
    "load": "medclip_dcl.tasks.predictor",
    "multi_positive_loss": "medclip_dcl.objective.multipositive",
    "open_image": "medclip_dcl.studies.images",
    "pseudo_log_likelihood": "medclip_dcl.likelihood.pll",
    "read_claims": "medclip_dcl.reports.claims",
}

__all__ = [
    "debiased_contrastive_loss",
    "debiasing_gauges",
    "eta_from_pll",
    "gather_with_grad",
    "info_nce_loss",
    "load",
    "multi_positive_loss",
    "open_image",
    "pseudo_log_likelihood",
    "read_claims",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
