"""Clause -> the sides of every concept in it; sentence -> their zones and sizes.

Of the side words between two concepts, those after the last joint ("and", "with", a
comma, a verb ...) belong to the later concept and the rest to the earlier. A concept
without a side takes its neighbour's, where only "and", "or", "with" and words of size
are between them: "left effusion and atelectasis", "effusion and atelectasis on the left".
"""

import sys
from collections.abc import Sequence
from itertools import pairwise

from medclip_dcl.text.labeler.lexicon import ZONES, Cue
from medclip_dcl.text.labeler.phrases import Mark

_SIDES = {
    Cue.LEFT: frozenset({"left"}),
    Cue.RIGHT: frozenset({"right"}),
    Cue.BOTH: frozenset({"left", "right"}),
}
_SHARING_JOINTS = {Cue.AND, Cue.OR, Cue.WITH, Cue.HEDGE_BOTH}
_JOINTS = _SHARING_JOINTS | {Cue.COMMA, Cue.HEDGE, Cue.DENY, Cue.GONE, Cue.VERB}
_ENDS = _JOINTS | {Cue.BREAK, Cue.WHICH}

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


def read_modifiers(
    marks: Sequence[Mark], modifiers: Sequence[tuple[str, int]]
) -> dict[int, frozenset[str]]:
    """Find the zones, sizes and degrees of every concept and enlargement of a sentence.

    Of the words between two of them those up to the last joint belong to the earlier. A
    zone is shared as a side is, a size is not.

    Returns the place of the first word of each -> what its modifiers name.
    """
    named = [i for i, mark in enumerate(marks) if mark.concept or mark.cue is Cue.LARGE]
    cuts = [0]
    for index, following in pairwise(named):
        joints = [mark.end for mark in marks[index + 1 : following] if mark.cue in _ENDS]
        cuts.append(joints[-1] if joints else marks[index].end)
    found = {
        index: frozenset(name for name, start in modifiers if first <= start < end)
        for index, (first, end) in zip(named, pairwise([*cuts, sys.maxsize]), strict=False)
    }
    for one, other in [*pairwise(named), *pairwise(reversed(named))]:
        gap = marks[min(one, other) + 1 : max(one, other)]
        if not found[other] & ZONES.keys() and _is_shared(gap):
            found[other] |= found[one] & ZONES.keys()
    return {marks[index].start: names for index, names in found.items()}
