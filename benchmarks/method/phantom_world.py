"""The feature phantom: images as region vectors, reports as bags of words, truth known.

Ten types of finding on two sides are twenty fine findings, Zipf-distributed in order of
type; types 0-4 are called common, 5-9 rare. 40 % of the images are normal. An image is a grid
of 3 x 3 regions of noise; a finding adds its prototype to one region and, weaker, to a
horizontal neighbour: the two are its box. A report mentions most findings, denies common
ones that are absent, and never errs.

The reader of reports sees these alone. Of what they assert it misses a tenth and invents some; of
rare types it knows the main word only. A report that is called normal denies every type.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_dcl.likelihood.eta import cap_eta, eta_from_frequency, eta_from_pll
from medclip_dcl.losses.relations import (
    SAME,
    encode_claims,
    encode_labels,
    encode_truth,
    relation_matrix,
)
from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels

TYPES = FINDINGS[:10]
"""Names that the types borrow, so that claims about them can be encoded."""
COMMON = 5
"""The first five types are common."""
SIDES = ("left", "right")
FINE = len(TYPES) * len(SIDES)
"""Fine findings: number f is type f // 2 on side f % 2."""
GRID, DIM = 3, 24
NORMAL_SHARE, EXTRA_TRIALS, EXTRA_CHANCE = 0.4, 2, 0.35
IMAGE_NOISE, STRENGTH, NEIGHBOUR, DISTRACTOR = 0.7, 7.0, 0.7, 0.8
MENTIONED, COARSE, DENIED, COMBINED = 0.9, 0.3, 0.35, 0.3
MODIFIED = {"fine": 0.35, "coarse": 0.25, "denied": 0.08}
SYNONYMS = np.array([0.6, 0.28, 0.12])
CARRIERS, CUES, SIDE_WORDS, MODIFIERS, NORMALS = 6, 3, 2, 40, 4

Sentence = tuple[str, ...]
"""Words of a sentence, in order."""
PhantomImage = frozenset[int]
"""Fine findings that an image shows."""


@dataclass(frozen=True)
class PhantomImages:
    """Images with their truth."""

    regions: NDArray[np.float32]  # (images, regions, DIM)
    shown: tuple[PhantomImage, ...]
    boxes: tuple[dict[int, tuple[int, int]], ...]
    """Per image, fine finding -> its two regions."""


def zipf(count: int, exponent: float = 1.0) -> NDArray[np.float64]:
    """Give chances that fall with the rank and sum to 1."""
    weights = 1.0 / np.arange(1, count + 1) ** exponent
    return np.asarray(weights / weights.sum())


def prototypes(generator: np.random.Generator) -> NDArray[np.float64]:
    """Draw the direction of each fine finding, (FINE, DIM) unit vectors: partly its type's."""
    of_type = _unit(generator.normal(size=(len(TYPES), DIM)))
    own = _unit(generator.normal(size=(FINE, DIM)))
    return _unit(0.75 * of_type.repeat(len(SIDES), axis=0) + 0.66 * own)


def draw_findings(generator: np.random.Generator) -> PhantomImage:
    """Draw what an image shows, as it falls.

    Nothing for a normal image, else 1 + Binomial(2, .35) different fine findings.
    """
    if generator.random() < NORMAL_SHARE:
        return frozenset()
    count = 1 + int(generator.binomial(EXTRA_TRIALS, EXTRA_CHANCE))
    return frozenset(generator.choice(FINE, count, replace=False, p=zipf(FINE)).tolist())


def draw_balanced(per_finding: int, generator: np.random.Generator) -> list[PhantomImage]:
    """Draw images that show every fine finding equally often, a third of them with another.

    The first `per_finding` have finding 0, and so on.
    """
    images = []
    for fine in np.arange(FINE).repeat(per_finding).tolist():
        others = {fine}
        if generator.random() < EXTRA_CHANCE:
            others.add(int(generator.choice(FINE, p=zipf(FINE))))
        images.append(frozenset(others))
    return images


def draw_images(
    shown: Sequence[PhantomImage], directions: NDArray[np.float64], generator: np.random.Generator
) -> PhantomImages:
    """Draw the region vectors of images, by the directions of `prototypes`."""
    size = (len(shown), GRID * GRID, DIM)
    regions = generator.normal(size=size)
    regions += IMAGE_NOISE * generator.normal(size=(len(shown), 1, DIM))
    boxes = []
    for image, findings in zip(regions, shown, strict=True):
        stray = _unit(generator.normal(size=DIM))
        image[generator.integers(len(image))] += DISTRACTOR * STRENGTH * stray
        indices = {}
        for fine in sorted(findings):
            row, column = generator.integers(GRID, size=2).tolist()
            beside = 1 if column in {0, GRID - 1} else column + int(generator.choice((-1, 1)))
            indices[fine] = (GRID * row + column, GRID * row + beside)
            signal = STRENGTH * generator.uniform(0.7, 1.3) * directions[fine]
            image[indices[fine][0]] += signal
            image[indices[fine][1]] += NEIGHBOUR * signal
        boxes.append(indices)
    return PhantomImages(regions.astype(np.float32), tuple(shown), tuple(boxes))


def draw_report(findings: PhantomImage, generator: np.random.Generator) -> tuple[Sentence, ...]:
    """Write the report of an image: at least one sentence; all are true."""
    reported = [fine for fine in sorted(findings) if generator.random() < MENTIONED]
    said = [_stated(fine, generator) for fine in reported]
    present = {fine // len(SIDES) for fine in findings}
    absent = [kind for kind in range(COMMON) if kind not in present]
    said += [_denied([kind], generator) for kind in absent if generator.random() < DENIED]
    if len(absent) > 1 and generator.random() < COMBINED:
        said.append(_denied(generator.choice(absent, 2, replace=False).tolist(), generator))
    if not findings:
        said.append((f"normal{generator.integers(NORMALS)}",))
    return tuple(said) or (_stated(min(findings), generator),)


def meaning(sentence: Sentence) -> ReportLabels:
    """Say what a sentence claims, as it was meant."""
    types = [TYPES[int(word[4:].split("-")[0])] for word in sentence if word.startswith("type")]
    sides = frozenset(word[4:].split("-")[0] for word in sentence if word.startswith("side"))
    denies = any(word.startswith("cue") for word in sentence)
    return ReportLabels(
        {} if denies else dict.fromkeys(types, sides),
        frozenset(types if denies else ()),
        frozenset(),
        normal=sentence[0].startswith("normal"),
    )


def synonym_of(sentence: Sentence) -> int:
    """Tell how unusual the words for a sentence's findings are: 0 for main words alone."""
    return max((int(word.split("-")[1]) for word in sentence if word.startswith("type")), default=0)


def type_word(kind: int, synonym: int) -> str:
    """Give the word for a type of finding."""
    return f"type{kind}-{synonym}"


def plain_sentences(fine: int) -> list[Sentence]:
    """Give the plainest sentence of a fine finding with each of its synonyms."""
    kind, side = divmod(fine, len(SIDES))
    return [
        (type_word(kind, word), f"side{SIDES[side]}-0", "carrier0") for word in range(len(SYNONYMS))
    ]


def _stated(fine: int, generator: np.random.Generator) -> Sentence:
    kind, side = divmod(fine, len(SIDES))
    words = [_type_word(kind, generator)]
    coarse = generator.random() < COARSE
    if not coarse:
        words.append(f"side{SIDES[side]}-{generator.integers(SIDE_WORDS)}")
    words.append(f"carrier{generator.choice(CARRIERS, p=zipf(CARRIERS, 1.2))}")
    return _modified(words, MODIFIED["coarse" if coarse else "fine"], generator)


def _denied(kinds: Sequence[int], generator: np.random.Generator) -> Sentence:
    words = [f"cue{generator.integers(CUES)}", *(_type_word(kind, generator) for kind in kinds)]
    return _modified(words, MODIFIED["denied"], generator)


def _type_word(kind: int, generator: np.random.Generator) -> str:
    return type_word(kind, int(generator.choice(len(SYNONYMS), p=SYNONYMS)))


def _modified(words: list[str], chance: float, generator: np.random.Generator) -> Sentence:
    if generator.random() < chance:
        words.append(f"modifier{generator.integers(MODIFIERS)}")
    return tuple(words)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


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
