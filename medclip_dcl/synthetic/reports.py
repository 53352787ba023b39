"""Findings of generated studies, type x side x zone, and what their reports say of them.

Sentences come with their meaning, and are laid out as MIMIC-CXR files them.
"""

import functools
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

_OMITTED_SHARE = 0.08
_COARSE_SHARE = 0.35
_HEDGED_SHARE = 0.06
_DENIED_SHARE = 0.3
_COMBINED_SHARE = 0.5
_COLUMNS = 79


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


@dataclass(frozen=True)
class Meaning:
    """Claims of a generated sentence."""

    asserted: tuple[tuple[str, str, str], ...] = ()  # type, side, zone; empty where none is named
    negated: tuple[str, ...] = ()  # types
    normal: bool = False  # whether it denies every finding
    uncertain: bool = False  # whether it hedges; its truth is that of the unhedged sentence

    def holds(self, findings: Collection[FineFinding]) -> bool:
        """Return whether each asserted finding is there and no denied one is."""
        if self.normal:
            return not findings
        if any(finding.type in self.negated for finding in findings):
            return False
        return all(any(_matches(claim, item) for item in findings) for claim in self.asserted)


@dataclass(frozen=True)
class Statement:
    """A sentence, its kind (fine, coarse, negated, combined or normal), and its meaning."""

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
    """Write one sentence about a finding; severity, 0 to 1, chooses its adjective.

    A coarse sentence names the type alone, a hedged one leaves the finding open. A type without
    side and zone has fine sentences alone.
    """
    words = TYPES[finding.type]
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
    carriers = VOCABULARY["hedges" if hedged else "carriers"]
    if not hedged and finding.type in VOCABULARY["suggested"] and not article:
        carriers = carriers + VOCABULARY["suggesting"]
    return Statement(_sentence(_pick(carriers, generator), article, phrase), kind, meaning)


def gallery_sentence(finding: FineFinding) -> str:
    """Return the plainest sentence of a fine finding, which no other fine finding has."""
    words = TYPES[finding.type]
    article, _, phrase = (words.fine or words.coarse)[0].partition("|")
    location = _locations(finding)[0] if "{" in phrase else ""
    return _sentence("There {is} {a_np}.", article, _filled(phrase, finding, location))


def deny(types: Sequence[str], generator: np.random.Generator) -> Statement:
    """Write one sentence that denies one type or several."""
    meaning = Meaning(negated=tuple(types))
    if len(types) == 1:
        return Statement(_pick(TYPES[types[0]].absent, generator), "negated", meaning)
    nouns = [_pick(TYPES[name].denied, generator) for name in types]
    joined = " or ".join(nouns) if len(nouns) == 2 else f"{', '.join(nouns[:-1])}, or {nouns[-1]}"
    sentence = _pick(VOCABULARY["denials"], generator).format(list=joined)
    return Statement(sentence, "combined", meaning)


def _call_normal(generator: np.random.Generator) -> Statement:
    return Statement(_pick(VOCABULARY["normal"], generator), "normal", Meaning(normal=True))


def _clear_regions(
    findings: Collection[FineFinding], generator: np.random.Generator
) -> list[Statement]:
    """At most one statement for each region that shows nothing."""
    shown = {finding.type for finding in findings}
    return [
        Statement(
            _pick(region["sentences"], generator), "normal", Meaning(negated=tuple(region["types"]))
        )
        for region in VOCABULARY["regions"]
        if shown.isdisjoint(region["types"]) and generator.random() < 0.3
    ]


def _matches(claim: tuple[str, str, str], finding: FineFinding) -> bool:
    kind, side, zone = claim
    return kind == finding.type and side in {"", finding.side} and zone in {"", finding.zone}


def _sentence(carrier: str, article: str, phrase: str) -> str:
    before = {"a": "an " if phrase[0] in "aeiouE" else "a ", "": "", "+": ""}[article]
    text = carrier.format(
        np=phrase, a_np=before + phrase, **{"is": "are" if article == "+" else "is"}
    )
    return text[0].upper() + text[1:]


def _locations(finding: FineFinding) -> Sequence[str]:
    if not finding.zone:
        return ("",)
    table = VOCABULARY["rib" if finding.type == "rib fracture" else "place"]
    places: Sequence[str] = table[finding.side][finding.zone]
    return places


def _fill(phrase: str, finding: FineFinding, generator: np.random.Generator) -> str:
    return _filled(phrase, finding, _pick(_locations(finding), generator))


def _filled(phrase: str, finding: FineFinding, location: str) -> str:
    side = finding.side
    return phrase.format(place=location, rib=location, side=side, Side=side.capitalize())


def _pick(options: Sequence[str], generator: np.random.Generator) -> str:
    return options[int(generator.integers(len(options)))]


@dataclass(frozen=True)
class Report:
    """Sections of a generated report."""

    findings: tuple[Statement, ...]
    impression: tuple[Statement, ...]  # with their numbers where it is a list
    layout: Literal["both", "impression", "plain"]  # plain: one text without either header
    numbered: bool  # whether the impression is a numbered list

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All statements, in order, as they stand in the text."""
        return self.findings + self.impression

    @property
    def sections(self) -> dict[str, str]:
        """Header -> text; the header of a plain report is empty."""
        findings = "  ".join(item.text for item in self.findings)
        impression = ("\n" if self.numbered else "  ").join(item.text for item in self.impression)
        if self.layout == "both":
            return {"FINDINGS": findings, "IMPRESSION": impression}
        header = "IMPRESSION" if self.layout == "impression" else ""
        return {header: f"{findings}  {impression}".strip()}


def draw_report(findings: Mapping[FineFinding, float], generator: np.random.Generator) -> Report:
    """Write what a radiologist would say about a study with these findings and severities.

    All statements are true; a share of the findings is left out, never all of them.
    """
    reported = {
        item: level for item, level in findings.items() if generator.random() > _OMITTED_SHARE
    }
    reported = dict(reported or findings)
    positive = [_state(item, level, generator) for item, level in reported.items()]
    body = positive + _denials(findings, generator) + _clear_regions(findings, generator)
    if not findings and (not body or generator.random() < 0.35):
        body.append(_call_normal(generator))
    body = [body[index] for index in generator.permutation(len(body))]
    if not findings:
        summary = [_call_normal(generator)]
    else:
        summary = [_state(item, level, generator) for item, level in list(reported.items())[:2]]
    draw = float(generator.random())
    layout: Literal["both", "impression", "plain"] = "both"
    if draw < 0.13 or not body:
        layout = "plain" if draw < 0.03 and body else "impression"
    numbered = layout == "both" and len(summary) > 1 and draw > 0.7
    if numbered:
        summary = [replace(item, text=f"{n}. {item.text}") for n, item in enumerate(summary, 1)]
    return Report(tuple(body), tuple(summary), layout, numbered)


def lay_out(report: Report, view: str, generator: np.random.Generator) -> str:
    """Set a report as text: headers, hard wraps, one leading space a line.

    `___` stands for what de-identification took.
    """
    sex = _pick(("man", "woman"), generator)
    question = _pick(VOCABULARY["indications"], generator).format(sex=sex)
    exam = "CHEST (PORTABLE AP)" if view == "AP" else "CHEST (PA AND LAT)"
    lines = [" " * 32 + " FINAL REPORT", "", *_wrapped(f"EXAMINATION:  {exam}")]
    lines += ["", *_wrapped(f"INDICATION:  {question}")]
    if generator.random() < 0.5:
        lines += ["", *_wrapped(f"TECHNIQUE:  Chest, {view} view.")]
    if generator.random() < 0.6:
        lines += ["", *_wrapped("COMPARISON:  Chest radiograph ___.")]
    for header, text in report.sections.items():
        lines += ["", f" {header}: ", "", *_wrapped(text)] if header else ["", *_wrapped(text)]
    return "\n".join(line or " " for line in lines) + "\n"


def study_labels(report: Report) -> dict[str, int]:
    """Read off the CheXpert labels that a report earns: 1 asserted, -1 hedged, 0 denied.

    Labels not mentioned are left out; "No Finding" is 1 where nothing is asserted.
    """
    labels: dict[str, int] = {}
    for statement in report.statements:
        for name in statement.meaning.negated if statement.kind != "normal" else ():
            if TYPES[name].labels:
                labels.setdefault(TYPES[name].labels[0], 0)
    asserted: dict[str, int] = {}
    for statement in report.statements:
        for name, _, _ in statement.meaning.asserted:
            for label in TYPES[name].labels:
                value = -1 if statement.meaning.uncertain else 1
                asserted[label] = max(value, asserted.get(label, -1))
    if not any(statement.meaning.asserted for statement in report.statements):
        labels["No Finding"] = 1
    return labels | asserted


def _state(finding: FineFinding, severity: float, generator: np.random.Generator) -> Statement:
    coarse = generator.random() < _COARSE_SHARE
    hedged = generator.random() < _HEDGED_SHARE
    return state_finding(finding, severity, coarse=coarse, hedged=hedged, generator=generator)


def _denials(findings: Collection[FineFinding], generator: np.random.Generator) -> list[Statement]:
    shown = {finding.type for finding in findings}
    absent = [
        name for name in COMMON_TYPES if name not in shown and generator.random() < _DENIED_SHARE
    ]
    order = [absent[index] for index in generator.permutation(len(absent))]
    listed: list[str] = []
    if len(order) > 1 and generator.random() < _COMBINED_SHARE:
        listed, order = order[:3], order[3:]
    statements = [deny([name], generator) for name in order]
    return [*statements, deny(listed, generator)] if listed else statements


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        _COLUMNS,
        initial_indent=" ",
        subsequent_indent=" ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line for paragraph in text.split("\n") for line in wrapper.wrap(paragraph)]
