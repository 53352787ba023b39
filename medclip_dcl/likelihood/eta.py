"""Eta: the class probability of a sentence, its formula and its reader.

Symbols
    p      exp(pll_nats): how likely the sentence is
    a, k   scale and exponent of the estimate
    eta    chance that a random image shares the sentence's class
    N      negatives of an anchor: the global batch less one
    N eta  false negatives to expect among them

A committed cache holds the eta of every distinct sentence, sorted by text key and read by memory
map. `eta_sources` writes it, by the paper's formula or another estimate.
"""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.errors import ScoreError
from medclip_dcl.core.tables import Column, TableFormat, read_table

Floats = NDArray[np.float64]


ARTIFACT = ArtifactType("eta_cache", 3, "build_eta_cache")

ETA = TableFormat(
    "eta.arrow",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column(
            "eta", pa.float64(), "estimated chance that a random image shares its class, [0, 1)"
        ),
        Column("pll_nats", pa.float64(), "pseudo-log-likelihood, nats; null unless eta needs it"),
        Column("tokens", pa.int32(), "word pieces; null unless eta needs the likelihood"),
        Column("count", pa.int32(), "occurrences in the training split"),
    ),
)
"""One row per distinct sentence, in order of text_key."""


def eta_from_pll(
    pll_nats: Float[Tensor, " sentences"], a: float = 0.2, k: float = 0.35
) -> Float[Tensor, " sentences"]:
    """Estimate each sentence's class probability from its likelihood.

    Args:
        pll_nats: sum of masked-token log-probabilities, nats, at most 0.
        a: scale of the estimate, in (0, 1).
        k: exponent of the estimate, at least 0.

    Returns:
        eta = a * exp(k * pll_nats), in [0, a], in the dtype of `pll_nats`; exactly 0
        where that underflows.

    Raises:
        ScoreError: a PLL is positive or not a number, or a or k is out of its range.

    Source: Wang et al. 2023, Section 2.4: eta = a * p**k; p itself is never formed.
    """
    if not 0 < a < 1 or not (k >= 0 and math.isfinite(k)):
        raise ScoreError(f"eta asks for 0 < a < 1 and k >= 0, got a = {a}, k = {k}")
    wrong = int((~(pll_nats <= 0)).sum())
    if wrong:
        raise ScoreError(f"{wrong} likelihoods are positive or not a number; rerun score_sentences")
    if k == 0:
        return torch.full_like(pll_nats, a)
    return a * torch.exp(k * pll_nats)


def cap_eta(eta: Float[Tensor, " sentences"], eta_max: float) -> Float[Tensor, " sentences"]:
    """Keep eta, which an oracle may give up to 1, at or below a cap in (0, 1).

    Raises:
        ScoreError: an eta is negative or not a number, or the cap is out of its range.

    Source: ours; a sentence that is true of most images would leave no negatives.
    """
    if not 0 < eta_max < 1:
        raise ScoreError(f"eta_max must be in (0, 1), got {eta_max}")
    wrong = int((~(eta >= 0)).sum())
    if wrong:
        raise ScoreError(f"{wrong} etas are negative or not a number; correct their source")
    return eta.clamp(max=eta_max)


def eta(
    pll_nats: Any, a: float = 0.2, k: float = 0.35, eta_max: float = 0.2
) -> Float[Tensor, " sentences"]:
    """Estimate each sentence's class probability, as `build_eta_cache` does, with its cap.

    Args:
        pll_nats: scores of `score_sentences`, or any numbers, nats, at most 0.
        a: scale of the estimate, in (0, 1).
        k: exponent of the estimate, at least 0.
        eta_max: cap, in (0, 1).

    Raises:
        ScoreError: as `eta_from_pll` and `cap_eta`.
    """
    values = torch.as_tensor(pll_nats, dtype=torch.float32).reshape(-1)
    return cap_eta(eta_from_pll(values, a, k), eta_max)


def read_eta(artifact: Artifact, keys: pa.Array | pa.ChunkedArray) -> Floats:
    """Look up the eta of text keys, repeats allowed, in their order.

    Raises:
        ScoreError: a key has no eta, or an eta is not in [0, 1).
    """
    table = read_table(artifact.path, ETA, ["text_key", "eta"])
    known, eta = table["text_key"].combine_chunks(), table["eta"].to_numpy()
    wrong = np.flatnonzero(~((eta >= 0) & (eta < 1)))
    if len(wrong):
        raise ScoreError(
            f"{len(wrong)} etas are not in [0, 1), the first of the sentence with key "
            f"{known[int(wrong[0])]}; rerun build_eta_cache"
        )
    rows = pc.index_in(keys, known)
    if rows.null_count:
        first = keys.filter(pc.is_null(rows))[0]
        raise ScoreError(
            f"{rows.null_count} sentences have no eta, the first with key {first}; "
            "rerun split_sentences, score_sentences and build_eta_cache"
        )
    found: Floats = eta[rows.to_numpy(zero_copy_only=False)]
    return found
