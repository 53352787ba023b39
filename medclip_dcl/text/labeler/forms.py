"""Forms -> prose: "Pneumothorax: No" -> "Pneumothorax absent", check boxes, shorthand.

Reports that were clicked together answer rather than tell: a label, a mark, and yes or no. An
answer becomes a word that looks back, so that the rules of `negation` hold for forms as well.
"""

import re
from collections.abc import Sequence

from medclip_dcl.text.cleaning import EMPTY_BOX, TICKED_BOX, fold_unicode
from medclip_dcl.text.labeler.lexicon import ANSWERS, Cue
from medclip_dcl.text.labeler.phrases import Mark, is_size, name_thickening

_SEEN = ANSWERS["seen"]
_NO = rf"(?:(?:no|none|not(?: clearly| definitely)?) {_SEEN}|{ANSWERS['no']})"
_SHORT_NO = r"(?:0(?![.,]\d)|\u00d8|\u00f8|\u2205|n|-ve|[([]-[])]|-|\u2717|\u2718|x(?=\s*$))"
_SHORT_YES = r"(?:1(?![.,]\d)|y|\+ve|[([]\+[])]|\+{1,4}|\u2713|\u2714)"
_SEP = (
    r"(?:\s*(?:[:;=|?]|-+>|\.{2,}|[-\u2013\u2014]{1,2}(?=\s)|(?<=\s)[-\u2013\u2014]{1,2}(?=\w)"
    r"|\()[\s:=|]*(?:[-\u2013]\s+)?)"
)
_LABEL = r"(?=\s+(?:[A-Za-z][A-Za-z/-]*\s+){0,4}[A-Za-z/-]+\s*[:=|?](?!\d))"
_END = rf"\)?(?=\s*(?:$|[.,;|)(\]!])|\s+[-\u2013\u2014]{{1,2}}\s|{_LABEL})"
_ANSWER = re.compile(
    rf"{_SEP}(?:(?P<silent>{ANSWERS['silent']})|(?P<no>{_NO}|{_SHORT_NO})|(?P<yes>{ANSWERS['yes']}|{_SHORT_YES})"
    rf"|(?P<open>{ANSWERS['open']})){_END}",
    re.I,
)
_ASKED_OF = re.compile(r"(?:^|(?<=[\s(,-]))\?(?=[A-Za-z])")
_SLASHED_NO = re.compile(r"(?:^| / )no\b", re.I)
_BARE_ANSWER = re.compile(
    r"(?<=[a-z)])(?<!otherwise),?\s+(?:(?P<no>no|neg|negative|nil|[([]-[])]|-ve|\u00d8)|(?P<yes>yes|pos|positive|[([]\+[])]|\+ve|\+{1,4})"
    r"|(?<=,\s)(?P<n>n)|(?<=,\s)(?P<y>y)|(?P<open>,?\s*possible|questionable|suspected|equivocal|\(\?\)))\s*(?=$|[.,;/](?:\s|$))",
    re.I,
)
_WRITTEN = {
    "no": " absent ; ",
    "n": " absent ; ",
    "yes": " present ; ",
    "y": " present ; ",
    "open": " is possible ; ",
    "silent": " n / a ; ",
}
_BEFORE = re.compile(r"(?:^|(?<=[\s,;(]))(?:[\u00d8\u00f8\u2205]|\(-\)|-ve)\s*(?=[A-Za-z])")
_CHOSEN = re.compile(
    r"(?:yes|no|[yn])\s*/\s*[\[(<{*_]\s*(?P<first>yes|no|[yn])\s*[\])>}*_]"
    r"|[\[(<{*_]\s*(?P<second>yes|no|[yn])\s*[\])>}*_]\s*/\s*(?:yes|no|[yn])\b",
    re.I,
)
_PLUS = re.compile(
    r"(?<=[A-Za-z)])\+{1,4}(?=[\s.,;]|$)|(?<=\s)\+{1,4}(?=\s*(?:$|[.,;]|(?:left|right|[lr]|both|bilat\w*|r[uml]l|l[ul]l)\b))",
    re.I,
)
_MINUS = re.compile(r"(?:^|(?<=[,;])\s)(?P<label>\W*(?:[A-Za-z/]+\s+){1,4})[-\u2013]\s*(?=$|[.,;])")
_SIGNED = re.compile(r"(?:^|(?<=[\s,;(]))(?P<sign>[-+])(?=[A-Za-z])")
_WORD = r"\s*(?P<word>yes|no|absent|present|none|normal|abnormal|possible|y|n)\b"
_EMPTY_ANSWER = re.compile(rf"{EMPTY_BOX}{_WORD}", re.I)
_TICKED_ANSWER = re.compile(rf"[:=|?-]?\s*{TICKED_BOX}{_WORD}(?!\s+[a-z])", re.I)
_BOX = re.compile(rf"(?P<empty>{EMPTY_BOX})|{TICKED_BOX}")
_LINES = re.compile(
    r"^\W*lines?(?=\s*(?:[:=|,-]|(?:ok|okay|unchanged|stable|satisfactory|removed|none|nil|in|as|well)\b))",
    re.I,
)
_NOT_NORMAL = re.compile(
    r"^[^?:]*\b(?:clear|normal|unremarkable|intact|wnl)\s*[?:]\s*(?:no|n)\b[\s,.;:-]*", re.I
)
_ALTERNATIVES = re.compile(
    r"^(?!.*\b(?:no|not|without)\b).*\b(?:opaci|densit)\w+(?: [a-z]+){0,4} ?[,:\u2013\u2014-]+ "
    r"(?=(?:[a-z]+ ){0,3}(?:pneumonia|infection) or |(?:[a-z]+ ){1,3}or (?:[a-z]+ )?"
    r"(?:pneumonia|infection))",
    re.I,
)
"""What an opacity may be: "opacity at the base, atelectasis or pneumonia"."""
_NOT_THEN = re.compile(
    rf"\b(?:was|were) not (?:[a-z]+ly )?{_SEEN}"
    r"(?=[^.;,]{0,30}\b(?:ago|prior|previous\w*|earlier|before|last|(?:19|20)\d\d)\b)",
    re.I,
)
_CHOICE = re.compile(r"(?<=[:=?])\s*(?:[A-Za-z]{2,12}\s*/\s*){1,5}[A-Za-z]{2,12}\s*$")
_OFFERED = re.compile(
    r"(?:^|[\s:.([]+)(?:no|none|nil|absent|normal)(?:\s*/\s*[A-Za-z]{2,12}){1,5}\s*[)\]]?\s*[:=>]+(?=\s*\w)",
    re.I,
)
"""Choices that a form offers before its answer: "none / mild / severe: mild"."""
_LEGEND = re.compile(
    r"[\[(](?P<legend>\s*\d\s*=\s*[A-Za-z]+(?:[\s,;/|]+\d\s*=\s*[A-Za-z]+)+)\s*[\])]\s*[:=-]*\s*(?P<code>\d)\b"
)
_MOVED = re.compile(
    r"\b(?:withdrawn|pulled(?: back)?|retracted)(?= (?:slightly|(?:by |about |approximately )*\d))",
    re.I,
)
"""A device that is still there: "withdrawn 2 cm"."""
_MONTH = re.compile(r"(?<=\d )May\b|\bMay(?= \d)")
_CARDIOMEGALY = re.compile(
    r"(?<![\d.xX]\s)(?<![\d.])\bCM\b(?!\s+(?:above|below|from|in|x|to)\b)(?!\s*\.?\d)", re.I
)
_RATIO = re.compile(
    r"\b(?:CTR|cardio-?\s?thoracic (?:ratio|index))\b(?P<more>[^\d.%;]{0,20}?)"
    r"(?:(?P<percent>[3-9]\d)(?:\.\d+)?\s?%|0?\.(?P<share>[3-9]\d?)\b)",
    re.I,
)
_SELF_DENIED = re.compile(r"\s*(?:no|without|normal|clear|negative|absent|not)\b", re.I)
_HOLDS_MARK = re.compile(
    r"[:;=|?(\[+\u00d8\u00f8\u2205\u2610-\u2612\u25a1\u25fb]"
    r"|(?:^|\s)[-\u2013\u2014]|->|\.\.\.|-ve|CM\b|cm\b| / no\b"
    r"|\b(?:no|neg|negative|nil|yes|pos|positive|possible|questionable|suspected|equivocal|[yn]|none"
    r"|absent|present)\W*$",
    re.I,
)


def write_out(sentence: str) -> str:
    """Write a sentence out as prose: answers, check boxes, signs and letters become words."""
    text = fold_unicode(sentence)
    text = _MONTH.sub("", text) if "May" in text else text
    text = _RATIO.sub(_heart_size, text)
    text = _ALTERNATIVES.sub(r"\g<0>possible ", text)
    text = _NOT_THEN.sub("is new", text)
    text = _LINES.sub("line and tube", _MOVED.sub("moved", text))
    if not _HOLDS_MARK.search(text):
        return text
    label, mark, answer = text.partition("?")
    if mark and label.strip() and is_size(answer):
        text = f"{label}: {answer}"  # "Effusion? small"
    text = _NOT_NORMAL.sub("abnormal ; ", text)
    text = _ASKED_OF.sub(" possible ", text)
    if len(_SLASHED_NO.findall(text)) > 1:  # "no ptx / no edema / aicd": each a statement
        text = text.replace(" / ", " ; ")
    text = _OFFERED.sub(": ", text)
    text = _CHOICE.sub(_chosen_in_capitals, text)
    text = _LEGEND.sub(_by_legend, text)
    text = _CHOSEN.sub(lambda match: f": {match['first'] or match['second']} ; ", text)
    text = _PLUS.sub(" present ; ", text.replace("+/-", " possible "))
    head, bar, cells = text.partition("|")
    if len(_SIGNED.findall(text)) > 1:  # "-eff, +ptx"
        text = _SIGNED.sub(lambda match: "no " if match["sign"] == "-" else " ", text)
    text = f"{head}{bar}{cells.replace('|', ' ; ')}" if cells.count("|") else text
    text = _write_out_boxes(text)
    text = _MINUS.sub(r"\g<label> absent", _BEFORE.sub("no ", text))
    text = _ANSWER.sub(_as_word, text)
    text = _BARE_ANSWER.sub(_as_word, text)
    return _CARDIOMEGALY.sub("cardiomegaly", text) if "CM" in text else text


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
    if not _BOX.search(text):
        return text
    text = _EMPTY_ANSWER.sub(" ", text)
    text = _TICKED_ANSWER.sub(lambda match: f": {match['word']} ;", text)
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return text
    if boxes[0].start() > len(text) - len(text.lstrip()):  # boxes behind their labels
        return _BOX.sub(lambda match: " absent ; " if match["empty"] else " present ; ", text)
    written = []
    ends = [box.start() for box in boxes[1:]] + [len(text)]
    for box, end in zip(boxes, ends, strict=True):
        label = text[box.end() : end]
        if box["empty"] is None:
            written.append(label)
        elif not _SELF_DENIED.match(label):  # an empty "[ ] No effusion" says nothing
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
    Cue.DENY,
    Cue.GONE,
    Cue.NOT,
    Cue.DENY_BEFORE,
    Cue.HEDGE,
    Cue.EXCLUDED,
    Cue.EXCLUDE,
    Cue.NORMAL,
    Cue.VERB,
}
_QUALITIES = {
    *(Cue.NORMAL, Cue.LARGE, Cue.NEAR_NORMAL, Cue.DEGREE, Cue.LEFT, Cue.RIGHT, Cue.BOTH),
    *(Cue.HEDGE_BEFORE, Cue.DENY_BEFORE, Cue.ASK_BEFORE, Cue.IF_ANY, Cue.HEDGE_EITHER),
}


_SIDES = {Cue.LEFT, Cue.RIGHT, Cue.BOTH}


def _label_left(label: Sequence[Mark], rest: Sequence[Mark]) -> list[Mark]:
    """Drop what a label before a colon does not claim."""
    clause = list(rest)
    for index, mark in enumerate(rest):
        if mark.cue in {Cue.BREAK, Cue.COLON, Cue.DASH}:
            clause = list(rest[:index])
            break
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
