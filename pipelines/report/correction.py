"""Sections about eta: how strongly sentences are corrected, and whether that is right.

Batches are drawn as training draws them and searched for negatives that are none: how many were
expected, how many there are, and which.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import eta
from medclip_dcl.losses.relations import SAME, UNCLEAR, relation_matrix
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.corpus import Corpus, read_corpus
from medclip_dcl.training.settings import ObjectiveConfig
from medclip_dcl.training.supervision import read_supervision

from .charts import Labels, Series, draw_histogram, draw_lines, draw_points
from .corpus import sentences_of, show_image
from .diagnostics import Diagnostics, TruthAgreement, audit_parts, diagnose
from .sources import EXAMPLES, Sources

View = dict[str, Any]
Floats = Float[np.ndarray, " sentences"]


@dataclass(frozen=True)
class _CorpusEta:
    keys: list[str]
    eta: Floats
    pll_nats: Floats | None  # None where eta needs none
    count: Floats  # occurrences in the training split


@dataclass(frozen=True)
class _KnownShares:
    rho: Floats  # one per sentence of the cache; nan where it is not known
    name: str
    origin: str


def _find_truth(sources: Sources, keys: list[str]) -> _KnownShares | None:
    # Class probabilities to hold eta against: the generator's.
    if sources.rho:
        rho = np.array([sources.rho.get(key, math.nan) for key in keys])
        return _KnownShares(rho, "true class probability", "as the generator drew it")
    return None


def _truth_chart(
    corpus: _CorpusEta, known: _KnownShares, agreement: TruthAgreement, cap: float
) -> View:
    shown = np.isfinite(known.rho) & (known.rho > 0) & (corpus.count > 0)
    rho, eta = known.rho[shown], np.maximum(corpus.eta[shown], _LEAST_DRAWN)
    lines = []
    if shown.any():
        x = np.geomspace(rho.min(), rho.max(), 50)
        lines.append(Series("eta = rho, up to the cap", x.tolist(), np.minimum(x, cap).tolist()))
    lines += _medians(rho, eta)
    labels = Labels(f"Eta against the {known.name}", f"rho: {known.name}", "eta")
    return {
        "title": "Is it right?",
        "picture": draw_points(rho, eta, labels, log_x=True, log_y=True, lines=lines),
        "meaning": f"Eta against the {known.name}, {known.origin}, of {agreement.sentences:,} "
        "sentences. Above the line a sentence is corrected too much, below it too little. "
        f"{_agreement(agreement)}",
    }


def _agreement(found: TruthAgreement) -> str:
    parts = {
        "Correlation of the logs": found.pearson_log,
        "weighted by occurrences": found.pearson_log_weighted,
        "median of eta / rho": found.median_ratio,
    }
    reported = [f"{name} {value:.3g}" for name, value in parts.items() if not math.isnan(value)]
    if not math.isnan(found.log_error):
        is_far = found.log_error > math.log(_FAR)
        factor = f"more than {_FAR:,}" if is_far else f"{math.exp(found.log_error):.3g}"
        reported.append(f"an occurrence's eta is off the capped rho by a factor of {factor}")
    return f"{'; '.join(reported)}." if reported else ""


def _medians(rho: Floats, eta: Floats) -> list[Series]:
    # Median eta of up to eight equal parts of the sentences, by rho.
    parts = [part for part in np.array_split(np.argsort(rho, kind="stable"), 8) if len(part) >= 5]
    x = [float(np.median(rho[part])) for part in parts]
    y = [float(np.median(eta[part])) for part in parts]
    above = [index for index, value in enumerate(y) if value > 0]
    if len(above) < 2:
        return []
    return [Series("median eta", [x[index] for index in above], [y[index] for index in above])]


_SHOWN = 8
_FAR = 1_000  # a factor whose size no longer matters
_LEAST_DRAWN = 1e-6  # what is less corrected than this is not corrected


def describe_eta(sources: Sources) -> View | None:
    """Show how strongly sentences are corrected, and which, and whether that is right."""
    found = sources.get(eta.ARTIFACT, sentences.ARTIFACT)
    if found is None:
        return None
    cache, texts = found
    settings = cache.fingerprint["settings"]["eta"]
    distinct = sentences.distinct_sentences(texts)
    said = dict(zip(distinct["text_key"].to_pylist(), distinct["text"].to_pylist(), strict=True))
    corpus = _read(read_table(cache.path, eta.ETA))
    truth = _find_truth(sources, corpus.keys)
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
        charts.append(_truth_chart(corpus, truth, look.truth, settings["eta_max"]))
    return {
        "settings": settings,
        **{name: cache.summary.get(name, settings.get(name)) for name in ("a", "k")},
        "fit": settings.get("fit", ""),
        "charts": charts,
        "expected": look.expected_false_negatives,
        "figures": _figures(cache, corpus, look, sources.negatives),
        "has_likelihood": corpus.pll_nats is not None,
        "most": rows(look.most_corrected),
        "least": rows(look.least_corrected),
    }


def _read(table: pa.Table) -> _CorpusEta:
    has_pll = table["pll_nats"].null_count == 0
    return _CorpusEta(
        keys=table["text_key"].to_pylist(),
        eta=_numbers(table, "eta"),
        pll_nats=_numbers(table, "pll_nats") if has_pll else None,
        count=_numbers(table, "count"),
    )


def _charts(corpus: _CorpusEta) -> list[View]:
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
            "distinct ones, each counted as often as it occurs.",
        },
        {
            "title": "How often.",
            "picture": draw_points(
                corpus.count,
                eta,
                Labels(
                    "Eta against the number of occurrences",
                    "occurrences in training reports",
                    "eta",
                ),
                log_x=True,
                log_y=True,
            ),
            "meaning": "Both axes are logarithmic, and smaller etas stand at "
            f"{_LEAST_DRAWN:g}. Eta should rise with how often a sentence occurs.",
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
    cache: Artifact, corpus: _CorpusEta, look: Diagnostics, negatives: int
) -> dict[str, float | None]:
    figures = {
        "distinct sentences": len(corpus.keys),
        "mean eta of a training sentence": look.mean_eta,
        "negatives of an anchor, N": negatives,
        "expected false negatives among them, N · eta": look.expected_false_negatives,
        "occurrences at the cap": cache.summary.get("capped_share_weighted"),
        "distinct sentences at the cap": cache.summary.get("capped_share"),
        "rank correlation of eta and occurrences": look.spearman_eta_count,
    }
    if corpus.pll_nats is not None:
        figures["rank correlation of likelihood and occurrences"] = look.spearman_pll_count
    return {
        name: None if value is None or math.isnan(value) else value
        for name, value in figures.items()
    }


def _numbers(table: pa.Table, column: str) -> Float[np.ndarray, " items"]:
    values: np.ndarray = table[column].to_numpy().astype(np.float64)
    return values


@dataclass(frozen=True)
class Suspect:
    """A sentence, and a negative of it that its report makes a positive: rows of the corpus."""

    text: int
    image: int  # of the other study
    study: int
    eta: float  # of the sentence


def audit_batches(
    corpus: Corpus,
    sentence_codes: Int8[Tensor, "texts codes"],
    report_codes: Int8[Tensor, "studies codes"],
    size: int,
    batches: int,
    seed: int,
) -> tuple[View, list[Suspect]]:
    """Draw batches as training draws them and count their false negatives.

    A batch of `size` anchors is at most the whole corpus. Gives means over batches, and the false
    negatives of the largest eta, one per sentence, largest first.
    """
    rng = np.random.default_rng(seed)
    size = min(size, len(corpus.study_ids))
    counts = []
    found: dict[int, Suspect] = {}
    for _ in range(batches):
        studies = rng.choice(len(corpus.study_ids), size, replace=False)
        texts = corpus.text_of[corpus.sentences.pick(studies, rng.uniform(size=size))]
        images = corpus.images.pick(studies, rng.uniform(size=size))
        relation = relation_matrix(sentence_codes[texts], report_codes[studies])
        relation[torch.arange(size), torch.arange(size)] = -1  # its own image is not a negative
        eta = corpus.eta[texts].astype(np.float64)
        is_same = (relation == SAME).numpy()
        counts.append(((size - 1) * eta.sum(), is_same.sum(), int((relation == UNCLEAR).sum())))
        for anchor in np.flatnonzero(is_same.any(axis=1)):
            other = int(is_same[anchor].argmax())
            text = int(texts[anchor])
            suspect = Suspect(text, int(images[other]), int(studies[other]), float(eta[anchor]))
            found.setdefault(text, suspect)
    negatives = size * (size - 1)
    expected, same, unclear = np.array(counts, dtype=np.float64).T
    means = {
        "batches": batches,
        "negatives": negatives,
        "expected": float(expected.mean()),
        "same": float(same.mean()),
        "unclear": float(unclear.mean()),
        "least": float(same.min()),
        "most": float(same.max()),
    }
    return means, sorted(found.values(), key=lambda item: (-item.eta, item.text))


_BATCHES = 200
_SEED = 0
_SAID = 4


def audit_negatives(sources: Sources) -> View | None:
    """Hold the false negatives that eta expects against those that there are."""
    found = sources.get(eta.ARTIFACT)
    if found is None or sources.negatives < 1:
        return None
    table = read_table(found[0].path, eta.ETA, ["text_key", "eta", "count"])
    keys = table["text_key"].to_pylist()
    values, count = table["eta"].to_numpy(), table["count"].to_numpy().astype(np.int64)
    known = _find_truth(sources, keys)
    rho = np.full(len(values), np.nan) if known is None else known.rho
    parts = audit_parts(values.astype(np.float64), rho, count, sources.negatives)
    batches, suspects = _audit_batches(sources)
    return {
        "negatives": sources.negatives,
        "parts": parts,
        "origin": "" if known is None else f"{known.name}, {known.origin}",
        "picture": _draw(parts) if len(parts) > 1 else None,
        "batches": batches,
        "suspects": suspects,
    }


def _draw(parts: list[Any]) -> str:
    numbers = list(range(1, len(parts) + 1))
    lines = [Series("expected, N · eta", numbers, [part.expected for part in parts])]
    reported = [
        (number, part.real) for number, part in enumerate(parts, 1) if part.real is not None
    ]
    if reported:
        lines.append(Series("real", *zip(*reported, strict=True)))
    labels = Labels(
        "False negatives of an anchor by tenth of the sentences: expected and real",
        "tenth of the training sentences, by eta",
        "false negatives of an anchor",
    )
    return draw_lines(lines, labels)


def _audit_batches(sources: Sources) -> tuple[View | None, list[View]]:
    needed = sources.get(
        manifest.ARTIFACT, prepared.ARTIFACT, sentences.ARTIFACT, eta.ARTIFACT, labels.ARTIFACT
    )
    if needed is None:
        return None, []
    listed, prepared_artifact, texts, cache, claimed = needed
    images = PreparedImages(prepared_artifact)
    try:
        corpus = read_corpus(listed, images, texts, cache, "train")
    except StudyError:  # no study of the split has image and sentence
        return None, []
    reading = ObjectiveConfig(relation="claims")
    supervision = read_supervision(reading, corpus, listed, claimed)
    means, suspects = audit_batches(
        corpus,
        supervision.of_texts["sentence_codes"],
        supervision.of_studies["report_codes"],
        sources.negatives + 1,
        _BATCHES,
        _SEED,
    )
    shown = suspects[: 0 if sources.settings.private else EXAMPLES]
    said = sentences_of({corpus.study_ids[item.study] for item in shown}, texts)
    return means, [
        show_image(images, corpus.image_ids[item.image], [])
        | {
            "sentence": corpus.texts[item.text],
            "eta": item.eta,
            "says": said[corpus.study_ids[item.study]][:_SAID],
        }
        for item in shown
    ]
