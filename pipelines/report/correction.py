"""Section about eta: how strongly sentences are corrected, and whether that is right."""

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from medclip_dcl.core.tables import read_table
from medclip_dcl.likelihood import eta
from medclip_dcl.text import sentences

from .charts import Labels, Series, draw_histogram, draw_points
from .sources import Sources, View

Floats = Float[np.ndarray, " sentences"]
Counts = Int[np.ndarray, " sentences"]

_SHOWN = 8
_FAR = 1_000  # a factor whose size no longer matters
_LEAST_DRAWN = 1e-6  # what is less corrected than this is not corrected


@dataclass(frozen=True)
class _Corpus:
    keys: list[str]
    eta: Floats
    pll_nats: Floats | None  # None where eta needs none
    count: Counts  # occurrences in the training split


@dataclass(frozen=True)
class Diagnostics:
    """Figures about the etas of a corpus; sentences are named by their index in the arrays."""

    most_corrected: Int[np.ndarray, " examples"]
    """Training sentences with the largest eta, largest first; ties by count."""
    least_corrected: Int[np.ndarray, " examples"]
    """Training sentences with the smallest eta, smallest first; ties by count."""
    spearman_pll_count: float
    """Rank correlation of likelihood and count over training sentences; nan where undefined."""
    spearman_eta_count: float
    """The same of eta and count."""
    mean_eta: float
    """Mean eta of a training sentence, each as often as it is said: the share of a batch that is
    expected to be false negatives."""


@dataclass(frozen=True)
class TruthAgreement:
    """Agreement of eta with the true class probability rho, over sentences that have one."""

    sentences: int
    pearson_log: float
    """Pearson correlation of log eta and log rho, both above 0."""
    pearson_log_weighted: float
    """The same, each sentence as often as it is said."""
    median_ratio: float
    """Median of eta / rho."""
    log_error: float
    """Root mean square of log eta - log min(rho, cap), each sentence as often as it is said, nats;
    nan where training says none."""


def describe_eta(sources: Sources) -> View | None:
    """Show how strongly sentences are corrected, and which, and whether that is right."""
    artifacts = sources.get(eta.ARTIFACT, sentences.ARTIFACT)
    if artifacts is None:
        return None
    cache, texts = artifacts
    settings = cache.fingerprint["settings"]["eta"]
    distinct = sentences.distinct_sentences(texts)
    text_of = dict(zip(distinct["text_key"].to_pylist(), distinct["text"].to_pylist(), strict=True))
    corpus = _read(read_table(cache.path, eta.ETA))
    look = diagnose(corpus.eta, corpus.pll_nats, corpus.count, _SHOWN)
    expected = sources.negatives * look.mean_eta

    def rows(indices: Int[np.ndarray, " examples"]) -> list[View]:
        return [
            {
                "text": text_of[corpus.keys[index]],
                "eta": corpus.eta[index],
                "pll_nats": None if corpus.pll_nats is None else corpus.pll_nats[index],
                "count": int(corpus.count[index]),
            }
            for index in ([] if sources.settings.private else indices)
        ]

    charts = _charts(corpus)
    if sources.rho:
        rho = np.array([sources.rho.get(key, math.nan) for key in corpus.keys])
        charts.append(_truth_chart(corpus, rho, settings["eta_max"]))
    figures = {
        "distinct sentences": len(corpus.keys),
        "mean eta of a training sentence": look.mean_eta,
        "negatives of an anchor, N": sources.negatives,
        "expected false negatives among them, N · eta": expected,
        "occurrences at the cap": cache.summary.get("capped_share_weighted"),
        "distinct sentences at the cap": cache.summary.get("capped_share"),
        "rank correlation of eta and occurrences": look.spearman_eta_count,
    }
    if corpus.pll_nats is not None:
        figures["rank correlation of likelihood and occurrences"] = look.spearman_pll_count
    return {
        "settings": settings,
        **{name: cache.summary.get(name, settings.get(name)) for name in ("a", "k")},
        "charts": charts,
        "expected": expected,
        "figures": {
            name: None if value is None or math.isnan(value) else value
            for name, value in figures.items()
        },
        "has_likelihood": corpus.pll_nats is not None,
        "most": rows(look.most_corrected),
        "least": rows(look.least_corrected),
    }


def _read(table: pa.Table) -> _Corpus:
    pll = table["pll_nats"]
    return _Corpus(
        keys=table["text_key"].to_pylist(),
        eta=table["eta"].to_numpy().astype(np.float64),
        pll_nats=None if pll.null_count else pll.to_numpy().astype(np.float64),
        count=table["count"].to_numpy().astype(np.int64),
    )


def _charts(corpus: _Corpus) -> list[View]:
    is_said, clipped = corpus.count > 0, np.maximum(corpus.eta, _LEAST_DRAWN)
    strength = Labels(
        "Histogram of eta over the sentences of the training reports",
        "eta: assumed chance that another image shares its class",
        "sentences, repeats included",
    )
    frequency = Labels(
        "Eta against the number of occurrences", "occurrences in training reports", "eta"
    )
    charts = [
        {
            "title": "How strongly.",
            "picture": draw_histogram(corpus.eta, corpus.count.astype(np.float64), strength),
            "meaning": f"Sentences of the training reports by their eta; {is_said.sum():,} "
            "distinct ones, each counted as often as it occurs.",
        },
        {
            "title": "How often.",
            "picture": draw_points(corpus.count.astype(np.float64), clipped, frequency),
            "meaning": "Both axes are logarithmic, and smaller etas stand at "
            f"{_LEAST_DRAWN:g}. Eta should rise with how often a sentence occurs.",
        },
    ]
    if corpus.pll_nats is not None:
        likelihood = Labels(
            "Histogram of the pseudo-log-likelihood of the distinct sentences",
            "pseudo-log-likelihood, nats",
            "distinct sentences",
        )
        picture = draw_histogram(corpus.pll_nats, np.ones(len(corpus.pll_nats)), likelihood)
        meaning = "The closer to 0, the better the language model could have guessed the sentence."
        charts.insert(1, {"title": "How likely.", "picture": picture, "meaning": meaning})
    return charts


def _truth_chart(corpus: _Corpus, rho: Floats, cap: float) -> View:
    agreement = compare_with_truth(corpus.eta, rho, corpus.count, cap)
    shown = np.isfinite(rho) & (rho > 0) & (corpus.count > 0)
    rho, drawn = rho[shown], np.maximum(corpus.eta[shown], _LEAST_DRAWN)
    lines = []
    if shown.any():
        x = np.geomspace(rho.min(), rho.max(), 50)
        lines.append(Series("eta = rho, up to the cap", x.tolist(), np.minimum(x, cap).tolist()))
    # Median eta of up to eight equal parts of the sentences, by rho.
    parts = [part for part in np.array_split(np.argsort(rho, kind="stable"), 8) if len(part) >= 5]
    if len(parts) > 1:
        medians = [[float(np.median(each[part])) for part in parts] for each in (rho, drawn)]
        lines.append(Series("median eta", *medians))
    chart_labels = Labels(
        "Eta against the true class probability", "rho: true class probability", "eta"
    )
    return {
        "title": "Is it right?",
        "picture": draw_points(rho, drawn, chart_labels, lines=lines),
        "meaning": "Eta against the true class probability, as the generator drew it, of "
        f"{agreement.sentences:,} sentences. Above the line a sentence is corrected too much, "
        f"below it too little. {_agreement_text(agreement)}",
    }


def _agreement_text(agreement: TruthAgreement) -> str:
    parts = {
        "Correlation of the logs": agreement.pearson_log,
        "weighted by occurrences": agreement.pearson_log_weighted,
        "median of eta / rho": agreement.median_ratio,
    }
    reported = [f"{name} {value:.3g}" for name, value in parts.items() if not math.isnan(value)]
    if not math.isnan(agreement.log_error):
        is_far = agreement.log_error > math.log(_FAR)
        factor = f"more than {_FAR:,}" if is_far else f"{math.exp(agreement.log_error):.3g}"
        reported.append(f"an occurrence's eta is off the capped rho by a factor of {factor}")
    return f"{'; '.join(reported)}." if reported else ""


def diagnose(eta: Floats, pll_nats: Floats | None, count: Counts, examples: int) -> Diagnostics:
    """Describe the etas of a corpus's distinct sentences.

    `pll_nats` is None where eta has another source; `count`: how often the training split says each
    sentence; `examples`: how many most and least corrected sentences are named.
    """
    spoken = np.flatnonzero(count > 0)
    weights = count[spoken] / max(1, count[spoken].sum())
    return Diagnostics(
        most_corrected=spoken[np.lexsort((-count[spoken], -eta[spoken]))][:examples],
        least_corrected=spoken[np.lexsort((-count[spoken], eta[spoken]))][:examples],
        spearman_pll_count=math.nan
        if pll_nats is None
        else spearman(pll_nats[spoken], count[spoken]),
        spearman_eta_count=spearman(eta[spoken], count[spoken]),
        mean_eta=float((eta[spoken] * weights).sum()),
    )


def compare_with_truth(eta: Floats, rho: Floats, count: Counts, cap: float) -> TruthAgreement:
    """Compare estimated with true class probabilities, over sentences whose rho is not nan.

    `count` says how often training says each; rho is capped at `cap` in `log_error`.
    """
    positive = np.isfinite(rho) & (rho > 0) & (eta > 0)
    log_eta, log_rho = np.log(eta[positive]), np.log(rho[positive])
    ratio, weights = eta[positive] / rho[positive], count[positive].astype(np.float64)
    off = log_eta - np.minimum(log_rho, np.log(cap))
    total = weights.sum()
    return TruthAgreement(
        sentences=int(np.isfinite(rho).sum()),
        pearson_log=_pearson(log_eta, log_rho, np.ones(len(log_eta))),
        pearson_log_weighted=_pearson(log_eta, log_rho, weights),
        median_ratio=float(np.median(ratio)) if len(ratio) else math.nan,
        log_error=float(np.sqrt((weights * off**2).sum() / total)) if total > 0 else math.nan,
    )


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Correlate two orders, ties at their mean rank; nan where fewer than two values differ.

    Source: Spearman 1904.
    """
    a, b = stats.rankdata(x), stats.rankdata(y)
    return _pearson(a, b, np.ones(len(a)))


def _pearson(x: Floats, y: Floats, weights: Floats) -> float:
    total = weights.sum()
    if total <= 0:
        return math.nan
    x, y = x - (x * weights).sum() / total, y - (y * weights).sum() / total
    scale = np.sqrt((weights * x * x).sum() * (weights * y * y).sum())
    return float((weights * x * y).sum() / scale) if scale > 0 else math.nan
