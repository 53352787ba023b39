"""Reports of generated studies: sentences with their meaning, laid out as MIMIC-CXR files them."""

import json
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from medclip_dcl.data.synthetic import wording
from medclip_dcl.data.synthetic.findings import COMMON_TYPES, LUNG_TYPES, TYPES, FineFinding
from medclip_dcl.data.synthetic.wording import WORDS

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
        """Return whether the sentence is true of an image.

        Returns:
            True where each asserted finding is there and no denied one is.
        """
        if self.normal:
            return not findings
        if any(finding.type in self.negated for finding in findings):
            return False
        return all(any(_matches(claim, item) for item in findings) for claim in self.asserted)

    def to_json(self) -> str:
        """Write the meaning as a JSON object with the attributes as keys."""
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
    """Write one sentence about a finding; severity, 0 to 1, chooses its adjective.

    A coarse sentence names the type alone, a hedged one leaves the finding open.

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

    Returns:
        Sentences without adjectives of degree; no other fine finding has any of them.
    """
    words = WORDS[finding.type]
    sentences = []
    for noun in words.fine or words.coarse:
        article, _, phrase = noun.partition("|")
        for choice in range(len(_locations(finding)) if "{" in phrase else 1):
            filled = _filled(phrase, finding, choice)
            sentences.append(_sentence("There {is} {a_np}.", article, filled))
    return tuple(dict.fromkeys(sentences))


def deny(types: Sequence[str], generator: np.random.Generator) -> Statement:
    """Write one sentence that denies one type or several."""
    meaning = Meaning(negated=tuple(types))
    if len(types) == 1:
        return Statement(_pick(WORDS[types[0]].absent, generator), "negated", meaning)
    nouns = [_pick(WORDS[name].denied, generator) for name in types]
    joined = " or ".join(nouns) if len(nouns) == 2 else f"{', '.join(nouns[:-1])}, or {nouns[-1]}"
    return Statement(_pick(wording.DENIALS, generator).format(list=joined), "combined", meaning)


def call_normal(generator: np.random.Generator) -> Statement:
    """Write a sentence that denies every finding."""
    return Statement(_pick(wording.NORMAL, generator), "normal", Meaning(normal=True))


def clear_regions(
    findings: Collection[FineFinding], generator: np.random.Generator
) -> list[Statement]:
    """Write about regions that show nothing, at most one statement of kind normal for each."""
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


def _locations(finding: FineFinding) -> tuple[str, ...]:
    if not finding.zone:
        return ("",)
    table = wording.RIB_ADJECTIVES if finding.type == "rib fracture" else wording.ZONE_ADJECTIVES
    return table[finding.side, finding.zone]


def _fill(phrase: str, finding: FineFinding, generator: np.random.Generator) -> str:
    return _filled(phrase, finding, int(generator.integers(len(_locations(finding)))))


def _filled(phrase: str, finding: FineFinding, choice: int) -> str:
    location = _locations(finding)[choice]
    side = finding.side
    return phrase.format(place=location, rib=location, side=side, Side=side.capitalize())


def _pick(options: Sequence[str], generator: np.random.Generator) -> str:
    return options[int(generator.integers(len(options)))]


assert set(WORDS) == set(TYPES), "every type has words and every word a type"

_OMITTED_SHARE = 0.08
_COARSE_SHARE = 0.35
_HEDGED_SHARE = 0.06
_DENIED_SHARE = 0.3
_COMBINED_SHARE = 0.5
_COLUMNS = 79


Layout = Literal["both", "impression", "plain"]


@dataclass(frozen=True)
class Report:
    """What a report says, section by section.

    Attributes:
        findings: statements of the findings.
        impression: statements of the impression.
        layout: both sections; all in the impression; or plain, without either header.
        numbered: whether the impression is a numbered list.
    """

    findings: tuple[Statement, ...]
    impression: tuple[Statement, ...]
    layout: Layout
    numbered: bool

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All statements, in order, as they stand in the text."""
        return self.findings + self._listed

    @property
    def _listed(self) -> tuple[Statement, ...]:
        if not self.numbered:
            return self.impression
        return tuple(
            replace(item, text=f"{index}. {item.text}")
            for index, item in enumerate(self.impression, 1)
        )

    @property
    def sections(self) -> dict[str, str]:
        """Header -> text; the header of a plain report is empty."""
        findings = "  ".join(item.text for item in self.findings)
        impression = ("\n" if self.numbered else "  ").join(item.text for item in self._listed)
        if self.layout == "both":
            return {"FINDINGS": findings, "IMPRESSION": impression}
        header = "IMPRESSION" if self.layout == "impression" else ""
        return {header: f"{findings}  {impression}".strip()}


def draw_report(findings: dict[FineFinding, float], generator: np.random.Generator) -> Report:
    """Write what a radiologist would say about a study.

    Args:
        findings: everything that the study shows -> severity in [0, 1].
        generator: source of randomness.

    Returns:
        True statements alone; a share of the findings is left out, never all of them.

    Source: ours.
    """
    reported = {
        item: level for item, level in findings.items() if generator.random() > _OMITTED_SHARE
    }
    reported = reported or findings
    positive = [_state(item, level, generator) for item, level in reported.items()]
    body = positive + _denials(findings, generator) + clear_regions(findings, generator)
    if not findings and (not body or generator.random() < 0.35):
        body.append(call_normal(generator))
    order = generator.permutation(len(body))
    body = [body[int(index)] for index in order]
    if not findings:
        summary = [call_normal(generator)]
    else:
        summary = [_state(item, level, generator) for item, level in list(reported.items())[:2]]
    draw = float(generator.random())
    layout: Layout = "plain" if draw < 0.03 else "impression" if draw < 0.13 else "both"
    if not body:
        layout = "impression"
    numbered = layout == "both" and len(summary) > 1 and draw > 0.7
    return Report(tuple(body), tuple(summary), layout, numbered)


def lay_out(report: Report, view: str, generator: np.random.Generator) -> str:
    """Set a report as text.

    Returns:
        Text with a FINAL REPORT line, headers, one leading space a line, hard wraps
        at 79 columns and `___` for what de-identification took.
    """
    sex = ("man", "woman")[int(generator.integers(2))]
    question = wording.INDICATIONS[int(generator.integers(len(wording.INDICATIONS)))]
    question = question.format(sex=sex)
    exam = "CHEST (PORTABLE AP)" if view == "AP" else "CHEST (PA AND LAT)"
    lines = [" " * 32 + " FINAL REPORT", *_section("EXAMINATION", exam)]
    lines += _section("INDICATION", question)
    if generator.random() < 0.5:
        lines += _section("TECHNIQUE", f"Chest, {view} view.")
    if generator.random() < 0.6:
        lines += _section("COMPARISON", "Chest radiograph ___.")
    for header, text in report.sections.items():
        lines += _section(header, text, apart=True) if header else ["", *_wrapped(text)]
    return "\n".join(line or " " for line in lines) + "\n"


def study_labels(report: Report) -> dict[str, int]:
    """Read off the CheXpert labels that a report earns.

    Returns:
        Label -> 1 asserted, -1 hedged, 0 denied; labels not mentioned are left out.
        "No Finding" is 1 where nothing is asserted.
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


def _denials(findings: dict[FineFinding, float], generator: np.random.Generator) -> list[Statement]:
    shown = {finding.type for finding in findings}
    absent = [
        name for name in COMMON_TYPES if name not in shown and generator.random() < _DENIED_SHARE
    ]
    order = [absent[int(index)] for index in generator.permutation(len(absent))]
    listed: list[str] = []
    if len(order) > 1 and generator.random() < _COMBINED_SHARE:
        listed, order = order[:3], order[3:]
    statements = [deny([name], generator) for name in order]
    return [*statements, deny(listed, generator)] if listed else statements


def _section(header: str, text: str, *, apart: bool = False) -> list[str]:
    if apart:
        return ["", f" {header}: ", "", *_wrapped(text)]
    return ["", *_wrapped(f"{header}:  {text}")]


def _wrapped(text: str) -> list[str]:
    lines = []
    for paragraph in text.split("\n"):
        lines += textwrap.wrap(
            paragraph,
            _COLUMNS,
            initial_indent=" ",
            subsequent_indent=" ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
