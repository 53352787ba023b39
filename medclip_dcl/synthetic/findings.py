"""The catalogue of fine findings, type x side x zone, and the words that reports have for them."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray


@dataclass(frozen=True)
class FindingType:
    """The vocabulary of a type of finding; `vocabulary.yaml` explains each list."""

    labels: Sequence[str] = ()
    coarse: Sequence[str] = ()
    fine: Sequence[str] = ()
    whole: Sequence[str] = ()
    degrees: Sequence[str] = ()
    absent: Sequence[str] = ()
    denied: Sequence[str] = ()


@dataclass(frozen=True)
class FineFinding:
    """A type at its place; `side` and `zone` are empty where the type has none."""

    type: str
    side: str = ""
    zone: str = ""

    @property
    def name(self) -> str:
        """Words joined by a space: the finding's id in every table."""
        return " ".join(part for part in (self.type, self.side, self.zone) if part)


VOCABULARY: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("vocabulary.yaml").read_text(encoding="utf-8")
)
"""The words of reports; `vocabulary.yaml` explains them."""

TYPES = {name: FindingType(**words) for name, words in VOCABULARY["types"].items()}
"""Every type by name."""

COMMON_TYPES = ("pneumonia", "cardiomegaly", "edema", "effusion", "pneumothorax")
"""The five that zero-shot classification asks for."""

FINE_FINDINGS = tuple(FineFinding(*text.split(", ")) for text in VOCABULARY["by_frequency"])
"""Every fine finding; the n-th is drawn with a weight of 1/n."""

_NORMAL_SHARE = 0.4
_EXTRA_TRIALS, _EXTRA_CHANCE = 2, 0.35


@functools.cache
def finding_weights() -> NDArray[np.float64]:
    """Chance of each of `FINE_FINDINGS` in one draw, in sum 1: Zipf with exponent 1."""
    weights = 1.0 / np.arange(1, len(FINE_FINDINGS) + 1)
    return np.asarray(weights / weights.sum())


def draw_findings(generator: np.random.Generator) -> tuple[FineFinding, ...]:
    """Draw the findings of one study.

    None at all for a normal study (40 %), else 1 + Binomial(2, .35) distinct findings; of two
    that exclude each other on an image the first stays.
    """
    if generator.random() < _NORMAL_SHARE:
        return ()
    count = 1 + int(generator.binomial(_EXTRA_TRIALS, _EXTRA_CHANCE))
    picks = generator.choice(len(FINE_FINDINGS), count, replace=False, p=finding_weights())
    chosen: list[FineFinding] = []
    for pick in picks:
        candidate = FINE_FINDINGS[int(pick)]
        if not any(_exclude(candidate, other) for other in chosen):
            chosen.append(candidate)
    return tuple(chosen)


def _exclude(one: FineFinding, other: FineFinding) -> bool:
    if one.type == other.type == "scoliosis":
        return True
    low = {"effusion", "elevated hemidiaphragm"}
    return one.side == other.side and {one.type, other.type} == low
