"""A report of a study: its statements, and their layout as MIMIC-CXR files them."""

import textwrap
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medclip_dcl.studies.generated import wording
from medclip_dcl.studies.generated.findings import COMMON_TYPES, TYPES, FineFinding
from medclip_dcl.studies.generated.statements import (
    Statement,
    call_normal,
    clear_regions,
    deny,
    state_finding,
)

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
            replace(item, text=f"{place}. {item.text}")
            for place, item in enumerate(self.impression, 1)
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
    """Write what a radiologist would say of a study.

    Args:
        findings: everything that the study shows -> severity in [0, 1].
        generator: source of randomness.

    Returns:
        True statements alone; a share of the findings is left out, never all of them.

    Source: ours.
    """
    told = {item: level for item, level in findings.items() if generator.random() > _OMITTED_SHARE}
    told = told or findings
    positive = [_state(item, level, generator) for item, level in told.items()]
    body = positive + _denials(findings, generator) + clear_regions(findings, generator)
    if not findings and (not body or generator.random() < 0.35):
        body.append(call_normal(generator))
    order = generator.permutation(len(body))
    body = [body[int(place)] for place in order]
    if not findings:
        summary = [call_normal(generator)]
    else:
        summary = [_state(item, level, generator) for item, level in list(told.items())[:2]]
    draw = float(generator.random())
    layout: Layout = "plain" if draw < 0.03 else "impression" if draw < 0.13 else "both"
    if not body:
        layout = "impression"
    numbered = layout == "both" and len(summary) > 1 and draw > 0.7
    return Report(tuple(body), tuple(summary), layout, numbered)


def lay_out(report: Report, view: str, generator: np.random.Generator) -> str:
    """Set a report as text.

    Args:
        report: what it says.
        view: view position of the study's first film.
        generator: source of randomness.

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

    Args:
        report: what it says.

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
    order = [absent[int(place)] for place in generator.permutation(len(absent))]
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
