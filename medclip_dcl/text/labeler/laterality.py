"""Clause -> the sides of every concept in it.

Of the side words between two concepts, those after the last joint ("and", "with", a
comma, a verb ...) belong to the later concept and the rest to the earlier. A concept
without a side takes its neighbour's, where only "and", "or", "with" and words of size
are between them: "left effusion and atelectasis", "effusion and atelectasis on the left".
"""

from collections.abc import Sequence
from itertools import pairwise

from medclip_dcl.text.labeler.lexicon import Cue
from medclip_dcl.text.labeler.phrases import Mark

_SIDES = {
    Cue.LEFT: frozenset({"left"}),
    Cue.RIGHT: frozenset({"right"}),
    Cue.BOTH: frozenset({"left", "right"}),
}
_SHARING_JOINTS = {Cue.AND, Cue.OR, Cue.WITH, Cue.HEDGE_BOTH}
_JOINTS = _SHARING_JOINTS | {Cue.COMMA, Cue.HEDGE, Cue.DENY, Cue.GONE, Cue.VERB}

_PARTS = {Cue.COMMA, Cue.AND}
_PREDICATES = {Cue.VERB, Cue.NORMAL, Cue.LARGE, Cue.SEEN}

Sides = frozenset[str]


def read_laterality(clause: Sequence[Mark]) -> dict[int, Sides]:
    """Find the sides of every concept of a clause: its index -> sides, empty if none is named."""
    indices = [index for index, mark in enumerate(clause) if mark.concept]
    before = dict.fromkeys(indices, Sides())
    after = dict.fromkeys(indices, Sides())
    if not indices:
        return {}
    before[indices[0]] = _named(clause[_own_start(clause, indices[0]) : indices[0]])
    after[indices[-1]] = _named(clause[indices[-1] : _own_end(clause, indices[-1])])
    for index, following in pairwise(indices):
        gap = clause[index + 1 : following]
        joint = max((i for i, mark in enumerate(gap) if mark.cue in _JOINTS), default=-1)
        after[index], before[following] = _named(gap[: joint + 1]), _named(gap[joint + 1 :])
    sides = {index: before[index] | after[index] for index in indices}
    for index, following in pairwise(indices):
        if not sides[following] and _is_shared(clause[index + 1 : following]):
            sides[following] = before[following] = before[index]
    for following, index in pairwise(reversed(indices)):
        if not sides[index] and _is_shared(clause[index + 1 : following]):
            sides[index] = after[index] = after[following]
    return sides


def _own_start(clause: Sequence[Mark], concept: int) -> int:
    """Find where the first concept's statement begins: "left lung is clear, right lung shows"."""
    start = 0
    for index, mark in enumerate(clause[:concept]):
        is_stated = any(item.cue in _PREDICATES for item in clause[start:index])
        if mark.cue in _PARTS and is_stated:
            start = index + 1
    return start


def _own_end(clause: Sequence[Mark], concept: int) -> int:
    """Find where the statement of the last concept ends: "left effusion, right lung is clear"."""
    for index in range(concept + 1, len(clause)):
        rest = clause[index:]
        speaks = any(item.region for item in rest) and any(item.cue in _PREDICATES for item in rest)
        if clause[index].cue in _PARTS and speaks:
            return index
    return len(clause)


def _named(marks: Sequence[Mark]) -> Sides:
    return Sides().union(*(_SIDES[mark.cue] for mark in marks if mark.cue in _SIDES))


def _is_shared(gap: Sequence[Mark]) -> bool:
    return all(mark.cue in _SHARING_JOINTS or mark.cue is Cue.DEGREE for mark in gap)
