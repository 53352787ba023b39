"""Batches as training draws them, searched for negatives that are none.

The section about false negatives: how many were expected, how many there are, and which.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from medclip_dcl.artifact import Artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import StudyError
from medclip_dcl.likelihood import eta
from medclip_dcl.likelihood.diagnostics import audit_parts
from medclip_dcl.likelihood.eta import EtaCache
from medclip_dcl.losses.relations import SAME, UNCLEAR, relation_matrix
from medclip_dcl.reporting.charts import Labels, Line, draw_lines
from medclip_dcl.reporting.corpus import sentences_of, show_image
from medclip_dcl.reporting.correction import find_truth
from medclip_dcl.reporting.sources import Sources
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_dcl.text.labeler import labels
from medclip_dcl.training.dataset import Corpus, read_corpus, read_supervision
from medclip_dcl.training.settings import ObjectiveConfig


@dataclass(frozen=True)
class Suspect:
    """A sentence, and a negative of it that its report makes a positive.

    Attributes:
        text: number of the sentence among the corpus's texts.
        image: number of the other study's image.
        study: number of that study.
        eta: of the sentence.
    """

    text: int
    image: int
    study: int
    eta: float


@dataclass(frozen=True)
class BatchAudit:
    """What was found in some batches.

    Attributes:
        negatives: anchors times negatives of one batch.
        expected: per batch, the sum of N eta over its anchors.
        same: per batch, negatives whose report says what the anchor says.
        unclear: per batch, negatives whose report neither says nor contradicts it.
        suspects: false negatives of the largest eta, one per sentence, largest first.
    """

    negatives: int
    expected: Float64[np.ndarray, " batches"]
    same: Int64[np.ndarray, " batches"]
    unclear: Int64[np.ndarray, " batches"]
    suspects: tuple[Suspect, ...]


def audit_batches(
    corpus: Corpus,
    sentence_codes: Int8[Tensor, "texts codes"],
    report_codes: Int8[Tensor, "studies codes"],
    size: int,
    batches: int,
    suspects: int,
    seed: int,
) -> BatchAudit:
    """Draw batches and count their false negatives.

    Args:
        corpus: the training studies.
        sentence_codes: claims of each distinct text.
        report_codes: claims of each study's report.
        size: anchors of a batch; of a smaller corpus, all its studies.
        batches: how many are drawn.
        suspects: most suspects that are kept.
        seed: of the draws.

    Returns:
        The counts, and the suspects.
    """
    rng = np.random.default_rng(seed)
    size = min(size, len(corpus.study_ids))
    expected, same, unclear = [], [], []
    found: dict[int, Suspect] = {}
    for _ in range(batches):
        studies = rng.choice(len(corpus.study_ids), size, replace=False)
        texts = corpus.text_of[corpus.sentences.pick(studies, rng.uniform(size=size))]
        images = corpus.images.pick(studies, rng.uniform(size=size))
        relation = relation_matrix(sentence_codes[texts], report_codes[studies])
        relation[torch.arange(size), torch.arange(size)] = -1  # its own image is not a negative
        eta = corpus.eta[texts].astype(np.float64)
        expected.append(float((size - 1) * eta.sum()))
        same.append(int((relation == SAME).sum()))
        unclear.append(int((relation == UNCLEAR).sum()))
        is_same = (relation == SAME).numpy()
        for anchor in np.flatnonzero(is_same.any(axis=1)):
            other = int(is_same[anchor].argmax())
            text = int(texts[anchor])
            suspect = Suspect(text, int(images[other]), int(studies[other]), float(eta[anchor]))
            found.setdefault(text, suspect)
    ranked = sorted(found.values(), key=lambda item: (-item.eta, item.text))
    return BatchAudit(
        negatives=size * (size - 1),
        expected=np.array(expected, dtype=np.float64),
        same=np.array(same, dtype=np.int64),
        unclear=np.array(unclear, dtype=np.int64),
        suspects=tuple(ranked[:suspects]),
    )


View = dict[str, Any]

_BATCHES = 200
_SEED = 0
_SAID = 4


def audit_negatives(sources: Sources) -> View | None:
    """Hold the false negatives that eta expects against those that there are.

    Returns:
        `parts` by eta with their `picture`, the `origin` of what is known, `batches` and
        `suspects` (both None without claims and images); None without an eta cache.
    """
    found = sources.get(eta.ARTIFACT)
    if found is None or sources.negatives < 1:
        return None
    table = read_table(found[0].path, eta.ETA, ["text_key", "eta", "count"])
    keys = table["text_key"].to_pylist()
    values, count = table["eta"].to_numpy(), table["count"].to_numpy().astype(np.int64)
    known = find_truth(sources, keys)
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
    lines = [Line("expected, N · eta", numbers, [part.expected for part in parts])]
    reported = [
        (number, part.real) for number, part in enumerate(parts, 1) if part.real is not None
    ]
    if reported:
        lines.append(Line("real", *zip(*reported, strict=True)))
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
        corpus = read_corpus(listed, images, texts, EtaCache(cache), "train")
    except StudyError:  # no study of the split has image and sentence
        return None, []
    reading = ObjectiveConfig(relation="claims")
    supervision = read_supervision(reading, corpus, listed, claimed, None)
    assert supervision.sentence_codes is not None, "the relation asks for claims"
    assert supervision.report_codes is not None, "the relation asks for claims"
    audit = audit_batches(
        corpus,
        supervision.sentence_codes,
        supervision.report_codes,
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
        show_image(images, corpus.image_ids[item.image], [])
        | {
            "sentence": corpus.texts[item.text],
            "eta": item.eta,
            "says": said[corpus.study_ids[item.study]][:_SAID],
        }
        for item in audit.suspects
    ]
