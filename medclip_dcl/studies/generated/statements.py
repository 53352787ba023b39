"""Sentences with their meaning: what a generated report says and of which films it is true."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from medclip_dcl.studies.generated import wording
from medclip_dcl.studies.generated.findings import LUNG_TYPES, TYPES, FineFinding
from medclip_dcl.studies.generated.wording import WORDS

_REGIONS = {
    "lungs": LUNG_TYPES,
    "mediastinum": ("cardiomegaly", "enlarged aorta", "hilar enlargement", "hiatal hernia"),
    "bones": ("rib fracture", "scoliosis"),
}
_SUGGESTED = ("pneumonia", "edema", "cardiomegaly")


@dataclass(frozen=True)
class Meaning:
    """What a sentence claims.

    Attributes:
        asserted: type, side and zone; side and zone empty where the sentence names none.
        negated: types denied.
        normal: whether it denies every finding.
        uncertain: whether it hedges; its truth is that of the unhedged sentence.
    """

    asserted: tuple[tuple[str, str, str], ...] = ()
    negated: tuple[str, ...] = ()
    normal: bool = False
    uncertain: bool = False

    def holds(self, findings: Collection[FineFinding]) -> bool:
        """Tell whether the sentence is true of a film.

        Args:
            findings: everything that the film shows.

        Returns:
            True where each asserted finding is there and no denied one is.
        """
        if self.normal:
            return not findings
        if any(finding.type in self.negated for finding in findings):
            return False
        return all(any(_matches(claim, item) for item in findings) for claim in self.asserted)

    def to_json(self) -> str:
        """Write the meaning for machines.

        Returns:
            A JSON object with the attributes as keys.
        """
        tree = {
            "asserted": [
                dict(zip(("type", "side", "zone"), claim, strict=True)) for claim in self.asserted
            ],
            "negated": list(self.negated),
            "normal": self.normal,
            "uncertain": self.uncertain,
        }
        return json.dumps(tree)


@dataclass(frozen=True)
class Statement:
    """A sentence, its kind (fine, coarse, negated, combined or normal) and its meaning."""

    text: str
    kind: str
    meaning: Meaning = field(default_factory=Meaning)


def state_finding(
    finding: FineFinding,
    severity: float,
    *,
    coarse: bool,
    hedged: bool,
    generator: np.random.Generator,
) -> Statement:
    """Write one sentence about a finding.

    Args:
        finding: what the film shows.
        severity: 0 (slight) to 1 (gross); it chooses the adjective.
        coarse: name the type alone.
        hedged: leave it open.
        generator: source of randomness.

    Returns:
        The statement; of a type without side and zone, its kind is always fine.
    """
    words = WORDS[finding.type]
    located = bool(finding.side)
    coarse = coarse and located
    claim = (finding.type, "", "") if coarse else (finding.type, finding.side, finding.zone)
    meaning = Meaning(asserted=(claim,), uncertain=hedged)
    kind = "coarse" if coarse else "fine"
    if words.whole and not coarse and not hedged and generator.random() < 0.2:
        return Statement(_fill(_pick(words.whole, generator), finding, generator), kind, meaning)
    noun = _pick(words.coarse if coarse or not located else words.fine, generator)
    article, _, phrase = noun.partition("|")
    phrase = _fill(phrase, finding, generator)
    if words.degrees and generator.random() < 0.5:
        degree = words.degrees[min(int(severity * 3), 2)]
        phrase = f"{degree} {phrase}".strip()
    carrier = _pick(_carriers(finding, article, hedged=hedged), generator)
    return Statement(_sentence(carrier, article, phrase), kind, meaning)


def gallery_sentences(finding: FineFinding) -> tuple[str, ...]:
    """Give the canonical sentences of a fine finding, plainest first.

    Args:
        finding: a fine finding.

    Returns:
        Sentences without adjectives of degree; no other fine finding has any of them.
    """
    words = WORDS[finding.type]
    sentences = []
    for noun in words.fine or words.coarse:
        article, _, phrase = noun.partition("|")
        for choice in range(len(_places(finding)) if "{" in phrase else 1):
            filled = _filled(phrase, finding, choice)
            sentences.append(_sentence("There {is} {a_np}.", article, filled))
    return tuple(dict.fromkeys(sentences))


def deny(types: Sequence[str], generator: np.random.Generator) -> Statement:
    """Write one sentence that denies one type or several.

    Args:
        types: types that the film does not show; each has words of denial.
        generator: source of randomness.

    Returns:
        A statement of kind negated (one type) or combined.
    """
    meaning = Meaning(negated=tuple(types))
    if len(types) == 1:
        return Statement(_pick(WORDS[types[0]].absent, generator), "negated", meaning)
    nouns = [_pick(WORDS[name].denied, generator) for name in types]
    joined = " or ".join(nouns) if len(nouns) == 2 else f"{', '.join(nouns[:-1])}, or {nouns[-1]}"
    return Statement(_pick(wording.DENIALS, generator).format(list=joined), "combined", meaning)


def call_normal(generator: np.random.Generator) -> Statement:
    """Write a sentence that denies every finding.

    Args:
        generator: source of randomness.

    Returns:
        A statement of kind normal.
    """
    return Statement(_pick(wording.NORMAL, generator), "normal", Meaning(normal=True))


def clear_regions(
    findings: Collection[FineFinding], generator: np.random.Generator
) -> list[Statement]:
    """Write about the regions of a film that show nothing.

    Args:
        findings: everything that the film shows.
        generator: source of randomness.

    Returns:
        At most one statement of kind normal per region.
    """
    shown = {finding.type for finding in findings}
    statements = []
    for region, types in _REGIONS.items():
        if shown.isdisjoint(types) and generator.random() < 0.3:
            text = _pick(wording.CLEAR[region], generator)
            statements.append(Statement(text, "normal", Meaning(negated=types)))
    return statements


def _matches(claim: tuple[str, str, str], finding: FineFinding) -> bool:
    kind, side, zone = claim
    return kind == finding.type and side in {"", finding.side} and zone in {"", finding.zone}


def _carriers(finding: FineFinding, article: str, *, hedged: bool) -> tuple[str, ...]:
    if hedged:
        return wording.HEDGES
    if finding.type in _SUGGESTED and not article:
        return wording.CARRIERS + wording.SUGGESTING
    return wording.CARRIERS


def _sentence(carrier: str, article: str, phrase: str) -> str:
    before = {"a": "an " if phrase[0] in "aeiouE" else "a ", "": "", "+": ""}[article]
    text = carrier.format(
        np=phrase, a_np=before + phrase, **{"is": "are" if article == "+" else "is"}
    )
    return text[0].upper() + text[1:]


def _places(finding: FineFinding) -> tuple[str, ...]:
    if not finding.zone:
        return ("",)
    table = wording.RIB_PLACES if finding.type == "rib fracture" else wording.PLACES
    return table[finding.side, finding.zone]


def _fill(phrase: str, finding: FineFinding, generator: np.random.Generator) -> str:
    return _filled(phrase, finding, int(generator.integers(len(_places(finding)))))


def _filled(phrase: str, finding: FineFinding, choice: int) -> str:
    place = _places(finding)[choice]
    side = finding.side
    return phrase.format(place=place, rib=place, side=side, Side=side.capitalize())


def _pick(options: Sequence[str], generator: np.random.Generator) -> str:
    return options[int(generator.integers(len(options)))]


assert set(WORDS) == set(TYPES), "every type has words and every word a type"
