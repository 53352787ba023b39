"""Clause -> the polarity of every concept in it.

A clause is read left to right in one polarity: asserting, denying, hedging, asking, past. A
cue sets it. It ends where an independent statement begins: at "with" after a denied finding, and
at "and" or a comma before words of size, side or part, or after a verb ("no effusion is
seen, lungs are hazy"). A list with "or" never ends it. Where "no" is followed by a change
("no change in the effusion") or by another negation ("not without"), nothing is denied.

Cues that look back ("has resolved", "is not seen", "cannot be excluded") then decide the
concepts before them, back to the last verb. A hedge stops at a comma as well, where no "and" or
"or" makes what follows it the end of a list: "atelectasis, infection cannot be excluded".
"""

from collections.abc import Sequence

from medclip_dcl.text.labeler.lexicon import Cue
from medclip_dcl.text.labeler.phrases import Mark, Polarity

_POLARITIES = {
    Cue.DENY: Polarity.NEGATED,
    Cue.NOT: Polarity.NEGATED,
    Cue.GONE: Polarity.NEGATED,
    Cue.HEDGE: Polarity.UNCERTAIN,
    Cue.HEDGE_BOTH: Polarity.UNCERTAIN,
    Cue.HEDGE_EITHER: Polarity.UNCERTAIN,
    Cue.IF_ANY: Polarity.UNCERTAIN,
    Cue.EXCLUDE: Polarity.ASKED,
    Cue.ASK: Polarity.ASKED,
    Cue.PAST: Polarity.PAST,
}
_LOOKING_BACK = {  # what stands before is, and what it is where a "not" stands between
    Cue.DENY_BEFORE: (Polarity.NEGATED, Polarity.ASSERTED),
    Cue.EXCLUDED: (Polarity.NEGATED, Polarity.UNCERTAIN),
    Cue.HEDGE_BEFORE: (Polarity.UNCERTAIN, Polarity.UNCERTAIN),
    Cue.ASK_BEFORE: (Polarity.ASKED, Polarity.ASKED),
    Cue.PAST_BEFORE: (Polarity.PAST, Polarity.PAST),
}
_NEGATIONS = {Cue.DENY, Cue.NOT, Cue.GONE}
_LISTS = {Cue.AND, Cue.COMMA}
_ITEM_ENDS = [[Cue.DEGREE], [Cue.DEGREE, Cue.COMMA], [Cue.DEGREE, Cue.AND]]
_HEDGES = {Cue.HEDGE, Cue.HEDGE_BOTH}
_BEGINS_STATEMENT = {Cue.DEGREE, Cue.HEDGE, Cue.LEFT, Cue.RIGHT, Cue.BOTH}
_OPEN = {Polarity.UNCERTAIN, Polarity.ASKED}
_QUALITIES = {Cue.LARGE, Cue.ABNORMALITY}
_SUBJECT_ENDS = {Cue.VERB, Cue.SEEN, Cue.WITH}


def read_negation(clause: Sequence[Mark]) -> list[Polarity]:
    """Return the polarity at every mark of a clause; at a concept, it is the concept's own."""
    polarities = _read_forward(clause)
    for index, mark in enumerate(clause):
        if mark.cue is Cue.HEDGE_BOTH or _turns_back(clause, index):
            _hedge_last_concept(clause, polarities, index)
        if mark.cue in _LOOKING_BACK and not _is_listed(clause, index):
            plain, after_not = _LOOKING_BACK[mark.cue]
            denied = _follows_not(clause, index)
            _look_back(clause, polarities, index, after_not if denied else plain)
        elif _denies_sight(clause, index):
            hedged = index > 0 and clause[index - 1].cue is Cue.HEDGE  # "may not be seen"
            polarity = Polarity.UNCERTAIN if hedged else Polarity.NEGATED
            _look_back(clause, polarities, index, polarity)
    return polarities


def _read_forward(clause: Sequence[Mark]) -> list[Polarity]:
    polarity, fresh = Polarity.ASSERTED, False  # fresh: no concept since the cue that set it
    polarities = []
    for index, mark in enumerate(clause):
        if mark.cue in _POLARITIES and not _turns_back(clause, index):
            polarity, fresh = _next_polarity(clause, index, polarity), True
        elif mark.cue in _LOOKING_BACK:
            has_subject = any(item.concept for item in clause[:index])
            has_subject &= not _is_listed(clause, index)
            denies = mark.cue is Cue.DENY_BEFORE and not has_subject  # "resolved effusion"
            polarity, fresh = (Polarity.NEGATED, True) if denies else (Polarity.ASSERTED, False)
        elif mark.concept:
            fresh = False
        elif polarity is not Polarity.ASSERTED and _ends_scope(clause, index, polarity, fresh):
            polarity = Polarity.ASSERTED
        polarities.append(polarity)
    return polarities


def _is_listed(clause: Sequence[Mark], index: int) -> bool:
    """Whether a mark stands between a comma and a concept: "stable edema, resolved effusion"."""
    around = clause[index - 1 : index + 2] if index else []
    return len(around) == 3 and around[0].cue is Cue.COMMA and bool(around[2].concept)


def _next_polarity(clause: Sequence[Mark], index: int, polarity: Polarity) -> Polarity:
    mark, previous = clause[index], clause[index - 1] if index else None
    assert mark.cue is not None
    adjacent = previous is not None and previous.end == mark.start
    if mark.cue in _NEGATIONS:
        if _denies_sight(clause, index):
            return polarity
        # only "not without" side by side cancels; in "no mass, no effusion" both deny
        doubled = previous is not None and previous.cue in _NEGATIONS
        doubled &= adjacent or mark.cue is Cue.GONE  # "no significant clearing of the opacity"
        return Polarity.ASSERTED if doubled else Polarity.NEGATED
    if mark.cue is Cue.EXCLUDE and polarity is Polarity.NEGATED:
        return Polarity.UNCERTAIN  # "cannot exclude"
    if polarity is Polarity.PAST and _POLARITIES[mark.cue] in _OPEN:
        return polarity  # "at that time the question was pneumothorax"
    if mark.cue in _HEDGES and polarity is Polarity.NEGATED:
        # "no possible effusion" denies; "no effusion, possible edema" hedges what follows
        separate = previous is not None and previous.cue in _LISTS
        return Polarity.UNCERTAIN if separate else polarity
    return _POLARITIES[mark.cue]


def _ends_scope(clause: Sequence[Mark], index: int, polarity: Polarity, fresh: bool) -> bool:
    cue = clause[index].cue
    if cue is Cue.CHANGE:
        return fresh and polarity is Polarity.NEGATED
    if cue is Cue.WITH:
        return not fresh and polarity in {Polarity.NEGATED, Polarity.PAST}
    if cue is Cue.VERB and polarity in {Polarity.ASKED, Polarity.PAST}:
        return not fresh
    return cue in _LISTS and not fresh and _begins_statement(clause, index)


def _begins_statement(clause: Sequence[Mark], index: int) -> bool:
    """Whether "and" or a comma begins a statement of its own, not the next item of a list."""
    rest = [mark for mark in clause[index + 1 :] if mark.cue not in _LISTS]
    if not rest or any(mark.cue is Cue.OR for mark in rest):
        return False
    if rest[0].cue in _BEGINS_STATEMENT or rest[0].region:
        return True
    item = clause[index + 1 : index + 4]  # "no effusion, cardiomegaly unchanged"
    if item[0].concept and [mark.cue for mark in item[1:]] in _ITEM_ENDS:
        return True
    for mark in reversed(clause[:index]):
        if mark.concept and mark.concept != "Device" == rest[0].concept:
            return True  # "no infiltrate, pacemaker"
        if mark.cue in {Cue.VERB, Cue.SEEN}:
            return True
        if mark.concept:
            return False
    return False


def _denies_sight(clause: Sequence[Mark], index: int) -> bool:
    """Whether a mark is the "not" of "not seen", and not of one projection alone."""
    if clause[index].cue is not Cue.NOT:
        return False
    following = [mark.cue for mark in clause[index + 1 : index + 4] if mark.cue is not Cue.VERB]
    return following[:1] == [Cue.SEEN] and following[1:2] != [Cue.VIEW]


def _turns_back(clause: Sequence[Mark], index: int) -> bool:
    """Whether a hedge that can look both ways means the concept before it."""
    if clause[index].cue is Cue.IF_ANY:
        return any(mark.concept for mark in clause[:index])
    return clause[index].cue is Cue.HEDGE_EITHER and not any(
        mark.concept or mark.cue is Cue.LARGE for mark in clause[index + 1 :]
    )


def _follows_not(clause: Sequence[Mark], index: int) -> bool:
    """Whether a "not" stands between a cue that looks back and the concept before it."""
    before = [mark for mark in clause[:index] if mark.concept or mark.cue is Cue.NOT]
    return bool(before) and before[-1].cue is Cue.NOT


def _hedge_last_concept(clause: Sequence[Mark], polarities: list[Polarity], index: int) -> None:
    """Hedge the concept before a hedge, and those that "or" joins to it: "mass/nodule?"."""
    joined = True
    for position in range(index - 1, -1, -1):
        if clause[position].concept and joined:
            joined = False
            if polarities[position] is Polarity.ASSERTED:
                polarities[position] = Polarity.UNCERTAIN
        elif clause[position].concept:
            return
        joined |= clause[position].cue is Cue.OR


def _look_back(
    clause: Sequence[Mark], polarities: list[Polarity], index: int, polarity: Polarity
) -> None:
    # "the edema is mild and the effusion has resolved": the verb shields the edema
    reached_subject = is_list = passed = False
    is_hedge = polarity is Polarity.UNCERTAIN
    denial = next((at for at, mark in enumerate(clause) if mark.cue in _NEGATIONS), len(clause))
    for position in range(index - 1, -1, -1):
        cue = clause[position].cue
        is_list |= cue in {Cue.AND, Cue.OR}
        passed |= bool(clause[position].region)
        # as in: heart enlarged: no; widening of the mediastinum is questioned
        is_stated = position > 0 and clause[position - 1].cue is Cue.VERB
        quality = cue in _QUALITIES and not (reached_subject or (passed and is_stated))
        if clause[position].concept or quality:
            polarities[position] = polarity
            reached_subject = True
        elif reached_subject and (
            cue in _SUBJECT_ENDS
            or (cue is Cue.COMMA and not is_list and (is_hedge or denial < position))
        ):
            break
