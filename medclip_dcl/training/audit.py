"""Batches as training draws them, searched for negatives that are none."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int8, Int64
from torch import Tensor

from medclip_dcl.objective.relations import SAME, UNCLEAR, relation_matrix
from medclip_dcl.training.corpus import Corpus


@dataclass(frozen=True)
class Suspect:
    """A sentence, and a negative of it that its report makes a positive.

    Attributes:
        text: number of the sentence among the corpus's texts.
        film: number of the other study's film.
        study: number of that study.
        eta: of the sentence.
    """

    text: int
    film: int
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
    draws = np.random.default_rng(seed)
    size = min(size, len(corpus.study_ids))
    expected, same, unclear = [], [], []
    found: dict[int, Suspect] = {}
    for _ in range(batches):
        studies = draws.choice(len(corpus.study_ids), size, replace=False)
        texts = corpus.text_of[corpus.sentences.pick(studies, draws.uniform(size=size))]
        films = corpus.films.pick(studies, draws.uniform(size=size))
        relation = relation_matrix(sentence_codes[texts], report_codes[studies])
        relation[torch.arange(size), torch.arange(size)] = -1  # its own film is no negative
        eta = corpus.eta[texts].astype(np.float64)
        expected.append(float((size - 1) * eta.sum()))
        same.append(int((relation == SAME).sum()))
        unclear.append(int((relation == UNCLEAR).sum()))
        is_same = (relation == SAME).numpy()
        for anchor in np.flatnonzero(is_same.any(axis=1)):
            other = int(is_same[anchor].argmax())
            text = int(texts[anchor])
            suspect = Suspect(text, int(films[other]), int(studies[other]), float(eta[anchor]))
            found.setdefault(text, suspect)
    ranked = sorted(found.values(), key=lambda item: (-item.eta, item.text))
    return BatchAudit(
        negatives=size * (size - 1),
        expected=np.array(expected, dtype=np.float64),
        same=np.array(same, dtype=np.int64),
        unclear=np.array(unclear, dtype=np.int64),
        suspects=tuple(ranked[:suspects]),
    )
