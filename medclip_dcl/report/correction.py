"""Sections about the text: sentences, language model, likelihood and the correction eta."""

from typing import Any

import numpy as np
import pyarrow as pa

from medclip_dcl.artifacts import claims, eta_cache, language_model, sentences
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.report.charts import Labels, draw_histogram, draw_points
from medclip_dcl.report.sources import Sources

View = dict[str, Any]

_SHOWN = 8


def describe_text(sources: Sources) -> View | None:
    """Sum up sentences, claims and language model.

    Args:
        sources: what the report is made from.

    Returns:
        A list `facts` of name, value and meaning; None without sentences.
    """
    found = sources.get(sentences.KIND)
    if found is None:
        return None
    summaries = [
        (kind.name.replace("_", " "), sources.artifacts[kind.name].summary)
        for kind in (sentences.KIND, claims.KIND, language_model.KIND)
        if kind.name in sources.artifacts
    ]
    facts = [
        {"stage": stage, "name": name.replace("_", " "), "value": value}
        for stage, summary in summaries
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return {"facts": facts}


def describe_eta(sources: Sources) -> View | None:
    """Show how strongly sentences are corrected, and which.

    Args:
        sources: what the report is made from.

    Returns:
        Charts `histogram`, `likelihood` and `frequency` (None where eta does not come from
        likelihoods), tables `most` and `least` (empty in a private report), the `recipe` and
        the cache's `numbers`; None without an eta cache.
    """
    found = sources.get(eta_cache.KIND, sentences.KIND)
    if found is None:
        return None
    cache, texts = found
    table = read_table(cache.path, eta_cache.ETA)
    eta, count = _numbers(table, "eta"), _numbers(table, "count")
    has_pll = table["pll_nats"].null_count == 0
    pll_nats = _numbers(table, "pll_nats") if has_pll else eta
    is_private = sources.settings.private
    said = dict(zip(*_texts(sentences.distinct_sentences(texts)), strict=True))
    keys = table["text_key"].to_pylist()
    order = np.lexsort((-count, -eta))
    spoken = [int(place) for place in order if count[place] > 0]

    def rows(places: list[int]) -> list[View]:
        return [
            {
                "text": said[keys[place]],
                "eta": eta[place],
                "pll_nats": pll_nats[place] if has_pll else None,
                "count": int(count[place]),
            }
            for place in ([] if is_private else places)
        ]

    return {
        "recipe": cache.recipe["settings"]["eta"],
        "numbers": {
            name.replace("_", " "): value
            for name, value in cache.summary.items()
            if isinstance(value, int | float)
        },
        "sentences": len(eta),
        "histogram": _histogram(eta, count),
        "likelihood": _likelihood(pll_nats, eta) if has_pll else None,
        "frequency": _frequency(pll_nats, count) if has_pll else None,
        "most": rows(spoken[:_SHOWN]),
        "least": rows(spoken[::-1][:_SHOWN]),
    }


def _histogram(eta: np.ndarray, count: np.ndarray) -> str:
    labels = Labels(
        "Histogram of eta over the sentences of the training reports",
        "eta: assumed chance that another film shares the sentence's class",
        "sentences, repeats included",
    )
    return draw_histogram(eta, count, labels)


def _likelihood(pll_nats: np.ndarray, eta: np.ndarray) -> str:
    labels = Labels(
        "Eta against the pseudo-log-likelihood of each distinct sentence",
        "pseudo-log-likelihood, nats",
        "eta",
    )
    return draw_points(pll_nats, eta, labels)


def _frequency(pll_nats: np.ndarray, count: np.ndarray) -> str:
    labels = Labels(
        "Pseudo-log-likelihood against how often each sentence occurs in training reports",
        "occurrences in the training reports",
        "pseudo-log-likelihood, nats",
    )
    return draw_points(np.maximum(count, 0.7), pll_nats, labels, log_x=True)


def _numbers(table: pa.Table, column: str) -> np.ndarray:
    values: np.ndarray = table[column].to_numpy().astype(np.float64)
    return values


def _texts(distinct: pa.Table) -> tuple[list[str], list[str]]:
    return distinct["text_key"].to_pylist(), distinct["text"].to_pylist()
