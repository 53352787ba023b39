"""Phrases in text: words brought to one form, then the longest phrase at every position.

The search walks a tree of words, so its time grows with the length of the text alone: no
pattern could backtrack. A sentence becomes marks, and marks become clauses, from which the
later rules read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from medclip_dcl.text.cleaning import fold_unicode
from medclip_dcl.text.labeler.lexicon import (
    CUES,
    FINDINGS_OF,
    PHRASES_OF,
    REGIONS_OF,
    Cue,
    split_phrases,
)

_WORD = re.compile(r"\d+(?:[.,/:]\d+)*|[a-z]+\d*(?:'[a-z]+)?|[,:/?()|=!\u2014]")
_DASH = re.compile(r"(?<=\s)[-\u2013]+(?=\s)|--+|\u2014")
_SHORTEST = 4
"""Letters that a word may be shortened to."""
_FORGIVEN_LENGTH = 7
"""Letters from which one wrong letter is forgiven; shorter words are too alike."""
_LONGEST_CLAUSE = 100
_CUTS = {Cue.BREAK, Cue.WHICH}


def words(text: str) -> list[str]:
    """Cut text into lower-case words in the singular, numbers and marks; `;` becomes `!`.

    Hyphens separate words, so that "air-space" is two; a dash with a space on both sides, or a long
    one, is a mark.
    """
    folded = fold_unicode(text).lower().replace(";", "!")
    if not folded.isascii() or "-" in folded:
        folded = _DASH.sub("\u2014", folded)
    return [_singular(word) for word in _WORD.findall(folded)]


class _Spelling:
    """Corrects one wrong, missing, added or swapped letter in the long words among some.

    The beginning of a word of `shortened` stands for it where it begins no word of another meaning:
    "atelect".
    """

    def __init__(
        self, vocabulary: Set[str], forgiven: Set[str], shortened: Mapping[str, str]
    ) -> None:
        self._vocabulary = frozenset(vocabulary)
        meanings: dict[str, set[str]] = {}
        for word in vocabulary:
            for end in range(_SHORTEST, len(word)):
                meanings.setdefault(word[:end], set()).add(shortened.get(word, ""))
        self._whole = {
            word[:end]: word
            for word in sorted(shortened, key=len, reverse=True)
            for end in range(_SHORTEST, len(word))
            if len(meanings[word[:end]]) == 1
        }
        self._shortened: dict[str, str] = {}
        for word in sorted(forgiven):
            if len(word) >= _FORGIVEN_LENGTH:
                for short in _shortened(word):
                    self._shortened.setdefault(short, word)
        self.correct = lru_cache(maxsize=1 << 16)(self._correct)

    def _correct(self, word: str) -> str:
        if word in self._vocabulary or len(word) < _SHORTEST or len(word) > 40:
            return word
        if word in self._whole:
            return self._whole[word]
        word = word.partition("'")[0]  # "effus'n"
        word = self._whole.get(word, word)
        for short in _shortened(word) if len(word) >= _FORGIVEN_LENGTH - 1 else ():
            candidate = self._shortened.get(short)
            if candidate is not None and candidate[0] == word[0] and _one_slip(word, candidate):
                return candidate
        return word


def _shortened(word: str) -> list[str]:
    return [word, *(word[:i] + word[i + 1 :] for i in range(1, len(word)))]


def _one_slip(word: str, right: str) -> bool:
    """Whether one letter was changed, left out or added, or two neighbours swapped."""
    first = next((i for i, (a, b) in enumerate(zip(word, right, strict=False)) if a != b), None)
    if first is None:
        return abs(len(word) - len(right)) <= 1
    rest, goal = word[first:], right[first:]
    return (
        rest[1:] == goal[1:]
        or rest[1:] == goal
        or rest == goal[1:]
        or (rest[:2] == goal[1::-1] and rest[2:] == goal[2:])
    )


_BRITISH = re.compile(r"oe(?=dema|soph)|(?<=h)ae(?=m)")


@lru_cache(maxsize=1 << 16)
def _singular(word: str) -> str:
    """Singular of a word, in American spelling."""
    word = word.removesuffix("'s")
    if "oe" in word or "haem" in word:
        word = _BRITISH.sub("e", word)
    if word.endswith(("ised", "isation")):
        word = f"{word[: word.rindex('is')]}iz{word[word.rindex('is') + 2 :]}"
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[: -2 if word.endswith(("sses", "xes", "ches", "shes")) else -1]


class Polarity(Enum):
    """Polarity of a concept that a sentence names."""

    __hash__ = object.__hash__

    ASSERTED = "asserted"
    NEGATED = "negated"
    UNCERTAIN = "uncertain"
    ASKED = "asked"
    """Asked for, or hard to judge: open where nothing else is said of it."""
    PAST = "past"


@dataclass
class Mention:
    """A concept of the lexicon, as one sentence speaks of it."""

    concept: str
    polarity: Polarity
    sides: frozenset[str] = frozenset()


class Mark(NamedTuple):
    """A phrase found in a sentence: a cue, or the name of a concept or of a region.

    What it is not is None or empty; `start` and `end` count words.
    """

    cue: Cue | None
    concept: str
    region: str
    start: int
    end: int


def _phrases(texts: Mapping[Any, str]) -> Iterator[tuple[str, Any]]:
    return ((phrase, name) for name, text in texts.items() for phrase in split_phrases(text))


_TERMS: dict[str, tuple[Cue | None, str, str]] = {
    **{phrase: (None, name, "") for phrase, name in _phrases(PHRASES_OF)},
    **{phrase: (None, "", name) for phrase, name in _phrases(REGIONS_OF)},
    **{phrase: (cue, "", "") for phrase, cue in _phrases(CUES)},
}
"""Phrase -> the first three fields of its mark."""

_FORGIVEN = [phrase for texts in (PHRASES_OF, REGIONS_OF) for phrase, _ in _phrases(texts)]
_SHORTENED = {
    words(phrase)[0]: name
    for phrase, name in _phrases(PHRASES_OF)
    if len(words(phrase)) == 1 and name != "Device" and FINDINGS_OF.get(name)
}
_FORGIVEN += [*split_phrases(CUES[Cue.NORMAL]), "without"]
_SPELLING = _Spelling(
    {word for phrase in _TERMS for word in words(phrase)},
    {word for phrase in _FORGIVEN for word in words(phrase)},
    _SHORTENED,
)
_TREE: dict[str | None, Any] = {}
"""Word -> the words that go on, and None -> the first three fields of the mark that ends here."""
for _phrase, _fields in _TERMS.items():
    _node = _TREE
    for _word in words(_phrase):
        _node = _node.setdefault(_word, {})
    _node[None] = _fields


def find_marks(sentence: str) -> list[Mark]:
    """Find every phrase of the lexicon and of the cues, left to right, the longest first."""
    spelled = [_SPELLING.correct(word) for word in words(sentence)]
    marks: list[Mark] = []
    start = 0
    while start < len(spelled):
        node, end, longest = _TREE, start, start
        while end < len(spelled) and spelled[end] in node:
            node, end = node[spelled[end]], end + 1
            if None in node:
                (cue, name, part), longest = node[None], end
        if longest > start:
            marks.append(Mark(cue, name, part, start, longest))
        start = max(longest, start + 1)
    if not any(mark.cue is Cue.PARTLY for mark in marks):
        return marks
    partly = {mark.end for mark in marks if mark.cue is Cue.PARTLY}
    return [
        mark
        for mark in marks
        if not (mark.cue is Cue.PARTLY or (mark.cue in _VANISHED and mark.start in partly))
    ]


_VANISHED = {Cue.GONE, Cue.DENY_BEFORE}
"""Cues that "partially" voids."""


def is_term(word: str) -> bool:
    """Whether a word is one of the lexicon's."""
    return _singular(word.lower()) in _VOCABULARY


_VOCABULARY = {word for phrase in _TERMS for word in words(phrase) if len(word) > 3}
_JOINS = {Cue.AND, Cue.OR, Cue.COMMA, Cue.COLON, Cue.LEFT, Cue.RIGHT}


def names_parts_alone(line: str, *, findings: bool = False) -> bool:
    """Whether a line is nothing but the names of parts of the image, or of findings: a label."""
    if len(line) > 40 or not line or line.endswith("."):
        return False
    marks = find_marks(line)
    return (
        any(mark.cue is None for mark in marks)
        and all(mark.region or mark.cue in _JOINS or (findings and mark.concept) for mark in marks)
        and sum(mark.end - mark.start for mark in marks) == len(words(line))
    )


def is_size(text: str) -> bool:
    """Whether a text is of sizes and degrees alone: "small", the answer to "Effusion?"."""
    marks = find_marks(text)
    return bool(marks) and marks[0].start == 0 and {mark.cue for mark in marks} <= _OF_SIZE


_OF_SIZE = {Cue.DEGREE, Cue.LEFT, Cue.RIGHT, Cue.BOTH, Cue.COMMA, Cue.AND}


def lacks_part(item: str) -> bool:
    """Whether an item calls something normal or large and names no part of the image."""
    marks = find_marks(item)
    return any(mark.cue in {Cue.NORMAL, Cue.LARGE} for mark in marks) and not any(
        mark.region or mark.concept for mark in marks
    )


_OF_PLEURA = {"Thickening": "Pleural Thickening", "Fluid": "Effusion"}
_BY_PLEURA = {"Effusion", "Pneumothorax", "Pleural Thickening", "Hydropneumothorax"}


def name_thickening(marks: Sequence[Mark]) -> list[Mark]:
    """Name thickening and fluid the pleura's where the sentence speaks of it or what it holds."""
    if any(mark.concept in _OF_PLEURA for mark in marks) and any(
        mark.region == "pleura" or mark.concept in _BY_PLEURA for mark in marks
    ):
        return [mark._replace(concept=_OF_PLEURA.get(mark.concept, mark.concept)) for mark in marks]
    return list(marks)


def cut_clauses(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    """Cut a sentence where nothing said before reaches what comes after; drop the cutting words.

    A part of the image that "which" follows begins the next clause as well.

    A clause is cut at its hundredth mark as well, so that no text, however written, is
    read in more than a time that grows with its length.
    """
    clause: list[Mark] = []
    for index, mark in enumerate(marks):
        unmarked = bool(clause) and _begins_unmarked(marks, index)
        if mark.cue in _CUTS or unmarked or len(clause) == _LONGEST_CLAUSE:
            yield clause
            clause = _region_at_end(clause) if mark.cue is Cue.WHICH else []
        if mark.cue not in _CUTS:
            clause.append(mark)
    yield clause


def _begins_unmarked(marks: Sequence[Mark], index: int) -> bool:
    """Whether a statement begins without any stop: "no pneumothorax the heart is enlarged"."""
    before = marks[index - 1]
    is_seen = before.cue is Cue.SEEN and index > 1 and marks[index - 2].cue is Cue.VERB
    if not (before.concept or is_seen) or before.end != marks[index].start:
        return False
    begins_with_size = marks[index].cue is Cue.DEGREE
    while index + 1 < len(marks) and marks[index].cue is Cue.DEGREE:
        if marks[index].end != marks[index + 1].start:
            return False
        index += 1
    if marks[index].concept == "Device" != before.concept:  # "no effusion picc line is in place"
        following = (mark for mark in marks[index + 1 :] if mark.concept != "Device")
        return next((mark.cue for mark in following if mark.cue is not Cue.AND), None) in _STATED
    if begins_with_size and marks[index].cue in {Cue.LEFT, Cue.RIGHT, Cue.BOTH}:
        index = min(index + 1, len(marks) - 1)
    if begins_with_size and marks[index].concept:
        return True  # "no pneumothorax small left effusion"
    return bool(marks[index].region)


_STATED = {Cue.VERB, Cue.SEEN}


def _region_at_end(clause: Sequence[Mark]) -> list[Mark]:
    """The part that "which" goes on about: "the heart is stable, which is mildly enlarged"."""
    named = [mark for mark in clause if mark.cue not in {Cue.COMMA, Cue.VERB, Cue.DEGREE}][-1:]
    return [mark for mark in named if mark.region]
