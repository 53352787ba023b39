"""Findings of generated studies, type x side x zone, and what their reports say of them.

Sentences come with their meaning, and are laid out as MIMIC-CXR files them.
"""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

_OMITTED_SHARE = 0.08
_COARSE_SHARE = 0.35
_HEDGED_SHARE = 0.1
_DENIED_SHARE = 0.3


@dataclass(frozen=True)
class FindingType:
    """The vocabulary of a type of finding; `vocabulary.yaml` explains each list."""

    labels: Sequence[str] = ()
    coarse: Sequence[str] = ()
    fine: Sequence[str] = ()
    degrees: Sequence[str] = ()
    absent: Sequence[str] = ()


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

TYPES = {name: FindingType(**words) for name, words in VOCABULARY["types"].items()}

COMMON_TYPES = ("pneumonia", "cardiomegaly", "edema", "effusion", "pneumothorax")
"""The five that zero-shot classification asks for."""

FINE_FINDINGS = tuple(FineFinding(*text.split(", ")) for text in VOCABULARY["by_frequency"])
"""Every fine finding, the most frequent first."""


def draw_findings(generator: np.random.Generator, power: float = 1.0) -> dict[FineFinding, float]:
    """Draw the findings of one study, with severities in [0, 1].

    None at all for a normal study (40 %), else 1 + Binomial(2, .35) distinct findings, of which the
    n-th of `FINE_FINDINGS` has a weight of n ** -power.
    """
    if generator.random() < 0.4:
        return {}
    weights = np.arange(1.0, len(FINE_FINDINGS) + 1) ** -power
    count = 1 + generator.binomial(2, 0.35)
    picks = generator.choice(len(weights), count, replace=False, p=weights / weights.sum())
    return {FINE_FINDINGS[pick]: float(generator.random()) for pick in picks}


@dataclass(frozen=True)
class Meaning:
    """Claims of a generated sentence."""

    asserted: FineFinding | None = None  # side and zone are empty where none is named
    negated: tuple[str, ...] = ()  # types
    uncertain: bool = False  # whether it hedges; its truth is that of the unhedged sentence

    def holds(self, findings: Collection[FineFinding]) -> bool:
        """Return whether the asserted finding is there and no denied one is."""
        types = {item.type for item in findings}
        if not types.isdisjoint(self.negated):
            return False
        claim = self.asserted
        return claim is None or claim in findings or (not claim.side and claim.type in types)


@dataclass(frozen=True)
class Statement:
    """A sentence, its kind (fine, coarse, negated, combined or normal), and its meaning."""

    text: str
    kind: str
    meaning: Meaning


def state(finding: FineFinding, severity: float, generator: np.random.Generator) -> Statement:
    """Write one sentence about a finding; severity, 0 to 1, chooses its adjective.

    A coarse sentence names the type alone, a hedged one leaves the finding open. A type without
    side has fine sentences alone.
    """
    words = TYPES[finding.type]
    coarse = generator.random() < _COARSE_SHARE and bool(finding.side)
    noun = _pick(words.coarse if coarse or not words.fine else words.fine, generator)
    hedged = generator.random() < _HEDGED_SHARE and not noun.endswith(".")
    claim = FineFinding(finding.type) if coarse else finding
    noun = _located(noun, finding, int(generator.integers(3)))
    if words.degrees and generator.random() < 0.5 and not noun.endswith("."):
        degree = words.degrees[min(int(severity * 3), 2)]
        noun = f"{degree} {noun}" if _bare(noun) == noun else f"a {degree} {_bare(noun)}"
    carrier = _pick(VOCABULARY["hedges" if hedged else "carriers"], generator)
    kind = "coarse" if coarse else "fine"
    return Statement(_sentence(carrier, noun), kind, Meaning(claim, uncertain=hedged))


def gallery_sentence(finding: FineFinding) -> str:
    """Return the plainest sentence of a fine finding, which no other fine finding has."""
    words = TYPES[finding.type]
    return _sentence("There is {np}.", _located((words.fine or words.coarse)[0], finding, 0))


def deny(types: Sequence[str], generator: np.random.Generator) -> Statement:
    """Write one sentence that denies one type or several."""
    meaning = Meaning(negated=tuple(types))
    if len(types) == 1:
        return Statement(_pick(TYPES[types[0]].absent, generator), "negated", meaning)
    *nouns, last = (_bare(TYPES[name].coarse[0]) for name in types)
    denial = _pick(VOCABULARY["denials"], generator)
    return Statement(denial.format(list=f"{', '.join(nouns)} or {last}"), "combined", meaning)


def _sentence(carrier: str, noun: str) -> str:
    text = noun if noun.endswith(".") else carrier.format(np=noun, bare=_bare(noun))
    return text[0].upper() + text[1:]


def _bare(noun: str) -> str:
    return noun.removeprefix("a ").removeprefix("an ")


def _located(noun: str, finding: FineFinding, spelling: int) -> str:
    place = VOCABULARY["places"][finding.zone][spelling] if finding.zone else ""
    return noun.replace("{place}", place).replace("{side}", finding.side)


def _pick(options: Sequence[str], generator: np.random.Generator) -> str:
    return options[int(generator.integers(len(options)))]


def draw_report(
    findings: Mapping[FineFinding, float], view: str, generator: np.random.Generator
) -> tuple[str, list[Statement]]:
    """Write what a radiologist would say of these findings and severities: text and statements.

    All statements are true; a share of the findings is left out, never all of them. The text has
    hard wraps, and one leading space a line.
    """
    reported = [pair for pair in findings.items() if generator.random() > _OMITTED_SHARE]
    reported = reported or [*findings.items()]
    shown = {finding.type for finding in findings}
    body = [state(item, level, generator) for item, level in reported]
    body += _denials(shown, generator)
    # Each sentence about a region denies all types of it, and is said where none is shown.
    for region in VOCABULARY["regions"]:
        if shown.isdisjoint(region["types"]) and generator.random() < 0.3:
            meaning = Meaning(negated=tuple(region["types"]))
            body.append(Statement(_pick(region["sentences"], generator), "normal", meaning))
    body = [body[index] for index in generator.permutation(len(body))]
    summary = [state(item, level, generator) for item, level in reported[:2]]
    if not findings:
        normal = _pick(VOCABULARY["normal"], generator)
        summary = [Statement(normal, "normal", Meaning(negated=tuple(TYPES)))]
    sections = {"FINDINGS": body, "IMPRESSION": summary}
    if not body or generator.random() < 0.13:
        sections = {"IMPRESSION": body + summary}
    return _lay_out(sections, view, generator), body + summary


def _denials(shown: Collection[str], generator: np.random.Generator) -> list[Statement]:
    absent = [
        str(name)
        for name in generator.permutation(COMMON_TYPES)
        if name not in shown and generator.random() < _DENIED_SHARE
    ]
    if len(absent) > 1 and generator.random() < 0.5:
        return [deny(absent[:3], generator), *(deny([name], generator) for name in absent[3:])]
    return [deny([name], generator) for name in absent]


def _lay_out(
    sections: Mapping[str, Sequence[Statement]], view: str, generator: np.random.Generator
) -> str:
    # `___` stands for what de-identification took.
    exam = "CHEST (PORTABLE AP)" if view == "AP" else "CHEST (PA AND LAT)"
    parts = [f"EXAMINATION:  {exam}", f"INDICATION:  {_pick(VOCABULARY['indications'], generator)}"]
    if generator.random() < 0.6:
        parts.append("COMPARISON:  Chest radiograph ___.")
    for header, statements in sections.items():
        parts += [f"{header}:", "  ".join(statement.text for statement in statements)]
    wrapped = (textwrap.fill(part, 78, break_on_hyphens=False) for part in parts)
    return textwrap.indent("\n\n".join([" " * 32 + "FINAL REPORT", *wrapped]), " ") + "\n"


def study_labels(statements: Sequence[Statement]) -> dict[str, int]:
    """Read off the CheXpert labels that statements earn: 1 asserted, -1 hedged, 0 denied.

    Labels not mentioned are left out; "No Finding" is 1 where nothing is asserted.
    """
    marks = []
    for statement in statements:
        claim, value = statement.meaning.asserted, -1 if statement.meaning.uncertain else 1
        if claim:
            marks += [(label, value) for label in TYPES[claim.type].labels]
        elif statement.kind != "normal":
            marks += [(TYPES[name].labels[0], 0) for name in statement.meaning.negated]
    if not any(statement.meaning.asserted for statement in statements):
        marks.append(("No Finding", 1))
    # Of several marks of a label the last stays: the asserted before the hedged one.
    return dict(sorted(marks, key=lambda mark: (0, -1, 1).index(mark[1])))
