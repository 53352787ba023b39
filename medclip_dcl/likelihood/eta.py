"""Eta: the class probability of a sentence, its formula and its reader.

Symbols
    p      exp(pll_nats): how likely the sentence is
    a, k   scale and exponent of the estimate
    eta    chance that a random image shares the sentence's class
    N      negatives of an anchor: the global batch less one
    N eta  false negatives to expect among them

`eta.source` names the estimate, which is capped at `eta.eta_max`:

    pll       a * p**k, the paper's
    constant  `eta.constant` for all
    table     column `eta` (or `rho`) of `eta.table`: any other estimate, or the truth

A committed cache holds the eta of every distinct sentence, sorted by text key and read by memory
map.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.errors import ArtifactStale, ConfigError, ScoreError
from medclip_dcl.core.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.likelihood import EtaConfig
from medclip_dcl.text import sentences

Floats = NDArray[np.float64]

ARTIFACT = ArtifactType("eta_cache", 3, "build_eta_cache")

ETA = TableFormat(  # one row per distinct sentence, in order of text_key
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
    wrong = int((~(pll_nats <= 0)).sum())  # so written, NaN is wrong too
    if wrong:
        raise ScoreError(f"{wrong} likelihoods are positive or not a number; rerun score_sentences")
    if k == 0:  # 0 times minus infinity, of an impossible sentence, is not a number
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
    cached, eta = table["text_key"].combine_chunks(), table["eta"].to_numpy()
    wrong = np.flatnonzero(~((eta >= 0) & (eta < 1)))  # null and NaN as well
    if len(wrong):
        raise ScoreError(
            f"{len(wrong)} etas are not in [0, 1), the first of the sentence with key "
            f"{cached[int(wrong[0])]}; rerun build_eta_cache"
        )
    rows = pc.index_in(keys, cached)
    if rows.null_count:
        first = keys.filter(pc.is_null(rows))[0]
        raise ScoreError(
            f"{rows.null_count} sentences have no eta, the first with key {first}; "
            "rerun split_sentences, score_sentences and build_eta_cache"
        )
    values: Floats = eta[rows.to_numpy(zero_copy_only=False)]
    return values


def read_given_table(path: Path) -> dict[str, float]:
    """Read text key -> class probability from a CSV with `text`, and `eta` or `rho`.

    A text may carry the number of a list item, which the corpus's sentences have lost.

    Raises:
        ConfigError: the file cannot be read, lacks a column, holds a value outside
            [0, 1], or two different values for one sentence.
    """
    from medclip_dcl.text.boundaries import without_number  # training does not load the reader

    # Named, as Arrow would take a column of 0 and 1 for whole numbers.
    options = pa_csv.ConvertOptions(
        column_types={"text": pa.string(), "eta": pa.float64(), "rho": pa.float64()}
    )
    try:
        table = pa_csv.read_csv(path, convert_options=options)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError("eta.table cannot be read as CSV with columns text and eta") from error
    values = next((name for name in ("eta", "rho") if name in table.column_names), None)
    # `rho` is what generated sources call the true probability.
    if values is None or "text" not in table.column_names:
        raise ConfigError("eta.table has no columns text and eta (or rho); add them")
    given: dict[str, float] = {}
    for text, value in zip(table["text"].to_pylist(), table[values].to_pylist(), strict=True):
        if text is None or value is None or not 0 <= value <= 1:
            raise ConfigError("eta.table has a row without text or a value in [0, 1]; correct it")
        if given.setdefault(sentences.text_key(without_number(text)), value) != value:
            raise ConfigError("eta.table gives one sentence two values; keep one row of each")
    return given


def used_settings(settings: EtaConfig) -> dict[str, Any]:
    """Pick the settings that a source uses: a change of the others rebuilds nothing."""
    own = {"pll": ("a", "k"), "constant": ("constant",)}.get(settings.source, ())
    return {name: getattr(settings, name) for name in ("source", "eta_max", *own)}


def write_cache(
    folder: Path, settings: EtaConfig, inputs: Mapping[str, Artifact], table: Path | None
) -> dict[str, Any]:
    """Estimate the eta of every distinct sentence, cap it and write the cache's table.

    `inputs` are the artifacts that the source reads, by name, `table` is `eta.table` where that is
    the source. The summary has counts, quantiles of eta, and a and k.

    Raises:
        ArtifactStale: likelihoods are those of other sentences.
        ConfigError: the table is malformed.
        ScoreError: a likelihood is positive, or the table lacks a sentence.
    """
    distinct = sentences.distinct_sentences(inputs[sentences.ARTIFACT.name])
    pll_nats = tokens = pa.nulls(len(distinct))  # a constant or a table needs no likelihood
    line = {}
    if settings.source == "pll":
        scored = _scored(inputs, distinct)
        pll_nats, tokens = scored["pll_nats"], scored["tokens"]
        line = {"a": settings.a, "k": settings.k}
        raw = eta_from_pll(torch.from_numpy(pll_nats.to_numpy().copy()), **line)
    elif table is not None:
        keys, values = distinct["text_key"].to_pylist(), read_given_table(table)
        if missing := [key for key in keys if key not in values]:
            raise ScoreError(
                f"eta.table lacks {len(missing)} of {len(keys)} sentences, the first with key "
                f"{missing[0]}; add them (0: no correction)"
            )
        raw = torch.tensor([values[key] for key in keys], dtype=torch.float64)
    else:
        raw = torch.full((len(distinct),), settings.constant, dtype=torch.float64)
    capped = cap_eta(raw, settings.eta_max).numpy()
    # Likelihoods travel with the cache: the report draws eta against them.
    columns = {
        "text_key": distinct["text_key"],
        "eta": pa.array(capped, pa.float64()),
        "pll_nats": pll_nats,
        "tokens": tokens,
        "count": distinct["count"],
    }
    write_table(folder, ETA, pa.table(columns))
    count = distinct["count"].to_numpy().astype(np.int64)
    return _summary(raw.numpy(), capped, count, settings) | line


def _scored(inputs: Mapping[str, Artifact], distinct: pa.Table) -> pa.Table:
    from medclip_dcl.likelihood import scoring  # imports transformers

    scored = read_table(inputs[scoring.ARTIFACT.name].path, scoring.LIKELIHOODS)
    if not scored["text_key"].equals(distinct["text_key"]):
        raise ArtifactStale("likelihoods and sentences differ; rerun score_sentences")
    return scored


def _summary(
    raw: Floats, eta: Floats, count: NDArray[np.int64], settings: EtaConfig
) -> dict[str, Any]:
    weights = count / max(1, count.sum())  # as often as training meets a sentence
    is_capped = raw > settings.eta_max
    low, middle, high = np.quantile(eta, [0.05, 0.5, 0.95])
    figures = {
        "capped_share": is_capped.mean(),
        "capped_share_weighted": (is_capped * weights).sum(),
        "eta_mean": eta.mean(),
        "eta_mean_weighted": (eta * weights).sum(),
        "eta_p5": low,
        "eta_median": middle,
        "eta_p95": high,
        "eta_zero_share": (eta == 0).mean(),
    }
    rounded = {name: round(float(value), 6) for name, value in figures.items()}
    return {"source": settings.source, "sentences": len(eta), **rounded}
