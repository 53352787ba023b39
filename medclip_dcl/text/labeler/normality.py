"""Clause -> what it says about parts of the image: "heart size is normal", "lungs are clear".

A part that is called normal denies its concepts; one that is called enlarged asserts its
own. "No abnormality" makes the part that it is said about normal, and the image where it is
said about none. The parts meant stand before the quality ("heart and lungs are normal"),
else just after it ("normal heart size and mediastinal contours").
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile

from medclip_dcl.text.labeler.lexicon import ASSERTED_WHERE_LARGE, NEGATED_WHERE_NORMAL, Cue
from medclip_dcl.text.labeler.phrases import Mark, Mention, Polarity

QUALITIES = {Cue.NORMAL, Cue.LARGE, Cue.NEAR_NORMAL, Cue.ABNORMALITY}
_STOPS_BEFORE = QUALITIES | {Cue.WITH}
_SKIPPED_AFTER = {Cue.AND, Cue.COMMA, Cue.OR, Cue.DEGREE, Cue.LEFT, Cue.RIGHT, Cue.BOTH}
_WHOLE_IMAGE = {
    Cue.NORMAL: {"chest", "lungs"},
    Cue.ABNORMALITY: {"chest", "lungs", "heart and lungs", "heart"},
}
_NEAR = 3
"""Words within which "findings of edema" are findings of something."""


def read_regions(
    clause: Sequence[Mark], polarities: Sequence[Polarity]
) -> tuple[list[Mention], bool]:
    """Read what a clause says about parts of the image.

    Returns the concepts that are so denied or asserted, and whether the image or the lungs
    are called normal.
    """
    mentions: list[Mention] = []
    normal = False
    used: set[int] = set()
    for index, mark in enumerate(clause):
        if mark.cue not in QUALITIES:
            continue
        subjects = _subjects(clause, index, used)
        used.update(subjects)
        names = {clause[position].region for position in subjects if _is_whole(clause, position)}
        if mark.cue is Cue.LARGE:
            mentions += _enlarged(names, polarities[index])
        elif mark.cue is Cue.NORMAL and _is_said(clause, index):
            normal |= bool(names & _WHOLE_IMAGE[Cue.NORMAL])
            mentions += _denied(names)
        elif mark.cue is Cue.ABNORMALITY and _is_denied(clause, index, polarities[index]):
            normal |= not subjects or bool(names & _WHOLE_IMAGE[Cue.ABNORMALITY])
            mentions += _denied(names - _WHOLE_IMAGE[Cue.ABNORMALITY])
    return mentions, normal


def _enlarged(names: set[str], polarity: Polarity) -> Iterator[Mention]:
    large = sorted(names & ASSERTED_WHERE_LARGE.keys())
    concepts = [ASSERTED_WHERE_LARGE[name] for name in large]
    for concept in concepts or ["Other"]:
        yield Mention(concept, polarity)


def _denied(names: set[str]) -> Iterator[Mention]:
    for name in sorted(names):
        for concept in NEGATED_WHERE_NORMAL[name]:
            yield Mention(concept, Polarity.NEGATED)


def _is_said(clause: Sequence[Mark], index: int) -> bool:
    """Whether a "normal" is meant in full: not "not normal", not "otherwise normal"."""
    limited = any(mark.cue is Cue.OTHERWISE for mark in clause[:index])
    previous = clause[index - 1].cue if index else None
    return not limited and previous not in {Cue.NOT, Cue.LEFT, Cue.RIGHT}  # "lung: right clear"


def _is_denied(clause: Sequence[Mark], index: int, polarity: Polarity) -> bool:
    of_something = any(
        mark.concept and mark.start - clause[index].end < _NEAR
        for mark in clause[index + 1 : index + 2]
    )
    return polarity is Polarity.NEGATED and not of_something


def _subjects(clause: Sequence[Mark], index: int, used: set[int]) -> list[int]:
    """Find the parts of the image that a quality is said of."""
    before: list[int] = []
    for position in range(index - 1, -1, -1):
        mark = clause[position]
        if position in used or mark.cue in _STOPS_BEFORE or mark.concept:
            break
        if mark.cue is Cue.DENY and before:
            break
        if mark.region:
            before.append(position)
    after = takewhile(
        lambda position: clause[position].region or clause[position].cue in _SKIPPED_AFTER,
        range(index + 1, len(clause)),
    )
    return before or [position for position in after if clause[position].region]


def _is_whole(clause: Sequence[Mark], index: int) -> bool:
    """Whether a region is meant as a whole: not "left lung"."""
    return index == 0 or clause[index - 1].cue not in {Cue.LEFT, Cue.RIGHT}
