"""What a sentence can say of a concept, and the marks that it is read from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from medclip_dcl.reports.cues import CUES, Cue
from medclip_dcl.reports.lexicon import PHRASES_OF, REGIONS_OF, split_phrases
from medclip_dcl.reports.phrases import PhraseTable


class Polarity(Enum):
    """What a sentence says of a concept that it names."""

    ASSERTED = "asserted"
    NEGATED = "negated"
    UNCERTAIN = "uncertain"
    PAST = "past"


@dataclass
class Mention:
    """A concept of the lexicon, as one sentence speaks of it."""

    concept: str
    polarity: Polarity
    sides: frozenset[str] = frozenset()


class Mark(NamedTuple):
    """A phrase found in a sentence: a cue, or the name of a concept or of a region.

    Attributes:
        cue: what the phrase does; None where it is a name.
        concept: concept that it names; empty where it names none.
        region: part of the film that it names; empty where it names none.
        start: place of its first word in the sentence.
        end: place after its last word.
    """

    cue: Cue | None
    concept: str
    region: str
    start: int
    end: int


class _Term(NamedTuple):
    cue: Cue | None = None
    concept: str = ""
    region: str = ""


def _terms() -> Iterator[tuple[str, _Term]]:
    for concept, text in PHRASES_OF.items():
        yield from ((phrase, _Term(concept=concept)) for phrase in split_phrases(text))
    for region, text in REGIONS_OF.items():
        yield from ((phrase, _Term(region=region)) for phrase in split_phrases(text))
    for cue, text in CUES.items():
        yield from ((phrase, _Term(cue=cue)) for phrase in split_phrases(text))


_NAMES = [phrase for text in PHRASES_OF.values() for phrase in split_phrases(text)]
_LONGEST_CLAUSE = 100
_TABLE = PhraseTable(dict(_terms()), forgiven=_NAMES)


def find_marks(sentence: str) -> list[Mark]:
    """Find every phrase of the lexicon and of the cues, the longest at each place.

    Args:
        sentence: any text.

    Returns:
        The marks, left to right, without overlaps.
    """
    return [Mark(*match.value, match.start, match.end) for match in _TABLE.find(sentence)]


def cut_clauses(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    """Cut a sentence where nothing said before reaches what comes after.

    A clause is cut at its hundredth mark as well, so that no text, however written, is
    read in more than a time that grows with its length.

    Args:
        marks: marks of one sentence.

    Yields:
        The marks of each clause, the cutting words left out.
    """
    clause: list[Mark] = []
    for mark in marks:
        if mark.cue is Cue.BREAK or len(clause) == _LONGEST_CLAUSE:
            yield clause
            clause = []
        if mark.cue is not Cue.BREAK:
            clause.append(mark)
    yield clause
