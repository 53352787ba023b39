"""Sentences: reports split, and the table of one row per usable sentence.

Rules by which a sentence is dropped, in the order in which they are tried:
    punctuation   nothing but marks: a lone full stop
    enumerator    bare list numbers: "1." or "2) 3)"
    masked        no letter outside the de-identification tokens ___ and XXXX
    short         fewer than two words with a letter outside ___ and XXXX, and the labeler reads
                  nothing in it: "Unchanged." goes, "Cardiomegaly." and "Normal." stay

A kept sentence loses the bullet or number of a list item in front, so that equal statements are one
sentence. For every section, `found - dropped = kept`.
"""

import functools
import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.settings import Section
from medclip_dcl.core.tables import Column, TableFormat, read_in_parts
from medclip_dcl.text.cleaning import fold_unicode


class SentencesConfig(Section):
    """Reports to sentences (`split_sentences`)."""

    sections: tuple[str, ...] = ("findings", "impression")
    """Sections used; `last_paragraph` stands in where a report has neither."""


_FEWEST_WORDS = 2  # keeps "No pneumothorax.", which is what this method is about

LONGEST_SENTENCE = 1000
"""Characters; longer sentences are truncated and counted: a model reads far less."""
LONGEST_SECTION = 20_000
"""Characters; longer sections are truncated and counted."""

ARTIFACT = ArtifactType("sentences", 3, "split_sentences")

NORMALISATION = "Unicode folded, whitespace collapsed, case and marks kept"
"""Names what `normalise_text` does; part of the fingerprint of everything that is keyed by text."""

SENTENCES = TableFormat(
    "sentences.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test"),
        Column("section", pa.string(), "findings, impression or last_paragraph"),
        Column("position", pa.int32(), "place of the sentence in its section, from 0"),
        Column("text", pa.string(), "the sentence, whitespace collapsed, case and full stop kept"),
        Column("text_key", pa.string(), "`text_key` of the text"),
    ),
)
"""In order of study_id, section and position."""


def normalise_text(text: str) -> str:
    """Fold Unicode, and whitespace to single spaces: the form that is keyed and trained on."""
    return " ".join(fold_unicode(text).split())


def text_key(text: str) -> str:
    """Name a sentence by half of the SHA-256 of its normalised text, 32 hexadecimal digits."""
    return hashlib.sha256(normalise_text(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def distinct_sentences(artifact: Artifact) -> pa.Table:
    """List every distinct sentence with how often the training split says it.

    Columns text_key, text, count (occurrences in the training split, int32) and reports
    (training reports that contain it, int32), in order of text_key.

    Raises StudyError where no report has a usable sentence.
    """
    columns = ["study_id", "split", "text", "text_key"]
    counted: list[pa.Table] = []
    waiting = rows = 0
    for part in read_in_parts(artifact.path, SENTENCES, columns, whole="study_id"):
        counted.append(_counted(part))
        waiting += len(counted[-1])
        if waiting > 2 * rows:  # so that a row is united a few times, however many parts there are
            counted = [_united(counted)]
            waiting = rows = len(counted[0])
    if not counted:
        raise StudyError("no report has a usable sentence; correct source.columns, or the reports")
    united = _united(counted).sort_by("text_key")
    counts = {name: united[name].cast(pa.int32()) for name in ("count", "reports")}
    return pa.table({"text_key": united["text_key"], "text": united["text"], **counts})


def _counted(part: pa.Table) -> pa.Table:
    """Count the sentences of some whole studies, by row and by study."""
    trains = pc.equal(part["split"], "train").cast(pa.int64())
    by_study = (
        part.append_column("count", trains)
        .group_by(["text_key", "study_id"])
        .aggregate([("text", "min"), ("count", "sum"), ("count", "max")])
    )
    names = {"text_min": "text", "count_sum": "count", "count_max": "reports"}
    counts = by_study.select(["text_key", *names])
    return _united([counts.rename_columns(["text_key", *names.values()])])


def _united(parts: Sequence[pa.Table]) -> pa.Table:
    sums = [("text", "min"), ("count", "sum"), ("reports", "sum")]
    table = pa.concat_tables(parts).group_by("text_key").aggregate(sums)
    columns = table.select(["text_key", *(f"{name}_{how}" for name, how in sums)])
    return columns.rename_columns(["text_key", *(name for name, _ in sums)])


RULES = ("punctuation", "enumerator", "masked", "short")
"""Names of the rules that drop a sentence, in the order in which they are tried."""

SPLITTER = "rules 6"
"""Names how reports are split; part of the fingerprint of all that is made from sentences."""

MASK = re.compile(r"_{2,}|\bX{3,}s?\b")
"""De-identification tokens: MIMIC's ___ and Open-i's XXXX."""

_ENUMERATOR = re.compile(r"(\(?(\d{1,3}|[A-Za-z])[.):]+ *)+")
_KNOWN_SECTIONS = 1 << 16  # of which the splits are kept: most repeats are of a few


@dataclass(frozen=True, slots=True)
class Split:
    """Sentences kept of one section, and why others were not."""

    sentences: tuple[tuple[int, str], ...]
    """Place among all sentences of the section, from 0, and normalised text."""
    found: int
    """Sentences of the section, kept or not."""
    dropped: Mapping[str, int]
    """Rule -> sentences that it dropped."""
    truncated_sentences: int
    """Kept sentences that were cut to the longest length allowed."""
    truncated_sections: int
    """1 where the section itself was cut before it was split."""


def split_section(text: str) -> Split:
    """Split one section of a report into the sentences that are scored and trained on."""
    # Who reads sentences needs no labeler, by whose phrases they are cut.
    from medclip_dcl.text.boundaries import cut_sentences, without_number

    sentences = cut_sentences(text[:LONGEST_SECTION])
    usable, dropped, cut = [], dict.fromkeys(RULES, 0), 0
    for index, sentence in enumerate(sentences):
        stated = normalise_text(without_number(sentence))
        rule = broken_rule(sentence)
        if rule:
            dropped[rule] += 1
            continue
        cut += len(stated) > LONGEST_SENTENCE
        usable.append((index, normalise_text(stated[:LONGEST_SENTENCE])))
    return Split(
        sentences=tuple(usable),
        found=len(sentences),
        dropped=dropped,
        truncated_sentences=cut,
        truncated_sections=int(len(text) > LONGEST_SECTION),
    )


def split_reports(
    parts: Iterable[Sequence[Mapping[str, str]]],
    settings: SentencesConfig,
    write: Callable[[pa.Table], None],
) -> dict[str, Any]:
    """Split parts of the reports, in order of study_id, write `SENTENCES` in order, and sum up.

    A section that repeats is split once as long as it is remembered. By the summary,
    found_sentences - all that was dropped = sentences.
    """
    split = functools.lru_cache(_KNOWN_SECTIONS)(split_section)
    counts: Counter[str] = Counter()
    losses = Counter(_losses(()))
    sections, keys = array("q"), array("q")  # a hash of each: millions of texts take gigabytes
    for some in parts:
        rows: list[dict[str, Any]] = []
        splits: list[Split] = []
        for report in some:
            before = len(rows)
            for name in sorted(used_sections(report, settings)):
                sections.append(hash(report[name]))
                splits.append(split(report[name]))
                rows += (
                    {
                        **{key: report[key] for key in ("study_id", "subject_id", "split")},
                        "section": name,
                        "position": index,
                        "text": text,
                        "text_key": text_key(text),
                    }
                    for index, text in splits[-1].sentences
                )
            counts["reports_with_sentences"] += len(rows) > before
        counts["reports"] += len(some)
        counts["training_sentences"] += sum(row["split"] == "train" for row in rows)
        counts["masked"] += sum(bool(MASK.search(row["text"])) for row in rows)
        losses.update(_losses(splits))
        keys.extend(hash(row["text_key"]) for row in rows)
        write(pa.Table.from_pylist(rows, schema=SENTENCES.schema))
    return {
        "reports": counts["reports"],
        "sections": len(sections),
        "distinct_sections": _distinct(sections),
        "reports_with_sentences": counts["reports_with_sentences"],
        "sentences": len(keys),
        "unique": _distinct(keys),
        "training_sentences": counts["training_sentences"],
        "masked_share": round(counts["masked"] / len(keys), 6) if keys else 0.0,
        **losses,
    }


def _distinct(hashes: "array[int]") -> int:
    return int(pc.count_distinct(pa.array(hashes, pa.int64())).as_py())


def used_sections(report: Mapping[str, str], settings: SentencesConfig) -> list[str]:
    """Name the sections with text that are used: those asked for, or what stands in for them."""
    present = [name for name in settings.sections if report[name]]
    return present or (["last_paragraph"] if report["last_paragraph"] else [])


def _losses(splits: Sequence[Split]) -> dict[str, int]:
    return {
        "found_sentences": sum(split.found for split in splits),
        **{f"dropped_{rule}": sum(split.dropped[rule] for split in splits) for rule in RULES},
        "truncated_sentences": sum(split.truncated_sentences for split in splits),
        "truncated_sections": sum(split.truncated_sections for split in splits),
    }


def broken_rule(sentence: str) -> str:
    """Name the one of `RULES` by which a normalised sentence is dropped; "" where it is kept."""
    if not any(character.isalnum() or character == "_" for character in sentence):
        return "punctuation"
    if _ENUMERATOR.fullmatch(sentence):
        return "enumerator"
    readable = MASK.sub(" ", sentence)
    words = sum(any(c.isalpha() for c in word) for word in readable.split())
    if words == 0:
        return "masked"
    if words >= _FEWEST_WORDS:
        return ""
    from medclip_dcl.text.labeler.labels import read_sentence

    reading = read_sentence(sentence)
    return "" if reading.mentions or reading.normal else "short"
