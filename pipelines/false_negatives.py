"""The table of N eta: how many false negatives a config expects at batches of several sizes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from medclip_dcl.artifact import open_artifact
from medclip_dcl.errors import ArtifactError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.eta import cap_eta, eta_from_pll
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


class Correction(NamedTuple):
    """One eta in a batch of one size."""

    expected: float
    """False negatives to expect: N eta."""
    edge: float
    """Uncorrected loss below which Eq. 8 is not positive and its floor stands, nats."""
    reach: float
    """`edge` as a share of log(N + 1), the loss of a model that knows nothing."""
    largest_weight: float
    """How much more than uncorrected the gradient of an anchor can weigh, at the edge."""


def correction(eta: float, global_batch: int) -> Correction:
    """Compute what an eta means in a batch of at least 2 pairs, for M = 1 and v = x+.

    Source: Wang et al. 2023, Eq. 8 with M = 1: g > 0 is L > log(1 + N eta), for L the
        uncorrected loss of the anchor. The gradient is that of L times
        e**L / (e**L - eta (N + 1)); ours.
    """
    negatives = global_batch - 1
    expected = negatives * eta
    edge = math.log1p(expected)
    return Correction(expected, edge, edge / math.log(global_batch), (1 + expected) / (1 - eta))


def same_correction(eta: float, from_batch: int, to_batch: int) -> float:
    """Give the eta that expects as many false negatives in a batch of another size, at least 2.

    It may be 1 or more, where no smaller batch can be corrected as much. Scaling a and the cap
    together keeps N eta of every sentence, since eta = min(a p**k, cap); k stays.

    Source: ours. An eta that is a true class probability is right at every size; one that
        was chosen for its results at one size is not.
    """
    return eta * (from_batch - 1) / (to_batch - 1)


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
