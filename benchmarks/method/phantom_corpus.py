"""The training corpus of the phantom: who says what, what a reader makes of it, eta.

The reader sees reports alone. Of what they assert it misses a tenth and invents some; of
rare types it knows the main word only. A report that is called normal denies every type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.method.phantom_world import (
    COMMON,
    SIDES,
    TYPES,
    PhantomImage,
    PhantomImages,
    Sentence,
    meaning,
    synonym_of,
)
from medclip_dcl.likelihood.eta import cap_eta, eta_from_frequency, eta_from_pll
from medclip_dcl.losses.relations import (
    SAME,
    encode_claims,
    encode_labels,
    encode_truth,
    relation_matrix,
)
from medclip_dcl.text.labeler.labels import ReportLabels

MISSED, INVENTED = 0.1, 0.01
DROPPED_BY_WORSE, INVENTED_BY_WORSE = 0.1, 0.05
"""What the two worse readers of the controls lose or add on top."""
ETA_MAX, A, K = 0.2, 0.2, 0.35
PROXY_CORRELATION = 0.5
"""Correlation of the simulated log-likelihood with the log of the true class probability."""
_SILENT = ReportLabels({}, frozenset(), frozenset(), normal=False)


@dataclass(frozen=True)
class Corpus:
    """What training reads, by image and by distinct sentence."""

    images: PhantomImages
    sentences: tuple[Sentence, ...]
    """Distinct sentences."""
    said: tuple[NDArray[np.int64], ...]
    """Per image, its report as numbers of sentences."""
    relations: Mapping[str, Tensor]
    """Source -> int8 codes, (sentences, images)."""
    etas: Mapping[str, Tensor]
    """Source -> class probability of each sentence."""
    similarity: Tensor
    """Cosine of the bags of words of two sentences."""
    overlap: Tensor
    """Whether two images share a common type."""


def build_corpus(
    images: PhantomImages, reports: Sequence[tuple[Sentence, ...]], generator: np.random.Generator
) -> Corpus:
    """Prepare everything that a loss may ask for.

    The reader's errors and the controls are drawn.
    """
    sentences = tuple(sorted({sentence for report in reports for sentence in report}))
    number = {sentence: index for index, sentence in enumerate(sentences)}
    said = tuple(np.array([number[sentence] for sentence in report]) for report in reports)
    meant = [meaning(sentence) for sentence in sentences]
    truth = relation_matrix(encode_claims(meant), encode_truth([_sides(f) for f in images.shown]))
    rho = (truth == SAME).double().mean(dim=1).numpy()
    reports_with = np.bincount(np.concatenate([np.unique(row) for row in said]))
    common = torch.tensor(
        [
            [kind in {f // len(SIDES) for f in image} for kind in range(COMMON)]
            for image in images.shown
        ]
    ).float()
    return Corpus(
        images,
        sentences,
        said,
        _relations(sentences, meant, said, truth, generator),
        _etas(rho, reports_with, len(reports), generator),
        _word_cosine(sentences),
        common @ common.T > 0,
    )


def _relations(
    sentences: Sequence[Sentence],
    meant: Sequence[ReportLabels],
    said: Sequence[NDArray[np.int64]],
    truth: Tensor,
    generator: np.random.Generator,
) -> dict[str, Tensor]:
    read = [own if _is_read(text) else _SILENT for text, own in zip(sentences, meant, strict=True)]
    anchors = encode_claims(read)
    by_report = [_report_claims([read[s] for s in row], generator) for row in said]
    reports = encode_claims(by_report)
    labels = encode_labels([_labels([meant[s] for s in row]) for row in said])
    shuffled = reports[torch.from_numpy(generator.permutation(len(reports)))]
    apart = generator.spawn(1)[0]  # what is drawn here moves no other draw
    dropped = [worsen(claims, TYPES, apart, dropped=DROPPED_BY_WORSE) for claims in by_report]
    invented = [worsen(claims, TYPES, apart, invented=INVENTED_BY_WORSE) for claims in by_report]
    return {
        "claims": relation_matrix(anchors, reports),
        "labels": relation_matrix(anchors, labels),
        "truth": truth,
        "shuffled": relation_matrix(anchors, shuffled),
        "dropped": relation_matrix(anchors, encode_claims(dropped)),
        "invented": relation_matrix(anchors, encode_claims(invented)),
    }


def read_reports(
    reports: Sequence[tuple[Sentence, ...]], generator: np.random.Generator
) -> list[ReportLabels]:
    """Read whole reports with the errors that the training reports are read with."""
    return [
        _report_claims([meaning(s) if _is_read(s) else _SILENT for s in report], generator)
        for report in reports
    ]


def worsen(
    claims: ReportLabels,
    names: Sequence[str],
    generator: np.random.Generator,
    *,
    dropped: float = 0.0,
    invented: float = 0.0,
) -> ReportLabels:
    """Read a report worse: a share of its findings dropped, of all `names` invented."""
    asserted = {
        name: sides for name, sides in claims.asserted.items() if generator.random() >= dropped
    }
    for name in names:
        if generator.random() < invented:
            side = frozenset({SIDES[generator.integers(len(SIDES))]})
            asserted[name] = asserted.get(name, frozenset()) | side
    negated = claims.negated - asserted.keys()
    return ReportLabels(asserted, negated, claims.uncertain, claims.normal and not asserted)


def _is_read(sentence: Sentence) -> bool:
    known = set(TYPES[:COMMON])
    claims = meaning(sentence)
    return synonym_of(sentence) == 0 or {*claims.asserted, *claims.negated} <= known


def _report_claims(said: Sequence[ReportLabels], generator: np.random.Generator) -> ReportLabels:
    """Bring together what the reader makes of a report's sentences."""
    asserted: dict[str, frozenset[str]] = {}
    for claims in said:
        if claims.asserted and generator.random() >= MISSED:
            for name, sides in claims.asserted.items():
                asserted[name] = asserted.get(name, frozenset()) | sides
    for name in TYPES:
        if generator.random() < INVENTED:
            side = frozenset({SIDES[generator.integers(len(SIDES))]})
            asserted[name] = asserted.get(name, frozenset()) | side
    normal = any(claims.normal for claims in said)
    denied = set(TYPES) if normal else set().union(*(claims.negated for claims in said))
    return ReportLabels(
        asserted, frozenset(denied - asserted.keys()), frozenset(), normal and not asserted
    )


def _labels(said: Sequence[ReportLabels]) -> dict[str, int | None]:
    """The row of a label table that a report earns: no side, read without error."""
    row: dict[str, int | None] = {name: 0 for claims in said for name in claims.negated}
    row |= {name: 1 for claims in said for name in claims.asserted}
    if any(claims.normal for claims in said):
        row = {"No Finding": 1, **dict.fromkeys(TYPES, 0)}
    return row


def _sides(image: PhantomImage) -> dict[str, frozenset[str]]:
    shown: dict[str, frozenset[str]] = {}
    for fine in image:
        name = TYPES[fine // len(SIDES)]
        shown[name] = shown.get(name, frozenset()) | {SIDES[fine % len(SIDES)]}
    return shown


def _etas(
    rho: NDArray[np.float64],
    reports_with: NDArray[np.int64],
    reports: int,
    generator: np.random.Generator,
) -> dict[str, Tensor]:
    log_rho = np.log(rho)
    spread, middle = log_rho.std(), log_rho.mean()
    noise = generator.normal(size=len(rho))
    mixed = PROXY_CORRELATION * (log_rho - middle) / spread
    mixed += np.sqrt(1 - PROXY_CORRELATION**2) * noise
    pll = eta_from_pll(torch.from_numpy(middle + spread * mixed).clamp(max=0), A, K)
    oracle = cap_eta(torch.from_numpy(rho), ETA_MAX)
    frequency = torch.from_numpy(eta_from_frequency(reports_with, reports))
    order = torch.from_numpy(generator.permutation(len(rho)))
    etas = {"pll": cap_eta(pll, ETA_MAX), "frequency": cap_eta(frequency, ETA_MAX)}
    etas["oracle"] = oracle
    for name in ("pll", "oracle"):
        etas[f"{name} reversed"] = _reversed(etas[name])
        etas[f"{name} shuffled"] = etas[name][order]
    return {name: eta.float() for name, eta in etas.items()}


def _reversed(eta: Tensor) -> Tensor:
    """Give the largest value to the sentence with the smallest, and so on."""
    rank = eta.argsort(stable=True)
    turned = torch.empty_like(eta)
    turned[rank] = eta[rank.flip(0)]
    return turned


def _word_cosine(sentences: Sequence[Sentence]) -> Tensor:
    words = sorted({word for sentence in sentences for word in sentence})
    bags = torch.zeros(len(sentences), len(words))
    for row, sentence in enumerate(sentences):
        for word in sentence:
            bags[row, words.index(word)] = 1
    bags = torch.nn.functional.normalize(bags, dim=1)
    return bags @ bags.T
