"""The catalogue of fine findings: type x side x zone, in order of frequency."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FindingType:
    """A type of finding and the CheXpert labels that a report of it earns."""

    name: str
    labels: tuple[str, ...]


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


TYPES = {
    item.name: item
    for item in (
        FindingType("cardiomegaly", ("Cardiomegaly",)),
        FindingType("effusion", ("Pleural Effusion",)),
        FindingType("edema", ("Edema",)),
        FindingType("pneumonia", ("Pneumonia", "Lung Opacity")),
        FindingType("pneumothorax", ("Pneumothorax",)),
        FindingType("atelectasis", ("Atelectasis",)),
        FindingType("pacemaker", ("Support Devices",)),
        FindingType("central line", ("Support Devices",)),
        FindingType("endotracheal tube", ("Support Devices",)),
        FindingType("enteric tube", ("Support Devices",)),
        FindingType("sternotomy wires", ("Support Devices",)),
        FindingType("nodule", ("Lung Lesion",)),
        FindingType("granuloma", ("Lung Lesion",)),
        FindingType("cavitary mass", ("Lung Lesion",)),
        FindingType("rib fracture", ("Fracture",)),
        FindingType("hiatal hernia", ()),
        FindingType("scoliosis", ()),
        FindingType("elevated hemidiaphragm", ()),
        FindingType("enlarged aorta", ("Enlarged Cardiomediastinum",)),
        FindingType("hilar enlargement", ("Enlarged Cardiomediastinum",)),
        FindingType("apical thickening", ("Pleural Other",)),
    )
}
"""Every type by name."""

COMMON_TYPES = ("pneumonia", "cardiomegaly", "edema", "effusion", "pneumothorax")
"""The five that zero-shot classification asks for."""

LUNG_TYPES = (
    "effusion",
    "edema",
    "pneumonia",
    "pneumothorax",
    "atelectasis",
    "nodule",
    "granuloma",
    "cavitary mass",
)
"""Types that a sentence such as "The lungs are clear" denies."""

FINE_FINDINGS = (
    FineFinding("cardiomegaly"),
    FineFinding("effusion", "left"),
    FineFinding("edema"),
    FineFinding("pneumonia", "right", "lower"),
    FineFinding("pneumothorax", "right"),
    FineFinding("effusion", "right"),
    FineFinding("pneumonia", "left", "lower"),
    FineFinding("pneumothorax", "left"),
    FineFinding("atelectasis", "left", "lower"),
    FineFinding("pacemaker", "left"),
    FineFinding("central line", "right"),
    FineFinding("pneumonia", "right", "mid"),
    FineFinding("atelectasis", "right", "lower"),
    FineFinding("endotracheal tube"),
    FineFinding("pneumonia", "right", "upper"),
    FineFinding("sternotomy wires"),
    FineFinding("enteric tube"),
    FineFinding("nodule", "right", "upper"),
    FineFinding("pneumonia", "left", "mid"),
    FineFinding("pneumonia", "left", "upper"),
    FineFinding("enlarged aorta"),
    FineFinding("scoliosis", "right"),
    FineFinding("nodule", "left", "upper"),
    FineFinding("rib fracture", "left", "lower"),
    FineFinding("elevated hemidiaphragm", "right"),
    FineFinding("nodule", "right", "mid"),
    FineFinding("granuloma", "right", "upper"),
    FineFinding("hiatal hernia"),
    FineFinding("rib fracture", "right", "lower"),
    FineFinding("nodule", "left", "lower"),
    FineFinding("apical thickening", "right"),
    FineFinding("atelectasis", "right", "mid"),
    FineFinding("central line", "left"),
    FineFinding("hilar enlargement", "right"),
    FineFinding("nodule", "right", "lower"),
    FineFinding("cavitary mass", "right", "upper"),
    FineFinding("granuloma", "left", "upper"),
    FineFinding("apical thickening", "left"),
    FineFinding("nodule", "left", "mid"),
    FineFinding("elevated hemidiaphragm", "left"),
    FineFinding("atelectasis", "left", "mid"),
    FineFinding("rib fracture", "left", "upper"),
    FineFinding("hilar enlargement", "left"),
    FineFinding("granuloma", "right", "lower"),
    FineFinding("cavitary mass", "left", "upper"),
    FineFinding("rib fracture", "right", "upper"),
    FineFinding("pacemaker", "right"),
    FineFinding("scoliosis", "left"),
    FineFinding("granuloma", "left", "lower"),
)
"""Every fine finding; the n-th is drawn with a weight of 1/n."""

_NORMAL_SHARE = 0.4
_EXTRA_TRIALS, _EXTRA_CHANCE = 2, 0.35


@functools.cache
def finding_weights() -> NDArray[np.float64]:
    """Give the chance of each of `FINE_FINDINGS` in one draw, in sum 1: Zipf with exponent 1."""
    weights = 1.0 / np.arange(1, len(FINE_FINDINGS) + 1)
    return np.asarray(weights / weights.sum())


def draw_findings(generator: np.random.Generator) -> tuple[FineFinding, ...]:
    """Draw the findings of one study.

    Returns:
        None at all for a normal study (40 %), else 1 + Binomial(2, .35) distinct
        findings; of two that exclude each other on an image the first stays.

    Source: ours.
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
