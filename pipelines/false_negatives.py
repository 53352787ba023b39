"""The table of N eta: how many false negatives a config expects at batches of several sizes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ArtifactError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.eta import cap_eta, correction, eta_from_pll
from medclip_dcl.likelihood.settings import EtaConfig
from medclip_dcl.settings import resolve_path
from medclip_dcl.tables import read_table

from .config import Config

PAPER_BATCH = 64
"""Global batch at which the paper chose a = 0.2 and k = 0.35."""
LIKELIHOODS = (0.0, -1.0, -2.0, -4.0, -8.0, -16.0)
"""Pseudo-log-likelihoods of the table, nats."""
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)
"""Shares of the training sentences of the table, where their eta is known."""


def expected_rows(etas: dict[str, float], batches: Sequence[int]) -> list[tuple[str, ...]]:
    """Give a head and one row per eta: its name, eta, and N eta at each global batch."""
    rows = [("", "eta", *(f"batch {size}" for size in batches))]
    for name, value in etas.items():
        expected = (f"{correction(value, size).expected:.3g}" for size in batches)
        rows.append((name, f"{value:.3g}", *expected))
    return rows


def false_negatives(config: Config) -> str:
    """Give the table of a config, at its own batch, larger ones, and the paper's.

    Rows are quantiles of eta over the training sentences where the cache is there, else
    likelihoods.
    """
    own = config.train.global_batch
    batches = sorted({PAPER_BATCH, *(own * times for times in (1, 2, 4, 8))})
    known = _quantiles(resolve_path(config.work, config.work))
    rows = expected_rows(known or eta_by_likelihood(config.eta), batches)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    head = "false negatives to expect among the negatives of an anchor (N eta)"
    if not known and config.eta.fit != "none":
        head += ", with the a and k that eta.fit will replace"
    return "\n".join([head, *lines])


def eta_by_likelihood(settings: EtaConfig) -> dict[str, float]:
    """Give eta by name where no sentence has been scored yet: the constant, or of likelihoods."""
    if settings.source == "constant":
        return {"constant": settings.constant}
    plls = torch.tensor(LIKELIHOODS, dtype=torch.float64)
    etas = cap_eta(eta_from_pll(plls, settings.a, settings.k), settings.eta_max).tolist()
    return {f"likelihood {pll:g}": value for pll, value in zip(LIKELIHOODS, etas, strict=True)}


def _quantiles(work: Path) -> dict[str, float]:
    """Eta over the training sentences, each as often as it is said."""
    try:
        cache = open_artifact(eta.ARTIFACT.at(work), eta.ARTIFACT, verify=False)
        table = read_table(cache.path, eta.ETA, ["eta", "count"])
    except ArtifactError:
        return {}
    etas, count = (table[name].to_numpy() for name in ("eta", "count"))
    if not count.sum():
        return {}
    found = {"mean": float(np.average(etas, weights=count))}
    quantiles = np.quantile(etas, QUANTILES, weights=count, method="inverted_cdf")
    names = (f"{share:.0%} of sentences up to" for share in QUANTILES)
    return found | dict(zip(names, quantiles.tolist(), strict=True))
