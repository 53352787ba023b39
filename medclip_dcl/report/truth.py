"""Eta against the class probability, where generated studies or a label table know it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from medclip_dcl.artifacts import claims, manifest
from medclip_dcl.likelihood.diagnostics import Truth
from medclip_dcl.likelihood.label_shares import has_labels, label_shares
from medclip_dcl.report.charts import Labels, Line, draw_points
from medclip_dcl.report.sources import Sources

View = dict[str, Any]
Floats = Float[np.ndarray, " sentences"]


@dataclass(frozen=True)
class CorpusEta:
    """The eta cache as arrays, in its own order.

    Attributes:
        keys: text keys.
        eta: class probabilities.
        pll_nats: pseudo-log-likelihoods; None where eta needs none.
        length: length of each sentence.
        unit: what the length counts.
        count: occurrences in the training split.
    """

    keys: list[str]
    eta: Floats
    pll_nats: Floats | None
    length: Floats
    unit: str
    count: Floats


@dataclass(frozen=True)
class KnownShares:
    """Class probabilities that someone knows.

    Attributes:
        rho: one per sentence of the cache; nan where it is not known.
        name: how the report calls them.
        origin: where they come from.
    """

    rho: Floats
    name: str
    origin: str


def find_truth(sources: Sources, keys: list[str]) -> KnownShares | None:
    """Find class probabilities to hold eta against.

    Args:
        sources: what the report is made from.
        keys: text keys of the eta cache.

    Returns:
        The generator's own where studies are generated, else shares of a label table; None
        where there is neither.
    """
    if sources.rho:
        rho = np.array([sources.rho.get(key, math.nan) for key in keys])
        return KnownShares(rho, "true class probability", "as the generator drew it")
    found = sources.get(claims.KIND, manifest.KIND)
    if found is None or not has_labels(found[1]):
        return None
    shares = label_shares(keys, *found)
    rho = np.where(shares > 0, shares, math.nan)
    return KnownShares(
        rho, "share of labelled studies", "by the label table, which knows neither side nor place"
    )


def truth_chart(corpus: CorpusEta, known: KnownShares, agreement: Truth, cap: float) -> View:
    """Draw eta against the class probability.

    Args:
        corpus: the eta cache.
        known: class probabilities that someone knows.
        agreement: how well eta agrees with them.
        cap: largest eta.

    Returns:
        `title`, `picture` and `meaning`.
    """
    shown = np.isfinite(known.rho) & (known.rho > 0) & (corpus.count > 0)
    rho, eta = known.rho[shown], corpus.eta[shown]
    lines = []
    if shown.any():
        x = np.geomspace(rho.min(), rho.max(), 50)
        lines.append(Line("eta = rho, up to the cap", x.tolist(), np.minimum(x, cap).tolist()))
    lines += _medians(rho, eta)
    labels = Labels(f"Eta against the {known.name}", f"rho: {known.name}", "eta")
    return {
        "title": "Is it right?",
        "picture": draw_points(rho, eta, labels, log_x=True, log_y=True, lines=lines),
        "meaning": f"Eta against the {known.name}, {known.origin}, of {agreement.sentences:,} "
        "sentences. Above the line a sentence is corrected too much, below it too little. "
        f"{_agreement(agreement)}",
    }


def _agreement(found: Truth) -> str:
    parts = {
        "Correlation of the logs": found.pearson_log,
        "as said": found.pearson_log_weighted,
        "median of eta / rho": found.median_ratio,
        "off the capped rho, as said, by a factor of": _factor(found.log_error),
    }
    told = [f"{name} {value:.3g}" for name, value in parts.items() if not math.isnan(value)]
    return f"{'; '.join(told)}." if told else ""


def _factor(log_error: float) -> float:
    return math.exp(log_error) if log_error < 700 else math.inf


def _medians(rho: Floats, eta: Floats) -> list[Line]:
    """Median eta of up to eight equal parts of the sentences, by rho."""
    parts = [part for part in np.array_split(np.argsort(rho, kind="stable"), 8) if len(part) >= 5]
    x = [float(np.median(rho[part])) for part in parts]
    y = [float(np.median(eta[part])) for part in parts]
    above = [place for place, value in enumerate(y) if value > 0]
    if len(above) < 2:
        return []
    return [Line("median eta", [x[place] for place in above], [y[place] for place in above])]
