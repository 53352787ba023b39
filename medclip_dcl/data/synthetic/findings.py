"""The catalogue of fine findings, type x side x zone, and the words that reports have for them."""

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FindingType:
    """A type of finding and its vocabulary.

    A noun is written `article|phrase`: `a` takes an article, nothing (mass) takes none and
    `+` is a plural. `{place}`, `{rib}`, `{side}` and `{Side}` are filled from the fine finding.

    Attributes:
        labels: CheXpert labels that a report of it earns.
        coarse: nouns that name the type alone.
        fine: nouns that name side and zone too; empty where the type has neither.
        whole: complete sentences that name all that the type has.
        degrees: adjectives for slight, medium and gross; empty: none.
        absent: complete sentences that deny the type.
        denied: nouns for "No X or Y"; empty: never in such a list.
    """

    labels: tuple[str, ...]
    coarse: tuple[str, ...]
    fine: tuple[str, ...]
    whole: tuple[str, ...]
    degrees: tuple[str, ...]
    absent: tuple[str, ...]
    denied: tuple[str, ...]


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


def _type(
    labels: str = "",
    *,
    coarse: str,
    fine: str = "",
    whole: str = "",
    degrees: str = "",
    absent: str = "",
    denied: str = "",
) -> FindingType:
    """Split the vocabulary of one type at its slashes."""
    texts = labels, coarse, fine, whole, degrees, absent, denied
    return FindingType(*(tuple(text.split(" / ")) if text else () for text in texts))


TYPES = {
    "cardiomegaly": _type(
        "Cardiomegaly",
        coarse="|cardiomegaly / a|enlarged heart / |cardiac enlargement",
        whole="The heart is enlarged. / Heart size is enlarged. / Enlarged cardiac silhouette.",
        degrees="mild / moderate / severe",
        absent=(
            "Heart size normal. / Heart size is normal. / The heart size is normal. / "
            "The heart is normal in size. / No cardiomegaly. / Heart is not enlarged."
        ),
        denied="cardiomegaly",
    ),
    "effusion": _type(
        "Pleural Effusion",
        coarse="a|pleural effusion / |pleural fluid / +|pleural effusions",
        fine=(
            "a|{side} pleural effusion / a|{side}-sided pleural effusion / "
            "a|effusion on the {side} / |{side} pleural fluid"
        ),
        degrees="small / moderate / large",
        absent=(
            "No pleural effusion. / No pleural effusions. / There is no pleural effusion. / "
            "There are no pleural effusions. / No pleural effusion is seen."
        ),
        denied="pleural effusion / effusion / pleural effusions",
    ),
    "edema": _type(
        "Edema",
        coarse=(
            "|pulmonary edema / |interstitial edema / |pulmonary vascular congestion and edema / "
            "|edema"
        ),
        whole="Perihilar haze consistent with pulmonary edema.",
        degrees="mild / moderate / severe",
        absent=(
            "No pulmonary edema. / There is no pulmonary edema. / "
            "No evidence of pulmonary edema. / No overt pulmonary edema."
        ),
        denied="pulmonary edema / edema",
    ),
    "pneumonia": _type(
        "Pneumonia / Lung Opacity",
        coarse="|pneumonia / |focal consolidation / a|opacity suggesting pneumonia",
        fine=(
            "|{place} pneumonia / |{place} consolidation / a|{place} opacity / "
            "a|{place} opacity suggesting pneumonia"
        ),
        degrees="subtle / patchy / dense",
        absent=(
            "No signs of pneumonia. / No evidence of pneumonia. / No focal consolidation. / "
            "There is no focal consolidation. / No pneumonia. / "
            "No focal opacity to suggest pneumonia."
        ),
        denied="focal consolidation / pneumonia",
    ),
    "pneumothorax": _type(
        "Pneumothorax",
        coarse="a|pneumothorax",
        fine=(
            "a|{side} pneumothorax / a|{side}-sided pneumothorax / a|{side} apical pneumothorax / "
            "a|pneumothorax on the {side}"
        ),
        degrees="small / moderate / large",
        absent=(
            "No pneumothorax. / There is no pneumothorax. / No pneumothorax is seen. / "
            "No evidence of pneumothorax."
        ),
        denied="pneumothorax",
    ),
    "atelectasis": _type(
        "Atelectasis",
        coarse="|atelectasis / |linear atelectasis / |subsegmental atelectasis",
        fine=(
            "|{place} atelectasis / |{place} linear atelectasis / |{place} plate-like atelectasis"
        ),
        degrees="minimal / mild / moderate",
    ),
    "pacemaker": _type(
        "Support Devices",
        coarse="a|pacemaker / a|cardiac pacing device",
        fine="a|{side}-sided pacemaker / a|{side} chest wall pacer / a|{side} pectoral pacemaker",
        whole="{Side}-sided pacemaker leads end in the right ventricle.",
    ),
    "central line": _type(
        "Support Devices",
        coarse="a|central venous catheter / a|central line",
        fine=(
            "a|{side} internal jugular catheter / a|{side} central venous line / "
            "a|{side}-sided central line"
        ),
        whole="{Side} internal jugular line ends in the low SVC.",
    ),
    "endotracheal tube": _type(
        "Support Devices",
        coarse="a|endotracheal tube / a|ET tube",
        whole=(
            "Endotracheal tube tip is ___ cm above the carina. / The patient is intubated. / "
            "ET tube in standard position."
        ),
    ),
    "enteric tube": _type(
        "Support Devices",
        coarse="a|nasogastric tube / a|enteric tube / a|NG tube",
        whole="Nasogastric tube courses below the diaphragm. / Enteric tube ends in the stomach.",
    ),
    "sternotomy wires": _type(
        "Support Devices",
        coarse="+|median sternotomy wires / +|sternal wires",
        whole=(
            "Median sternotomy wires are intact. / The patient is status post median sternotomy."
        ),
    ),
    "nodule": _type(
        "Lung Lesion",
        coarse="a|pulmonary nodule / a|lung nodule",
        fine="a|{place} nodule / a|{place} pulmonary nodule / a|rounded {place} nodule",
        degrees="small /  / large",
    ),
    "granuloma": _type(
        "Lung Lesion",
        coarse="a|calcified granuloma / a|granuloma",
        fine=(
            "a|{place} granuloma / a|calcified {place} granuloma / a|{place} calcified granuloma"
        ),
    ),
    "cavitary mass": _type(
        "Lung Lesion",
        coarse="a|cavitary lesion / a|cavitary mass",
        fine=(
            "a|{place} cavitary mass / a|{place} cavitary lesion / a|thick-walled {place} cavity"
        ),
    ),
    "rib fracture": _type(
        "Fracture",
        coarse="a|rib fracture / a|displaced rib fracture",
        fine=(
            "a|{rib} rib fracture / a|displaced {rib} rib fracture / a|fracture of the {rib} rib"
        ),
    ),
    "hiatal hernia": _type(
        coarse="a|hiatal hernia / a|retrocardiac hiatal hernia",
        whole="Retrocardiac air-fluid level consistent with a hiatal hernia.",
        degrees="small / moderate / large",
    ),
    "scoliosis": _type(
        coarse="|scoliosis / |thoracic scoliosis",
        fine="|{side} convex scoliosis / |{side} convex thoracic scoliosis",
        whole="Thoracic spine curves to the {side}.",
        degrees="mild / moderate / severe",
    ),
    "elevated hemidiaphragm": _type(
        coarse="a|elevated hemidiaphragm",
        fine="|elevation of the {side} hemidiaphragm / a|elevated {side} hemidiaphragm",
        whole="The {side} hemidiaphragm is elevated.",
    ),
    "enlarged aorta": _type(
        "Enlarged Cardiomediastinum",
        coarse="a|enlarged aortic knob / a|dilated thoracic aorta / a|prominent aortic arch",
        whole="The aorta is dilated. / The aortic knob is enlarged.",
    ),
    "hilar enlargement": _type(
        "Enlarged Cardiomediastinum",
        coarse="|hilar enlargement / |hilar lymphadenopathy",
        fine=(
            "|{side} hilar enlargement / |{side} hilar lymphadenopathy / a|enlarged {side} hilus"
        ),
        whole="The {side} hilum is enlarged.",
    ),
    "apical thickening": _type(
        "Pleural Other",
        coarse="|apical pleural thickening / |apical scarring",
        fine="|{side} apical pleural thickening / |{side} apical scarring",
    ),
}
"""Every type by name."""

COMMON_TYPES = ("pneumonia", "cardiomegaly", "edema", "effusion", "pneumothorax")
"""The five that zero-shot classification asks for."""

_BY_FREQUENCY = (
    "cardiomegaly / effusion, left / edema / pneumonia, right, lower / pneumothorax, right / "
    "effusion, right / pneumonia, left, lower / pneumothorax, left / atelectasis, left, lower / "
    "pacemaker, left / central line, right / pneumonia, right, mid / atelectasis, right, lower / "
    "endotracheal tube / pneumonia, right, upper / sternotomy wires / enteric tube / "
    "nodule, right, upper / pneumonia, left, mid / pneumonia, left, upper / enlarged aorta / "
    "scoliosis, right / nodule, left, upper / rib fracture, left, lower / "
    "elevated hemidiaphragm, right / nodule, right, mid / granuloma, right, upper / "
    "hiatal hernia / rib fracture, right, lower / nodule, left, lower / apical thickening, right / "
    "atelectasis, right, mid / central line, left / hilar enlargement, right / "
    "nodule, right, lower / cavitary mass, right, upper / granuloma, left, upper / "
    "apical thickening, left / nodule, left, mid / elevated hemidiaphragm, left / "
    "atelectasis, left, mid / rib fracture, left, upper / hilar enlargement, left / "
    "granuloma, right, lower / cavitary mass, left, upper / rib fracture, right, upper / "
    "pacemaker, right / scoliosis, left / granuloma, left, lower"
)
FINE_FINDINGS = tuple(FineFinding(*text.split(", ")) for text in _BY_FREQUENCY.split(" / "))
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
