"""The section about eta: how strongly sentences are corrected, and whether that is right."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from medclip_dcl.artifact import Artifact
from medclip_dcl.data import manifest
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.diagnostics import Diagnostics, Truth, diagnose
from medclip_dcl.likelihood.eta import has_labels, label_shares
from medclip_dcl.reporting.charts import Labels, Line, draw_histogram, draw_points
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels

View = dict[str, Any]
Floats = Float[np.ndarray, " sentences"]


@dataclass(frozen=True)
class CorpusEta:
    """The eta cache as arrays, in its own order.

    Attributes:
        keys: text keys.
        eta: class probabilities.
        pll_nats: pseudo-log-likelihoods; None where eta needs none.
        count: occurrences in the training split.
    """

    keys: list[str]
    eta: Floats
    pll_nats: Floats | None
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
    found = sources.get(labels.ARTIFACT, manifest.ARTIFACT)
    if found is None or not has_labels(found[1]):
        return None
    shares = label_shares(keys, *found)
    rho = np.where(shares > 0, shares, math.nan)
    return KnownShares(
        rho,
        "share of labelled studies",
        "by the label table, which knows no side and no site",
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
    reported = [f"{name} {value:.3g}" for name, value in parts.items() if not math.isnan(value)]
    return f"{'; '.join(reported)}." if reported else ""


def _factor(log_error: float) -> float:
    return math.exp(log_error) if log_error < 700 else math.inf


def _medians(rho: Floats, eta: Floats) -> list[Line]:
    """Median eta of up to eight equal parts of the sentences, by rho."""
    parts = [part for part in np.array_split(np.argsort(rho, kind="stable"), 8) if len(part) >= 5]
    x = [float(np.median(rho[part])) for part in parts]
    y = [float(np.median(eta[part])) for part in parts]
    above = [index for index, value in enumerate(y) if value > 0]
    if len(above) < 2:
        return []
    return [Line("median eta", [x[index] for index in above], [y[index] for index in above])]


_SHOWN = 8
_LEAST_DRAWN = 1e-6  # what is less corrected than this is not corrected


def describe_eta(sources: Sources) -> View | None:
    """Show how strongly sentences are corrected, and which, and whether that is right.

    Returns:
        `charts` of title, picture and meaning; `figures` by name; tables
        `most` and `least` (empty in a private report) and the eta `settings`; None without an eta
        cache.
    """
    found = sources.get(eta.ARTIFACT, sentences.ARTIFACT)
    if found is None:
        return None
    cache, texts = found
    settings = cache.fingerprint["settings"]["eta"]
    distinct = sentences.distinct_sentences(texts)
    said = dict(zip(distinct["text_key"].to_pylist(), distinct["text"].to_pylist(), strict=True))
    corpus = _read(read_table(cache.path, eta.ETA))
    truth = find_truth(sources, corpus.keys)
    look = diagnose(
        corpus.eta,
        corpus.pll_nats,
        corpus.count.astype(np.int64),
        sources.negatives,
        examples=_SHOWN,
        rho=None if truth is None else truth.rho,
        cap=settings["eta_max"],
    )

    def rows(indices: Int[np.ndarray, " examples"]) -> list[View]:
        return [
            {
                "text": said[corpus.keys[index]],
                "eta": corpus.eta[index],
                "pll_nats": None if corpus.pll_nats is None else corpus.pll_nats[index],
                "count": int(corpus.count[index]),
            }
            for index in ([] if sources.settings.private else indices)
        ]

    charts = _charts(corpus)
    if truth is not None and look.truth is not None:
        charts.append(truth_chart(corpus, truth, look.truth, settings["eta_max"]))
    return {
        "settings": settings,
        "charts": charts,
        "figures": _figures(cache, corpus, look, sources.negatives),
        "has_likelihood": corpus.pll_nats is not None,
        "most": rows(look.most_corrected),
        "least": rows(look.least_corrected),
    }


def _read(table: pa.Table) -> CorpusEta:
    has_pll = table["pll_nats"].null_count == 0
    return CorpusEta(
        keys=table["text_key"].to_pylist(),
        eta=_numbers(table, "eta"),
        pll_nats=_numbers(table, "pll_nats") if has_pll else None,
        count=_numbers(table, "count"),
    )


def _charts(corpus: CorpusEta) -> list[View]:
    is_said, eta = corpus.count > 0, np.maximum(corpus.eta, _LEAST_DRAWN)
    charts = [
        {
            "title": "How strongly.",
            "picture": draw_histogram(
                corpus.eta,
                corpus.count,
                Labels(
                    "Histogram of eta over the sentences of the training reports",
                    "eta: assumed chance that another image shares its class",
                    "sentences, repeats included",
                ),
            ),
            "meaning": f"Sentences of the training reports by their eta; {is_said.sum():,} "
            "distinct ones, each as often as it is said.",
        },
        {
            "title": "Who is said often.",
            "picture": draw_points(
                corpus.count,
                eta,
                Labels("Eta against the number of occurrences", "times said in training", "eta"),
                log_x=True,
                log_y=True,
            ),
            "meaning": "Both axes are logarithmic, and smaller etas stand at "
            f"{_LEAST_DRAWN:g}. Eta should rise with how often a sentence is said.",
        },
    ]
    if corpus.pll_nats is not None:
        labels = Labels(
            "Histogram of the pseudo-log-likelihood of the distinct sentences",
            "pseudo-log-likelihood, nats",
            "distinct sentences",
        )
        picture = draw_histogram(corpus.pll_nats, np.ones(len(corpus.pll_nats)), labels)
        meaning = "The closer to 0, the better the language model could have guessed the sentence."
        charts.insert(1, {"title": "How likely.", "picture": picture, "meaning": meaning})
    return charts


def _figures(
    cache: Artifact, corpus: CorpusEta, look: Diagnostics, negatives: int
) -> dict[str, float | None]:
    figures = {
        "distinct sentences": len(corpus.keys),
        "mean eta of a training sentence": look.mean_eta,
        "negatives of an anchor, N": negatives,
        "of them false, expected: N · eta": look.expected_false_negatives,
        "sentences at the cap, as said": cache.summary.get("capped_share_weighted"),
        "distinct sentences at the cap": cache.summary.get("capped_share"),
        "rank correlation, eta and times said": look.spearman_eta_count,
    }
    if corpus.pll_nats is not None:
        figures["rank correlation, likelihood and times said"] = look.spearman_pll_count
    return {
        name: None if value is None or math.isnan(value) else value
        for name, value in figures.items()
    }


def _numbers(table: pa.Table, column: str) -> Float[np.ndarray, " items"]:
    values: np.ndarray = table[column].to_numpy().astype(np.float64)
    return values
