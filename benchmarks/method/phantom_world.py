"""The feature phantom: images as region vectors, reports as bags of words, truth known.

Ten types of finding on two sides are twenty fine findings, Zipf-distributed in order of
type; types 0-4 are called common, 5-9 rare. 40 % of the images are normal. An image is a grid
of 3 x 3 regions of noise; a finding adds its prototype to one region and, weaker, to a
horizontal neighbour: the two are its box. A report mentions most findings, denies common
ones that are absent, and never errs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
