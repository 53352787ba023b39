"""Sentence -> mentions: which concepts it names, whether they are there, and on which side.

Rules, in the order in which they are applied
    1  The longest phrase of the lexicon and of the cues at each place, left to right.
    2  "but", "except", "there is" ... cut the sentence into clauses; no rule looks across.
    3  A clause is read left to right in a mood: asserting, denying, hedging, past. A cue
       sets it; "no ... change in" and a doubled negation set it back; "with", or "and"
       and a comma before a statement of its own, end it. A list with "or" never ends it.
    4  Cues that look back ("has resolved", "cannot be excluded") reach to the last verb.
    5  A part of the film that is called normal denies its concepts; one that is called
       enlarged asserts its own; "no abnormality" makes its part normal.
    6  Sides: of the words between two mentions, those after the last joint belong to the
       later one, the rest to the earlier. A mention without a side shares its neighbour's.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from medclip_dcl.reports.cues import CUES, Cue
from medclip_dcl.reports.lexicon import (
    ASSERTED_WHERE_LARGE,
    FINDINGS_OF,
    NEGATED_WHERE_NORMAL,
    PHRASES_OF,
    REGIONS_OF,
    split_phrases,
)
from medclip_dcl.reports.phrases import Match, PhraseTable


RULES = 1
"""Version of the rules below; raised with every change of them."""


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


@dataclass
class Reading:
    """Everything that a sentence says; `normal`: it calls the film or the lungs normal."""

    mentions: list[Mention] = field(default_factory=list)
    normal: bool = False


@dataclass(frozen=True)
class Concept:
    """A phrase that names a concept."""

    name: str


@dataclass(frozen=True)
class Region:
    """A phrase that names a part of the film."""

    name: str


_SENTENCE_END = re.compile(r"(?<!\d)\.|\.(?!\d)|[;!]|\n[ \t]*\n")

Mark = Match[Cue | Concept | Region]
_Indexed = dict[int, Mention]

_SIDES = {
    Cue.LEFT: frozenset({"left"}),
    Cue.RIGHT: frozenset({"right"}),
    Cue.BOTH: frozenset({"left", "right"}),
}
_MOODS = {
    Cue.DENY: Polarity.NEGATED,
    Cue.NOT: Polarity.NEGATED,
    Cue.HEDGE: Polarity.UNCERTAIN,
    Cue.HEDGE_BOTH: Polarity.UNCERTAIN,
    Cue.PAST: Polarity.PAST,
}
_LOOKING_BACK = {Cue.DENY_BEFORE: Polarity.NEGATED, Cue.HEDGE_BEFORE: Polarity.UNCERTAIN}
_BEGINS_STATEMENT = {Cue.DEGREE, Cue.HEDGE, *_SIDES}
_JOINTS = {Cue.AND, Cue.OR, Cue.WITH, Cue.HEDGE, Cue.HEDGE_BOTH, Cue.DENY, Cue.VERB}
_SHARING_JOINTS = {Cue.AND, Cue.OR, Cue.WITH, Cue.HEDGE_BOTH}


def _table() -> PhraseTable[Cue | Concept | Region]:
    phrases: dict[str, Cue | Concept | Region] = {}
    for concept, text in PHRASES_OF.items():
        phrases |= dict.fromkeys(split_phrases(text), Concept(concept))
    for region, text in REGIONS_OF.items():
        phrases |= dict.fromkeys(split_phrases(text), Region(region))
    for cue, text in CUES.items():
        phrases |= dict.fromkeys(split_phrases(text), cue)
    return PhraseTable(phrases)


_TABLE = _table()


def reader_digest() -> str:
    """Name the rules and words that claims are read with.

    Returns:
        16 hexadecimal digits; others wherever a claim could have come out otherwise.
    """
    cues = {cue.name: text for cue, text in CUES.items()}
    data = [RULES, PHRASES_OF, REGIONS_OF, FINDINGS_OF, NEGATED_WHERE_NORMAL, cues]
    return hashlib.sha256(json.dumps([*data, ASSERTED_WHERE_LARGE]).encode()).hexdigest()[:16]


def read_sentence(text: str) -> Reading:
    """Read one sentence.

    Args:
        text: a sentence; any text is allowed.

    Returns:
        Its mentions in order, and whether it calls the film or the lungs normal.

    Source: ours; the idea of cues with a scope is that of NegEx (Chapman et al. 2001).
    """
    reading = Reading()
    marks = _TABLE.find(text)
    for clause in _clauses(marks):
        mentions = _read_moods(clause)
        _look_back(clause, mentions)
        _assign_sides(clause, mentions)
        reading.mentions += mentions.values()
        reading.mentions += _read_regions(clause, reading)
    if marks and all(mark.value is Cue.NORMAL for mark in marks):
        reading.normal = True
    return reading


def read_report(text: str) -> Reading:
    """Read every sentence of a text.

    Args:
        text: findings, impression, a whole report or one sentence; any text is allowed.

    Returns:
        The mentions of all sentences in order; normal where one sentence says so.
    """
    whole = Reading()
    for sentence in _SENTENCE_END.split(text):
        reading = read_sentence(sentence)
        whole.mentions += reading.mentions
        whole.normal |= reading.normal
    return whole


def _clauses(marks: Sequence[Mark]) -> Iterator[list[Mark]]:
    clause: list[Mark] = []
    for mark in marks:
        if mark.value is Cue.BREAK:
            yield clause
            clause = []
        else:
            clause.append(mark)
    yield clause


def _read_moods(clause: Sequence[Mark]) -> _Indexed:
    """Give every concept of a clause the mood in which it is named (rule 3)."""
    mentions: _Indexed = {}
    for index, (mark, mood) in enumerate(zip(clause, _moods(clause), strict=True)):
        if isinstance(mark.value, Concept):
            mentions[index] = Mention(mark.value.name, mood)
        elif mark.value is Cue.HEDGE_BOTH and mentions:
            last = mentions[max(mentions)]
            if last.polarity is Polarity.ASSERTED:
                last.polarity = Polarity.UNCERTAIN
    return mentions


def _moods(clause: Sequence[Mark]) -> list[Polarity]:
    """Follow the mood through a clause: its value at every mark."""
    mood, fresh = Polarity.ASSERTED, False  # fresh: no concept since the cue that set it
    moods = []
    for index, mark in enumerate(clause):
        cue = mark.value
        if cue in _MOODS:
            mood = _next_mood(clause, index, mood)
            fresh = True
        elif isinstance(cue, Concept):
            fresh = False
        elif mood is not Polarity.ASSERTED and _ends_mood(clause, index, mood, fresh):
            mood = Polarity.ASSERTED
        moods.append(mood)
    return moods


def _ends_mood(clause: Sequence[Mark], index: int, mood: Polarity, fresh: bool) -> bool:
    cue = clause[index].value
    if cue is Cue.CHANGE:
        return fresh and mood is Polarity.NEGATED
    if cue is Cue.WITH:
        return not fresh and mood is Polarity.NEGATED
    return cue is Cue.AND and not fresh and _begins_statement(clause, index)


def _next_mood(clause: Sequence[Mark], index: int, mood: Polarity) -> Polarity:
    mark = clause[index]
    previous = clause[index - 1] if index else None
    denies = mark.value in {Cue.DENY, Cue.NOT}
    if denies and _is_denied_sight(clause, index):
        return mood
    if denies and previous is not None and previous.end == mark.start:
        doubled = previous.value in {Cue.DENY, Cue.NOT}
        return Polarity.ASSERTED if doubled else Polarity.NEGATED
    if mark.value in {Cue.HEDGE, Cue.HEDGE_BOTH} and mood is Polarity.NEGATED:
        separate = previous is not None and previous.value is Cue.AND
        return Polarity.UNCERTAIN if separate else mood
    return _MOODS[mark.value]  # type: ignore[index]


def _begins_statement(clause: Sequence[Mark], index: int) -> bool:
    """Whether "and" or a comma begins a statement of its own, not the next item of a list."""
    rest = clause[index + 1 :]
    if not rest or any(mark.value is Cue.OR for mark in rest):
        return False
    if rest[0].value is Cue.AND:
        return _begins_statement(clause, index + 1)
    if rest[0].value in _BEGINS_STATEMENT or isinstance(rest[0].value, Region):
        return True
    for mark in reversed(clause[:index]):
        if mark.value in {Cue.VERB, Cue.SEEN}:
            return True
        if isinstance(mark.value, Concept):
            return False
    return False


def _is_denied_sight(clause: Sequence[Mark], index: int) -> bool:
    return (
        clause[index].value is Cue.NOT
        and index + 1 < len(clause)
        and clause[index + 1].value is Cue.SEEN
    )


def _look_back(clause: Sequence[Mark], mentions: _Indexed) -> None:
    """Let "has resolved" and "cannot be excluded" change what stands before them (rule 4)."""
    for index, mark in enumerate(clause):
        polarity = _LOOKING_BACK.get(mark.value)  # type: ignore[arg-type]
        if _is_denied_sight(clause, index):
            polarity = Polarity.NEGATED
        if polarity is None:
            continue
        reached_subject = False
        for place in range(index - 1, -1, -1):
            if place in mentions:
                mentions[place].polarity = polarity
                reached_subject = True
            elif reached_subject and clause[place].value in {Cue.VERB, Cue.SEEN, Cue.WITH}:
                break


def _read_regions(clause: Sequence[Mark], reading: Reading) -> Iterator[Mention]:
    """Read what a clause says of parts of the film (rule 5)."""
    moods = _moods(clause)
    used: set[int] = set()
    for index, mark in enumerate(clause):
        if mark.value not in {Cue.NORMAL, Cue.LARGE, Cue.BORDERLINE, Cue.ABNORMALITY}:
            continue
        subjects = _subjects(clause, index, used)
        used.update(subjects)
        names = [clause[place].value.name for place in subjects if _is_whole(clause, place)]  # type: ignore[union-attr]
        if mark.value is Cue.LARGE:
            named = [ASSERTED_WHERE_LARGE[name] for name in names if name in ASSERTED_WHERE_LARGE]
            for concept in named or ["Other"]:
                yield Mention(concept, moods[index])
        elif _calls_normal(clause, index, moods[index]):
            vague = not subjects and mark.value is Cue.ABNORMALITY
            reading.normal |= vague or "chest" in names or "lungs" in names
            if mark.value is Cue.ABNORMALITY and "lungs" in names:
                names.remove("lungs")
            for name in names:
                for concept in NEGATED_WHERE_NORMAL[name]:
                    yield Mention(concept, Polarity.NEGATED)


def _calls_normal(clause: Sequence[Mark], index: int, mood: Polarity) -> bool:
    cue = clause[index].value
    if cue is Cue.ABNORMALITY:
        return mood is Polarity.NEGATED
    limited = any(mark.value is Cue.OTHERWISE for mark in clause[:index])
    denied = index > 0 and clause[index - 1].value is Cue.NOT
    return cue is Cue.NORMAL and not limited and not denied


def _subjects(clause: Sequence[Mark], index: int, used: set[int]) -> list[int]:
    """Find the parts that a quality speaks of: those before it, else those just after."""
    before = []
    for place in range(index - 1, -1, -1):
        if place in used or clause[place].value in {Cue.NORMAL, Cue.LARGE, Cue.WITH}:
            break
        if clause[index].value is Cue.ABNORMALITY and clause[place].value is Cue.DENY:
            break
        if isinstance(clause[place].value, Region):
            before.append(place)
        elif isinstance(clause[place].value, Concept):
            break
    if before:
        return before
    after = []
    for place in range(index + 1, len(clause)):
        value = clause[place].value
        if isinstance(value, Region):
            after.append(place)
        elif value not in {Cue.AND, Cue.OR, Cue.DEGREE, *_SIDES}:
            break
    return after


def _is_whole(clause: Sequence[Mark], place: int) -> bool:
    """Whether a region is meant as a whole: not "left lung"."""
    return place == 0 or clause[place - 1].value not in {Cue.LEFT, Cue.RIGHT}


def _assign_sides(clause: Sequence[Mark], mentions: _Indexed) -> None:
    """Give every mention its sides (rule 6)."""
    places = sorted(mentions)
    before = dict.fromkeys(places, frozenset[str]())
    after = dict.fromkeys(places, frozenset[str]())
    if not places:
        return
    before[places[0]] = _sides(clause[: places[0]])
    after[places[-1]] = _sides(clause[places[-1] :])
    for place, following in pairwise(places):
        gap = clause[place + 1 : following]
        joint = max((i for i, mark in enumerate(gap) if mark.value in _JOINTS), default=-1)
        before[following] = _sides(gap[joint + 1 :])
        after[place] = _sides(gap[: joint + 1])
    for place in places:
        mentions[place].sides = before[place] | after[place]
    for place, following in pairwise(places):
        if not mentions[following].sides and _shares(clause[place + 1 : following]):
            mentions[following].sides = before[place]
    for following, place in pairwise(reversed(places)):
        if not mentions[place].sides and _shares(clause[place + 1 : following]):
            mentions[place].sides = after[following]


def _sides(marks: Sequence[Mark]) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for mark in marks:
        found |= _SIDES.get(mark.value, frozenset())  # type: ignore[arg-type]
    return found


def _shares(gap: Sequence[Mark]) -> bool:
    return all(mark.value in _SHARING_JOINTS or mark.value is Cue.DEGREE for mark in gap)
