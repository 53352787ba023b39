"""Forms -> prose: "Pneumothorax: No" -> "Pneumothorax absent", check boxes, shorthand.

Reports that were clicked together answer rather than tell: a label, a mark, and yes or no. An
answer becomes a word that looks back, so that the rules of `negation` hold for forms as well.
"""

import re
from collections.abc import Sequence
from itertools import takewhile

from medclip_dcl.text.cleaning import Patterns, fold_unicode
from medclip_dcl.text.labeler.lexicon import WORDS, Cue
from medclip_dcl.text.labeler.phrases import Mark, is_size, name_thickening

_RE, _PROSE, _MARKED = (Patterns(module, WORDS) for module in ("forms", "prose", "marked"))
_NO, _YES = " absent ; ", " present ; "
_WRITTEN = {"no": _NO, "n": _NO, "yes": _YES, "y": _YES}
_WRITTEN |= {"open": " is possible ; ", "silent": " n / a ; "}


def write_out(sentence: str) -> str:
    """Write a sentence out as prose: answers, check boxes, signs and letters become words."""
    text = _PROSE.rewrite(_RE.ratio.sub(_heart_size, fold_unicode(sentence)))
    if not _RE.holds_mark.search(text):
        return text
    text = _RE.denied_list.sub(lambda match: match.group().replace(";", ","), text)
    label, mark, answer = text.partition("?")
    if mark and label.strip() and is_size(answer):
        text = f"{label}: {answer}"  # "Effusion? small"
    text = _MARKED.rewrite(text)
    if len(_RE.slashed_no.findall(text)) > 1:  # "no ptx / no edema / aicd": each a statement
        text = text.replace(" / ", " ; ")
    text = _RE.choice.sub(_chosen_in_capitals, text)
    text = _RE.legend.sub(_by_legend, text)
    text = _RE.chosen.sub(lambda match: f": {match['first'] or match['second']} ; ", text)
    text = _RE.plus.sub(" present ; ", text.replace("+/-", " possible "))
    head, bar, cells = text.partition("|")
    if len(_RE.signed.findall(text)) > 1:  # "-eff, +ptx"
        text = _RE.signed.sub(lambda match: "no " if match["sign"] == "-" else " ", text)
    text = f"{head}{bar}{cells.replace('|', ' ; ')}" if cells.count("|") else text
    text = _write_out_boxes(text)
    text = _RE.minus.sub(r"\g<label> absent", _RE.before.sub("no ", text))
    text = _RE.answer.sub(_as_word, text)
    text = _RE.bare_answer.sub(_as_word, text)
    return _RE.cardiomegaly.sub("cardiomegaly", text) if "CM" in text else text


def _heart_size(match: re.Match[str]) -> str:
    """Of a cardiothoracic ratio what it means in adults: more than half is cardiomegaly."""
    percent = int(match["percent"] or match["share"].ljust(2, "0"))
    exceeds = bool(re.search(r">|(?<!not )(?:more|greater|above|exceed|over)", match["more"], re.I))
    return "cardiomegaly" if percent + exceeds > 50 else "heart normal"


def _chosen_in_capitals(match: re.Match[str]) -> str:
    """Of choices the one in capitals: "none / SMALL / large"."""
    chosen = [word for word in re.findall("[A-Za-z]+", match.group()) if word.isupper()]
    return f" {chosen[0]}" if len(chosen) == 1 else match.group()


def _by_legend(match: re.Match[str]) -> str:
    """Of an answer in numbers the word that its legend names: "[0=no 1=yes]: 1"."""
    legend = dict(re.findall(r"(\d)\s*=\s*([A-Za-z]+)", match["legend"]))
    word = legend.get(match["code"], "").lower()
    return f": {'yes' if word in {'definite', 'certain'} else word}"


def _as_word(match: re.Match[str]) -> str:
    kind = match.lastgroup or "silent"
    if kind == "yes" and re.match(r"\s*[,(]", match.string[match.end() :]):
        return " present"  # "yes, small left"
    return _WRITTEN[kind]


def _write_out_boxes(text: str) -> str:
    """Write out check boxes: an empty one denies, a ticked one states."""
    if not _RE.box.search(text):
        return text
    text = _RE.empty_answer.sub(" ", text)
    text = _RE.ticked_answer.sub(lambda match: f": {match['word']} ;", text)
    boxes = list(_RE.box.finditer(text))
    if not boxes:
        return text
    if boxes[0].start() > len(text) - len(text.lstrip()):  # boxes behind their labels
        return _RE.box.sub(lambda match: " absent ; " if match["empty"] else " present ; ", text)
    written = []
    ends = [box.start() for box in boxes[1:]] + [len(text)]
    for box, end in zip(boxes, ends, strict=True):
        label = text[box.end() : end]
        if box["empty"] is None:
            written.append(label)
        elif not _RE.self_denied.match(label):  # an empty "[ ] No effusion" says nothing
            written.append(f" no {label}")
    return " ; ".join(written)


_OF_LABELS = {
    *(Cue.LEFT, Cue.RIGHT, Cue.BOTH, Cue.AND, Cue.OR, Cue.COMMA, Cue.DEGREE, Cue.NEUTRAL),
    *(Cue.ABNORMALITY, Cue.BREAK),
}
_SPEAKS = {Cue.BREAK, Cue.NORMAL, Cue.NEAR_NORMAL, Cue.WHICH}


def silence_labels(marks: Sequence[Mark]) -> list[Mark]:
    """Drop labels before a colon that claim nothing, and break clauses at dashes.

    "Pneumothorax: small left" is a claim of its label; "Pneumothorax: the lungs are expanded",
    "Lines and tubes: none of it" and a bare "Effusion:" are not. A part of the body stays the
    subject where what follows names none. A dash ends a clause unless its end calls what is
    before it normal, large, or of a size or side.
    """
    marks = name_thickening(marks)
    left: list[Mark] = []
    start = 0  # of the clause in `left`
    for index, mark in enumerate(marks):
        if mark.cue is Cue.COLON:
            label, rest = left[start:], marks[index + 1 :]
            if label and all(item.cue is None or item.cue in _OF_LABELS for item in label):
                left[start:] = _label_left(label, rest)
        elif mark.cue is Cue.DASH:
            following = marks[index + 1].cue if index + 1 < len(marks) else None
            speaks = {item.cue for item in left[start:]} & _DECIDED
            is_region = bool(left[start:]) and all(
                item.region or item.cue in _OF_LABELS for item in left[start:]
            )
            if following is not Cue.OR and (speaks or not (is_region or following in _QUALITIES)):
                left.append(mark._replace(cue=Cue.BREAK))
                start = len(left)
        else:
            left.append(mark)
            if mark.cue is Cue.BREAK:
                start = len(left)
    return left


_DECIDED = {
    *(Cue.DENY, Cue.GONE, Cue.NOT, Cue.DENY_BEFORE, Cue.HEDGE, Cue.EXCLUDED, Cue.EXCLUDE),
    *(Cue.NORMAL, Cue.VERB),
}
_QUALITIES = {
    *(Cue.NORMAL, Cue.LARGE, Cue.NEAR_NORMAL, Cue.DEGREE, Cue.LEFT, Cue.RIGHT, Cue.BOTH),
    *(Cue.HEDGE_BEFORE, Cue.DENY_BEFORE, Cue.ASK_BEFORE, Cue.IF_ANY, Cue.HEDGE_EITHER),
}


_SIDES = {Cue.LEFT, Cue.RIGHT, Cue.BOTH}


def _label_left(label: Sequence[Mark], rest: Sequence[Mark]) -> list[Mark]:
    """Drop what a label before a colon does not claim."""
    ends = {Cue.BREAK, Cue.COLON, Cue.DASH}
    clause = list(takewhile(lambda mark: mark.cue not in ends, rest))
    speaking = [mark for mark in clause if mark.cue not in {Cue.COMMA, Cue.NEUTRAL, Cue.VERB}]
    first = speaking[0] if speaking else None
    own_region = any(mark.region for mark in clause)
    if any(mark.concept for mark in label) and any(mark.cue in _SIDES for mark in label):
        claims = True  # "opacity left base: consolidation"
    elif first is None:
        claims = False
    elif any(mark.concept == "Device" for mark in label) and first.region:
        claims = True  # "nasogastric tube: stomach"
    elif first.cue is Cue.DENY:
        claims = len(speaking) > 1 and speaking[1].cue is Cue.CHANGE
    else:
        claims = not (first.concept or first.region or first.cue in _SPEAKS)
    return [
        mark for mark in label if (claims or not mark.concept) and not (mark.region and own_region)
    ]
