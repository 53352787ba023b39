"""Sentences: reports split, and the table of one row per usable sentence.

PySBD splits, behind one function; it is unmaintained, and its known faults are met here:
    line wraps          whitespace is collapsed first: PySBD would end a sentence at each
    glued stops         "clear.There" and "XXXX.In" get the space that ends a sentence
    double stops        "seen.. No" and "seen. ." leave a lone "." that is dropped
    bare enumerators    "1." on its own is dropped, "1. Clear." loses its number
    pathological text   endless lists take it quadratic time: it is given a deadline, after
                        which the section is cut at every stop that a space follows
    words changed       should it not return the words it was given, the same
    slow                where no rule of it but the full stop can act, the text is cut at its stops

Rules by which a sentence is dropped, in the order in which they are tried:
    punctuation   nothing but marks: a lone full stop
    enumerator    bare list numbers: "1." or "2) 3)"
    masked        no letter outside the de-identification tokens ___ and XXXX
    short         fewer than two words with a letter outside ___ and XXXX

A kept sentence loses the number of a list item in front, so that equal statements are one
sentence. For every section, `plain + separated - dropped = kept`.
"""

import contextlib
import functools
import hashlib
import re
import signal
import threading
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifact import Artifact, ArtifactType
from medclip_dcl.errors import StudyError
from medclip_dcl.settings import Section
from medclip_dcl.tables import Column, TableFormat, read_in_parts


class SentencesConfig(Section):
    """Reports to sentences (`split_sentences`)."""

    sections: tuple[str, ...] = ("findings", "impression")
    """Sections used; `last_paragraph` stands in where a report has neither."""


_FEWEST_WORDS = 2  # keeps "No pneumothorax.", which is what this method is about

LONGEST_SENTENCE = 1000
"""Characters; longer sentences are truncated and counted: a model reads far less."""
LONGEST_SECTION = 20_000
"""Characters; longer sections are truncated and counted, which bounds the time of a split."""
DEADLINE_S = 3.0
"""CPU seconds that PySBD may take for a section; a section of usual length takes a thousandth."""

ARTIFACT = ArtifactType("sentences", 2, "split_sentences")

NORMALISATION = "whitespace collapsed, case and marks kept"
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
    """Replace every run of whitespace by one space: the form that is keyed, scored, trained on."""
    return " ".join(text.split())


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
    found: list[pa.Table] = []
    waiting = rows = 0
    for part in read_in_parts(artifact.path, SENTENCES, columns, whole="study_id"):
        found.append(_counted(part))
        waiting += len(found[-1])
        if waiting > 2 * rows:  # so that a row is united a few times, however many parts there are
            found = [_united(found)]
            waiting = rows = len(found[0])
    if not found:
        raise StudyError("no report has a usable sentence; correct source.columns, or the reports")
    united = _united(found).sort_by("text_key")
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
    kept = by_study.select(["text_key", *names])
    return _united([kept.rename_columns(["text_key", *names.values()])])


def _united(parts: Sequence[pa.Table]) -> pa.Table:
    sums = [("text", "min"), ("count", "sum"), ("reports", "sum")]
    table = pa.concat_tables(parts).group_by("text_key").aggregate(sums)
    kept = table.select(["text_key", *(f"{name}_{how}" for name, how in sums)])
    return kept.rename_columns(["text_key", *(name for name, _ in sums)])


def training_reports(artifact: Artifact) -> int:
    """Count the reports of the training split that have a sentence."""
    parts = read_in_parts(artifact.path, SENTENCES, ["study_id", "split"], whole="study_id")
    return sum(
        len(part.filter(pc.equal(part["split"], "train"))["study_id"].unique()) for part in parts
    )


with warnings.catch_warnings():  # its regular expressions are plain strings with bad escapes
    warnings.simplefilter("ignore", SyntaxWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
    import pysbd

RULES = ("punctuation", "enumerator", "masked", "short")
"""Names of the rules that drop a sentence, in the order in which they are tried."""

SPLITTER = f"pysbd {metadata.version('pysbd')} en, rules 2"
"""Names how reports are split; part of the fingerprint of all that is made from sentences."""

MASK = re.compile(r"_{2,}|\bX{3,}s?\b")
"""De-identification tokens: MIMIC's ___ and Open-i's XXXX."""

_ENUMERATOR = re.compile(r"(\(?(\d{1,3}|[A-Za-z])[.):]+ *)+")
_NUMBER = re.compile(r"^(\(?(\d{1,2}|[a-h])[.):]+ +)+(?=\S)")
_GLUED = re.compile(r"((?<=[a-z]{3})|(?<=XXX)|(?<=___)|(?<![\w.-])\d{1,2})\.(?=[A-Z][a-z])")
"""A stop, or a list number and its stop, that a word follows at once."""
_KNOWN_SECTIONS = 1 << 16  # of which the splits are kept: most repeats are of a few
_STOP = re.compile(r"(?<=[.?!]) +")
_SEGMENTER = pysbd.Segmenter(language="en", clean=False)
_PLAIN = re.compile(r"[\w ,:;/%'.-]+", re.ASCII)
_WORDS = _SEGMENTER.language_module.Abbreviation
_TITLES, _SHORT = (
    "|".join(map(re.escape, words))
    for words in (_WORDS.PREPOSITIVE_ABBREVIATIONS, _WORDS.ABBREVIATIONS)
)
_OTHER_RULES = re.compile(
    r"  |\A | \Z|--"  # blanks and dashes
    r"|(?<![A-Za-z])'|'(?![A-Za-z])"  # quotes; an apostrophe stands between letters
    r"|\.(?! |\Z|(?<=\d\.)\d)"  # marks that are neither a full stop nor decimal
    r"|(?<![\w%])\.|(?<![^ ][^ ])(?<!\d)\."  # ellipses, items a. and A.
    r"|\A\d\d?\. |\d\. .*\d\. "  # items 1. and 2.
    rf"|(?<![^ ])(?i:(?:{_TITLES})\.|(?:{_SHORT})\.(?-i:(?! [A-HJ-Z]|\Z)))",
    re.ASCII,
)
"""Where a rule of PySBD other than the full stop may act on a text of `_PLAIN`."""
_AFTER_STOP = re.compile(r"(?<=\.) ")


class _Late(BaseException):
    """PySBD exceeded its deadline."""


@dataclass(frozen=True, slots=True)
class Split:
    """Sentences kept of one section, and why others were not."""

    sentences: tuple[tuple[int, str], ...]
    """Place among all sentences of the section, from 0, and normalised text."""
    plain: int
    """Sentences that the segmenter alone makes of the section."""
    separated: int
    """Sentences more (or fewer) where glued stops were separated first."""
    dropped: Mapping[str, int]
    """Rule -> sentences that it dropped."""
    truncated_sentences: int
    """Kept sentences that were cut to the longest length allowed."""
    truncated_sections: int
    """1 where the section itself was cut before it was split."""
    unsegmented: int
    """1 where the section was cut at its stops, PySBD being late or changing words."""


def split_section(text: str) -> Split:
    """Split one section of a report into the sentences that are scored and trained on.

    Source: Sadvilkar and Neumann 2020 (PySBD); the rules are ours.
    """
    whole = normalise_text(text)
    section = whole[:LONGEST_SECTION]
    repaired = _GLUED.sub(lambda match: f"{match.group()} ", section)
    pieces, is_plain = _pieces(repaired)
    plain = len(pieces)
    if repaired != section:
        plain = len(segment(section) if is_plain else _cut_at_stops(section))
    kept, dropped, cut = [], dict.fromkeys(RULES, 0), 0
    for index, sentence in enumerate(pieces):
        rule = broken_rule(sentence)
        if rule:
            dropped[rule] += 1
            continue
        stated = without_number(sentence)
        cut += len(stated) > LONGEST_SENTENCE
        kept.append((index, normalise_text(stated[:LONGEST_SENTENCE])))
    return Split(
        sentences=tuple(kept),
        plain=plain,
        separated=len(pieces) - plain,
        dropped=dropped,
        truncated_sentences=cut,
        truncated_sections=int(len(whole) > len(section)),
        unsegmented=int(not is_plain),
    )


def without_number(sentence: str) -> str:
    """Cut off the number of a list item: "2. No effusion." gives "No effusion."."""
    return _NUMBER.sub("", sentence)


def split_reports(
    parts: Iterable[Sequence[Mapping[str, str]]],
    settings: SentencesConfig,
    write: Callable[[pa.Table], None],
) -> dict[str, Any]:
    """Split parts of the reports, in order of study_id, write `SENTENCES` in order, and sum up.

    A section that repeats is split once as long as it is remembered: PySBD is slow. By the summary,
    plain_sentences + separated - all that was dropped = sentences.
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
        "plain_sentences": sum(split.plain for split in splits),
        "separated": sum(split.separated for split in splits),
        **{f"dropped_{rule}": sum(split.dropped[rule] for split in splits) for rule in RULES},
        "truncated_sentences": sum(split.truncated_sentences for split in splits),
        "truncated_sections": sum(split.truncated_sections for split in splits),
        "unsegmented_sections": sum(split.unsegmented for split in splits),
    }


def segment(text: str) -> list[str]:
    """Split a text of collapsed whitespace at the ends of its sentences and drop nothing."""
    if is_plain(text):
        return _AFTER_STOP.split(text)  # what PySBD gives, twenty times as fast
    stripped = (normalise_text(piece) for piece in _SEGMENTER.segment(text))
    return [piece for piece in stripped if piece]


def is_plain(text: str) -> bool:
    """Whether PySBD ends a sentence of the text at each full stop, and changes nothing else."""
    return bool(_PLAIN.fullmatch(text)) and not _OTHER_RULES.search(text)


def _pieces(text: str) -> tuple[list[str], bool]:
    """Segment a text, or cut it at its stops; True where it was segmented."""
    with contextlib.suppress(_Late), _deadline(DEADLINE_S):
        pieces = segment(text)
        if "".join(pieces).replace(" ", "") == text.replace(" ", ""):
            return pieces, True
    return _cut_at_stops(text), False


def _cut_at_stops(text: str) -> list[str]:
    return [piece for piece in _STOP.split(text) if piece]


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Raise `_Late` after so much of this process's own CPU time.

    CPU time, because a busy machine must not change what a corpus is split into. Only the
    main thread can be interrupted; elsewhere the longest section bounds the time alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(_number: int, _frame: FrameType | None) -> None:
        raise _Late

    previous = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def broken_rule(sentence: str) -> str:
    """Name the one of `RULES` by which a normalised sentence is dropped; "" where it is kept."""
    if not any(character.isalnum() or character == "_" for character in sentence):
        return "punctuation"
    if _ENUMERATOR.fullmatch(sentence):
        return "enumerator"
    readable = MASK.sub(" ", sentence)
    words = sum(any(c.isalpha() for c in word) for word in readable.split())
    return "masked" if words == 0 else "short" if words < _FEWEST_WORDS else ""
