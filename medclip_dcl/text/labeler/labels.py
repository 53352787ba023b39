"""Labels: what a sentence or a report says about the 13 CheXpert findings.

`read_sentence` applies the rules in their order; the README of `text` lists them. A sentence that
reads like another language than English says nothing, and neither does a report in which such
sentences prevail. In a report asserted beats hedged, hedged beats negated, negated beats asked for,
which alone is hedged; a finding that no sentence names has no label.

A claim is a finding with a polarity and, where it is asserted, its sides.
"""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.tables import Column, TableFormat, TableWriter
from medclip_dcl.text.boundaries import cut_sentences
from medclip_dcl.text.cleaning import Patterns
from medclip_dcl.text.labeler import lexicon
from medclip_dcl.text.labeler.forms import silence_labels, write_out
from medclip_dcl.text.labeler.laterality import read_laterality
from medclip_dcl.text.labeler.lexicon import FINDINGS_OF, LABELS, LEFT_OPEN_BY, MIDLINE, Cue
from medclip_dcl.text.labeler.negation import read_negation
from medclip_dcl.text.labeler.normality import QUALITIES, read_regions
from medclip_dcl.text.labeler.phrases import Mention, Polarity, cut_clauses, find_marks
from medclip_dcl.text.language import ENGLISH, WORDS_OF, language_of, prevailing

ARTIFACT = ArtifactType("claims", 5, "read_claims")

_FINDINGS = pa.list_(pa.string())

SENTENCE_CLAIMS = TableFormat(
    "sentence_claims.parquet",
    (
        Column("text_key", pa.string(), "`text_key` of the sentence"),
        Column(
            "asserted", _FINDINGS, "findings asserted, each `Finding`, `Finding|left` or `|right`"
        ),
        Column("negated", _FINDINGS, "findings negated"),
        Column("uncertain", _FINDINGS, "findings hedged"),
        Column("normal", pa.bool_(), "whether it calls the image or the lungs normal"),
    ),
)
"""One row per distinct sentence, in order of text_key."""

REPORT_CLAIMS = TableFormat(
    "report_claims.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("asserted", _FINDINGS, "findings asserted anywhere in the report, with sides"),
        Column("negated", _FINDINGS, "findings negated and nowhere asserted or hedged"),
        Column("uncertain", _FINDINGS, "findings hedged and nowhere asserted"),
        Column("normal", pa.bool_(), "whether it calls the image normal and asserts nothing"),
    ),
)
"""One row per study, in order of study_id."""


RULES = 8
"""Version of the rules; raised with every change of the code that applies them."""


@dataclass
class Reading:
    """Everything that a text says; `normal`: it calls the image or the lungs normal."""

    mentions: list[Mention] = field(default_factory=list)
    normal: bool = False
    languages: tuple[str, ...] = ()
    """Language of each sentence that has one, as `language_of` names it."""


def read_sentence(text: str) -> Reading:
    """Read one sentence.

    Source: ours; cues with a scope are the idea of NegEx (Chapman et al. 2001).
    """
    language = language_of(text)
    if language not in {"", ENGLISH}:
        return Reading(languages=(language,))
    text = write_out(text)
    marks = silence_labels(find_marks(text))
    languages = (language,) if language else ()
    reading = Reading(
        languages=languages,
        normal={mark.cue for mark in marks} - {Cue.COLON, Cue.BREAK} == {Cue.NORMAL},
    )
    for clause in cut_clauses(marks):
        if not any(mark.concept or mark.cue in QUALITIES for mark in clause):
            continue
        polarities = read_negation(clause)
        for index, sides in read_laterality(clause).items():
            concept, polarity = clause[index].concept, polarities[index]
            if concept == "Device" and polarity is Polarity.ASKED:
                polarity = Polarity.ASSERTED  # "limited evaluation of the stent": it is there
            reading.mentions.append(Mention(concept, polarity, sides))
        mentions, normal = read_regions(clause, polarities)
        reading.mentions += mentions
        reading.normal |= normal
    return reading


def read_report(text: str) -> Reading:
    """Read every sentence of a text: all mentions in order; normal where one says so."""
    whole = Reading()
    for sentence in cut_sentences(text):
        reading = read_sentence(sentence)
        whole.mentions += reading.mentions
        whole.normal |= reading.normal
        whole.languages += reading.languages
    return whole


def reader_digest() -> str:
    """Name the rules and words that claims are read with, by 16 hexadecimal digits."""
    data = [RULES, lexicon.TREE, Patterns.tree, WORDS_OF, sorted(lexicon.MIDLINE)]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()[:16]


FINDINGS = tuple(name for name in LABELS if name != "No Finding")
"""The 13 findings that claims are about, as MIMIC-CXR-JPG's table names them."""

_ABNORMAL = {Polarity.ASSERTED, Polarity.UNCERTAIN}
_LUNGS_CHECKED = {"Consolidation", "Lung Opacity", "Pneumonia"}
_CHECKED_WHERE_NORMAL = ({"Cardiomegaly"}, _LUNGS_CHECKED, {"Pleural Effusion"})
"""Heart, lungs, pleura: with something denied of each, a text has called the image normal."""


@dataclass(frozen=True)
class ReportLabels:
    """Labels of a text: findings asserted, negated and hedged.

    Attributes:
        asserted: finding -> sides ("left", "right"); empty where no side is named.
        negated: findings denied, and neither asserted nor hedged.
        uncertain: findings left open, and not asserted.
        normal: the image or the lungs are called normal, and nothing contradicts it.
    """

    asserted: Mapping[str, frozenset[str]]
    negated: frozenset[str]
    uncertain: frozenset[str]
    normal: bool

    def __bool__(self) -> bool:
        """Whether the text makes any claim."""
        return bool(self.asserted or self.negated or self.uncertain or self.normal)

    @property
    def named(self) -> frozenset[str]:
        """Every finding that the text says something about."""
        return frozenset(self.asserted) | self.negated | self.uncertain

    def to_row(self) -> dict[str, Any]:
        """Return the columns of the claims artifact, without the one that names the text."""
        return {
            "asserted": join_sides(self.asserted),
            "negated": sorted(self.negated),
            "uncertain": sorted(self.uncertain),
            "normal": self.normal,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Read a row with the columns that `to_row` gives."""
        return cls(
            split_sides(row["asserted"]),
            frozenset(row["negated"]),
            frozenset(row["uncertain"]),
            bool(row["normal"]),
        )


SILENT = ReportLabels({}, frozenset(), frozenset(), normal=False)
"""What a text says that says nothing of the findings."""


def read_claims(text: str) -> ReportLabels:
    """Read what a sentence or a whole report says about the findings; any text is allowed.

    Source: ours; findings of CheXpert (Irvin et al. 2019).
    """
    return report_labels_of([read_report(text)])


@dataclass(frozen=True)
class GivenClaims:
    """Claims by somebody else's reader, in place of ours: of sentences, of reports, or of both."""

    sentences: Mapping[str, ReportLabels] | None = None
    """By text key; sentences that are not there say nothing. None: ours reads them."""
    reports: Mapping[str, ReportLabels] | None = None
    """By study; reports that are not there say nothing. None: what their sentences say, united."""


def write_claims(
    folder: Path, distinct: pa.Table, parts: Iterable[pa.Table], given: GivenClaims | None = None
) -> dict[str, Any]:
    """Write the claims of every distinct sentence and of every report, and give the summary.

    `distinct` has text_key and text, in order of text_key; the parts have study_id and text_key,
    in order of study_id, and cut no study. Shares of the summary are of sentences as they occur,
    repeats included.
    """
    given = given or GivenClaims()
    keys = distinct["text_key"].combine_chunks()
    readings: list[Reading] = []  # each once: most sentences say what another says
    claims: list[ReportLabels]
    if given.sentences is None:
        readings, reading_of = _read_all(distinct["text"])
        claims = [report_labels_of([reading]) for reading in readings]
    else:
        claims = [SILENT, *given.sentences.values()]
        number = {key: code for code, key in enumerate(given.sentences, 1)}
        reading_of = np.array([number.get(key, 0) for key in keys.to_pylist()], np.int32)
    speaks = np.array([bool(claim) for claim in claims], dtype=bool)
    # Whether a report in English has the sentence; of claims that are given nobody knows.
    in_english = np.full(len(keys), not readings)
    languages = Counter[str]()
    rows = speaking = 0

    def claims_of(study: str, places: Sequence[int]) -> ReportLabels:
        codes = reading_of[places].tolist()
        if readings:
            language = prevailing(chain(*(readings[code].languages for code in codes)))
            languages[language] += 1
            in_english[places] |= language in {"", ENGLISH}
        if given.reports is not None:
            return given.reports.get(study, SILENT)
        if given.sentences is not None:
            return unite(claims[code] for code in codes)
        return report_labels_of(readings[code] for code in codes)

    with _Written(folder, REPORT_CLAIMS, "study_id") as reports:
        for part in parts:
            places = pc.index_in(part["text_key"], keys).to_numpy()
            rows, speaking = rows + len(places), speaking + int(speaks[reading_of[places]].sum())
            owned = zip(part["study_id"].to_pylist(), places.tolist(), strict=True)
            reports.add_claims(
                (study, claims_of(study, [place for _, place in own]))
                for study, own in groupby(owned, itemgetter(0))
            )
    with _Written(folder, SENTENCE_CLAIMS, "text_key") as written:
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            codes = reading_of[start : start + _ROWS_AT_ONCE].tolist()
            some = keys[start : start + len(codes)].to_pylist()
            written.add_claims(
                (key, claims[code] if in_english[start + at] else SILENT)
                for at, (key, code) in enumerate(zip(some, codes, strict=True))
            )
    findings = (*FINDINGS, *sorted((written.named | reports.named) - set(FINDINGS)))
    return {
        "sentences": rows,
        "distinct_sentences": len(keys),
        "reports": reports.rows,
        "share_with_claims": round(speaking / max(1, rows), 4),
        "normal_reports": reports.normal,
        "languages": dict(languages.most_common()),
        "findings": list(findings),
        "reports_per_finding": {
            name: {kind: reports.counts[kind][name] for kind in _KINDS} for name in findings
        },
    }


_KINDS = ("asserted", "negated", "uncertain")
_ROWS_AT_ONCE = 20_000  # as Python's objects: they take ten times what a table takes


class _Written(TableWriter):
    """A table of claims that is written in parts, and what it comes to."""

    def __init__(self, folder: Path, form: TableFormat, key: str) -> None:
        super().__init__(folder, form)
        self._key = key
        self.named = set[str]()
        self.counts: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
        self.normal = 0

    def add_claims(self, some: Iterable[tuple[str, ReportLabels]]) -> None:
        rows: list[dict[str, Any]] = []
        for name, claim in some:
            row = {self._key: name, **claim.to_row()}
            rows.append({column: row[column] for column in self._form.schema.names})
            self.named |= claim.named
            self.normal += claim.normal
            for kind in _KINDS:
                self.counts[kind].update(iter(getattr(claim, kind)))
        self.add(pa.Table.from_pylist(rows, schema=self._form.schema))


def _read_all(texts: pa.ChunkedArray) -> tuple[list[Reading], npt.NDArray[np.int32]]:
    """Read texts: the different readings, and the number of each text's."""
    number_of: dict[Any, int] = {}
    readings: list[Reading] = []
    numbers = array("i")
    for batch in pa.table({"text": texts}).to_batches(_ROWS_AT_ONCE):
        for text in batch["text"].to_pylist():
            reading = read_report(text)
            content = frozenset((m.concept, m.polarity, m.sides) for m in reading.mentions)
            content_key = (reading.normal, prevailing(reading.languages), content)
            number = number_of.setdefault(content_key, len(readings))
            if number == len(readings):
                readings.append(reading)
            numbers.append(number)
    return readings, np.frombuffer(numbers, np.int32) if numbers else np.zeros(0, np.int32)


def claimed_findings(claims: Artifact) -> tuple[str, ...]:
    """Name the findings that the claims of an artifact are about: `FINDINGS`, then others'."""
    return tuple(claims.summary.get("findings", FINDINGS))


def unite(parts: Iterable[ReportLabels]) -> ReportLabels:
    """Unite what somebody says of the sentences of a report.

    Asserted anywhere beats hedged, hedged beats negated; normal where a part says so and no part
    asserts or hedges.
    """
    asserted: dict[str, frozenset[str]] = {}
    negated, uncertain = set[str](), set[str]()
    normal = False
    for part in parts:
        for name, sides in part.asserted.items():
            asserted[name] = asserted.get(name, frozenset()) | sides
        negated |= part.negated
        uncertain |= part.uncertain
        normal |= part.normal
    normal &= not asserted and not uncertain
    return _settled(asserted, negated, uncertain, normal)


def _settled(
    asserted: Mapping[str, frozenset[str]], negated: Set[str], uncertain: Set[str], normal: bool
) -> ReportLabels:
    """Let the stronger word about each finding stand: asserted, then hedged, then negated."""
    hedged = frozenset(uncertain - asserted.keys())
    return ReportLabels(asserted, frozenset(negated - asserted.keys() - hedged), hedged, normal)


def report_labels_of(readings: Iterable[Reading]) -> ReportLabels:
    """Unite what the sentences of a report say, in any order."""
    asserted: dict[str, frozenset[str]] = {}
    others = {polarity: set[str]() for polarity in Polarity}
    normal = abnormal = False
    languages: list[str] = []
    for reading in readings:
        languages += reading.languages
        normal |= reading.normal
        for mention in reading.mentions:
            # concepts beyond the 13 findings count here: an image with a hernia is not normal
            abnormal |= mention.polarity in _ABNORMAL
            for finding, polarity in _said_of(mention):
                if polarity is Polarity.ASSERTED:
                    sides = frozenset[str]() if finding in MIDLINE else mention.sides
                    asserted[finding] = asserted.get(finding, frozenset()) | sides
                else:
                    others[polarity].add(finding)
    if not {*languages} <= {ENGLISH} and prevailing(languages) not in {"", ENGLISH}:
        return SILENT
    # "Possible edema" and "edema is worse": the stronger word stands. "Evaluate for edema" and
    # what a concept leaves open give way to any other word.
    negated = others[Polarity.NEGATED]
    uncertain = others[Polarity.UNCERTAIN] | (others[Polarity.ASKED] - negated)
    labels = _settled(asserted, negated, uncertain, normal and not abnormal)
    is_checked = all(labels.negated & part for part in _CHECKED_WHERE_NORMAL)
    # a question that nothing answers leaves the image open, as a hedge does
    return replace(labels, normal=(normal or is_checked) and not abnormal and not labels.uncertain)


def _said_of(mention: Mention) -> Iterator[tuple[str, Polarity]]:
    """Turn a concept into CheXpert findings."""
    for finding in FINDINGS_OF.get(mention.concept, ()):
        yield finding, mention.polarity
    for finding in LEFT_OPEN_BY.get(mention.concept, ()):
        # "congestion with no overt edema": a word about the finding itself is the stronger
        yield finding, Polarity.ASKED if mention.polarity in _ABNORMAL else mention.polarity


def join_sides(asserted: Mapping[str, Set[str]]) -> list[str]:
    """Write finding -> sides as the tables keep them: sorted `Finding`, `Finding|side`."""
    return sorted(
        entry
        for name, sides in asserted.items()
        for entry in ([f"{name}|{side}" for side in sides] or [name])
    )


def split_sides(entries: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read finding -> sides back from the entries that `join_sides` wrote."""
    sides_of: dict[str, frozenset[str]] = {}
    for entry in entries:
        name, _, side = entry.partition("|")
        sides_of[name] = sides_of.get(name, frozenset()) | ({side} if side else frozenset())
    return sides_of
