"""Sections of reports -> what can be used of them, and what they say of the findings."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medclip_dcl.artifacts.manifest import LABELS
from medclip_dcl.config.text import SentencesConfig
from medclip_dcl.reports.claims import Claims, read_claims
from medclip_dcl.reports.sentences import MASK, split_section

ANSWERS = ("present", "absent", "uncertain")
"""What a study may say of a finding; nothing said is none of them."""


@dataclass(frozen=True)
class Survey:
    """What the sections of some studies hold.

    Attributes:
        usable: studies with a usable sentence.
        sentences: usable sentences, repeats counted.
        masked: those of them that hold a de-identification mask.
        masked_studies: studies with such a sentence.
        dropped: rule -> sentences that it dropped.
        labels: finding -> answer -> studies.
    """

    usable: frozenset[str]
    sentences: int
    masked: int
    masked_studies: int
    dropped: Mapping[str, int]
    labels: Mapping[str, Mapping[str, int]]


def read_section(text: str, settings: SentencesConfig) -> dict[str, Any]:
    """Split a section and read its claims.

    Args:
        text: a section of a report.
        settings: settings of sentences.

    Returns:
        JSON-serialisable: `kept` and `masked` sentences, `dropped` by rule, `claims`.
    """
    split = split_section(text, settings)
    return {
        "kept": len(split.sentences),
        "masked": sum(bool(MASK.search(sentence)) for _, sentence in split.sentences),
        "dropped": dict(split.dropped),
        "claims": read_claims(text).to_row(),
    }


def survey(
    sections_of: Mapping[str, Sequence[str]], read: Mapping[str, Mapping[str, Any]]
) -> Survey:
    """Bring together what the sections of studies hold.

    Args:
        sections_of: study -> its sections that are used.
        read: section -> what `read_section` gave.

    Returns:
        The counts; a finding that one section asserts is present, whatever others say.
    """
    usable: set[str] = set()
    sentences = masked = masked_studies = 0
    dropped: Counter[str] = Counter()
    said: list[Claims] = []
    for study, sections in sections_of.items():
        rows = [read[text] for text in sections]
        kept = sum(row["kept"] for row in rows)
        hidden = sum(row["masked"] for row in rows)
        if kept:
            usable.add(study)
        sentences, masked, masked_studies = (
            sentences + kept,
            masked + hidden,
            masked_studies + bool(hidden),
        )
        for row in rows:
            dropped.update(row["dropped"])
        said.append(_united(Claims.from_row(row["claims"]) for row in rows))
    return Survey(frozenset(usable), sentences, masked, masked_studies, dropped, count_claims(said))


def count_claims(said: Collection[Claims]) -> dict[str, dict[str, int]]:
    """Count studies per finding and answer.

    Args:
        said: claims of each study.

    Returns:
        CheXpert's 14 names -> `ANSWERS` -> studies; No Finding is present in studies
        that are called normal.
    """
    counts = {name: dict.fromkeys(ANSWERS, 0) for name in LABELS}
    for claims in said:
        groups = zip(ANSWERS, (claims.asserted, claims.negated, claims.uncertain), strict=True)
        for answer, names in groups:
            for name in names:
                counts[name][answer] += 1
        counts["No Finding"]["present"] += claims.normal
    return counts


def _united(parts: Iterable[Claims]) -> Claims:
    claims = list(parts)
    asserted = {name: sides for item in claims for name, sides in item.asserted.items()}
    uncertain = frozenset(name for item in claims for name in item.uncertain) - asserted.keys()
    negated = frozenset(name for item in claims for name in item.negated)
    abnormal = bool(asserted or uncertain)
    normal = any(item.normal for item in claims) and not abnormal
    return Claims(asserted, negated - asserted.keys() - uncertain, uncertain, normal)
