"""The section about false negatives: how many were expected, how many there are, and which."""

from typing import Any

import numpy as np

from medclip_dcl.artifacts import claims, eta_cache, manifest, prepared, sentences
from medclip_dcl.artifacts.eta_cache import EtaCache
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.config.objective import ObjectiveConfig
from medclip_dcl.errors import StudyError
from medclip_dcl.likelihood.audit import audit_parts
from medclip_dcl.report.charts import Labels, Line, draw_lines
from medclip_dcl.report.corpus import sentences_of, show_film
from medclip_dcl.report.sources import Sources
from medclip_dcl.report.truth import find_truth
from medclip_dcl.training.audit import BatchAudit, audit_batches
from medclip_dcl.training.corpus import Corpus, read_corpus
from medclip_dcl.training.evidence import read_evidence

View = dict[str, Any]

_BATCHES = 200
_SEED = 0
_SAID = 4


def audit_negatives(sources: Sources) -> View | None:
    """Hold the false negatives that eta expects against those that there are.

    Args:
        sources: what the report is made from.

    Returns:
        `parts` by eta with their `picture`, the `origin` of what is known, `batches` and
        `suspects` (both None without claims and films); None without an eta cache.
    """
    found = sources.get(eta_cache.KIND)
    if found is None or sources.negatives < 1:
        return None
    table = read_table(found[0].path, eta_cache.ETA, ["text_key", "eta", "count"])
    keys = table["text_key"].to_pylist()
    eta, count = table["eta"].to_numpy(), table["count"].to_numpy().astype(np.int64)
    known = find_truth(sources, keys)
    rho = np.full(len(eta), np.nan) if known is None else known.rho
    parts = audit_parts(eta.astype(np.float64), rho, count, sources.negatives)
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
    lines = [Line("expected, N · eta", numbers, [part.expected for part in parts])]
    told = [(number, part.real) for number, part in enumerate(parts, 1) if part.real is not None]
    if told:
        lines.append(Line("real", *zip(*told, strict=True)))
    labels = Labels(
        "False negatives of an anchor by tenth of the sentences: expected and real",
        "tenth of the training sentences, by eta",
        "false negatives of an anchor",
    )
    return draw_lines(lines, labels)


def _audit_batches(sources: Sources) -> tuple[View | None, list[View]]:
    needed = sources.get(manifest.KIND, prepared.KIND, sentences.KIND, eta_cache.KIND, claims.KIND)
    if needed is None:
        return None, []
    listed, films, texts, cache, claimed = needed
    images = PreparedImages(films)
    try:
        corpus = read_corpus(listed, images, texts, EtaCache(cache), "train")
    except StudyError:  # no study of the split has film and sentence
        return None, []
    reading = ObjectiveConfig(relation="claims")
    evidence = read_evidence(reading, corpus, listed, claimed, None)
    assert evidence.sentence_codes is not None, "the relation asks for claims"
    assert evidence.report_codes is not None, "the relation asks for claims"
    audit = audit_batches(
        corpus,
        evidence.sentence_codes,
        evidence.report_codes,
        sources.negatives + 1,
        _BATCHES,
        0 if sources.settings.private else sources.settings.examples,
        _SEED,
    )
    return _summed(audit), _suspects(audit, corpus, images, texts)


def _summed(audit: BatchAudit) -> View:
    shares = audit.same / audit.negatives
    return {
        "batches": len(audit.expected),
        "negatives": audit.negatives,
        "expected": float(audit.expected.mean()),
        "same": float(audit.same.mean()),
        "unclear": float(audit.unclear.mean()),
        "expected_share": float(audit.expected.mean() / audit.negatives),
        "same_share": float(shares.mean()),
        "least_share": float(shares.min()),
        "most_share": float(shares.max()),
    }


def _suspects(
    audit: BatchAudit, corpus: Corpus, images: PreparedImages, texts: Artifact
) -> list[View]:
    said = sentences_of({corpus.study_ids[item.study] for item in audit.suspects}, texts)
    return [
        show_film(images, corpus.image_ids[item.film], [])
        | {
            "sentence": corpus.texts[item.text],
            "eta": item.eta,
            "says": said[corpus.study_ids[item.study]][:_SAID],
        }
        for item in audit.suspects
    ]
