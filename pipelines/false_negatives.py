"""The table of N eta: how many false negatives a recipe expects at batches of several sizes."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from medclip_dcl.artifact import open_artifact
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.errors import ArtifactError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.eta import EtaConfig, correction
from medclip_dcl.tables import read_table

PAPER_BATCH = 64
"""Global batch at which the paper chose a = 0.2 and k = 0.35."""
LIKELIHOODS = (0.0, -1.0, -2.0, -4.0, -8.0, -16.0)
"""Pseudo-log-likelihoods of the table, nats."""
QUANTILES = (0.25, 0.5, 0.75, 0.9, 0.99)
"""Shares of the training sentences of the table, where their eta is known."""


def expected_rows(etas: dict[str, float], batches: Sequence[int]) -> list[tuple[str, ...]]:
    """Give the table of N eta, a head and one row per eta.

    Args:
        etas: name of a row -> eta.
        batches: global batches, one column each.

    Returns:
        Name, eta, and N eta at each batch.
    """
    rows = [("", "eta", *(f"batch {size}" for size in batches))]
    for name, value in etas.items():
        expected = (f"{correction(value, size).expected:.3g}" for size in batches)
        rows.append((name, f"{value:.3g}", *expected))
    return rows


def false_negatives(config: Config) -> str:
    """Give the table of a recipe, at its own batch, larger ones, and the paper's.

    Args:
        config: the recipe.

    Returns:
        Rows: quantiles of eta over the training sentences where the cache is there, else
        likelihoods.
    """
    own = config.train.global_batch
    batches = sorted({PAPER_BATCH, *(own * times for times in (1, 2, 4, 8))})
    etas = _quantiles(resolve_path(config.work, config)) or eta_by_likelihood(config.eta)
    rows = expected_rows(etas, batches)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(["false negatives to expect among the negatives of an anchor (N eta)", *lines])


def eta_by_likelihood(settings: EtaConfig) -> dict[str, float]:
    """Give eta where no sentence has been scored yet.

    Args:
        settings: where eta comes from.

    Returns:
        Name -> eta: the constant, or that of some likelihoods.
    """
    if settings.source == "constant":
        return {"constant": settings.constant}
    return {
        f"likelihood {pll:g}": min(settings.a * math.exp(settings.k * pll), settings.eta_max)
        for pll in LIKELIHOODS
    }


def _quantiles(work: Path) -> dict[str, float]:
    """Eta over the training sentences, each as often as it is said."""
    try:
        cache = open_artifact(eta.ARTIFACT.at(work), eta.ARTIFACT, verify=False)
        table = read_table(cache.path, eta.ETA, ["eta", "count"])
    except ArtifactError:
        return {}
    etas, count = (table[name].to_numpy() for name in ("eta", "count"))
    said = int(count.sum())
    if not said:
        return {}
    order = np.argsort(etas, kind="stable")
    reached = np.cumsum(count[order]) / said
    found = {"mean": float((etas * count).sum() / said)}
    for share in QUANTILES:
        index = int(np.searchsorted(reached, share))
        found[f"{share:.0%} of sentences up to"] = float(etas[order[index]])
    return found
