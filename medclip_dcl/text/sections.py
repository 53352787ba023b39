"""Report of any layout -> findings and impression, and what is left out of it."""

import re
from collections.abc import Iterable, Iterator, Sequence, Set

from medclip_dcl.text.boundaries import LIST_HEAD, end_of_first_line, find_sentences
from medclip_dcl.text.cleaning import Patterns, clean_text
from medclip_dcl.text.labeler.labels import read_claims
from medclip_dcl.text.labeler.lexicon import WORDS, Cue
from medclip_dcl.text.labeler.phrases import find_marks, words
from medclip_dcl.text.mimic_sections import NAMES, TREE, VIEW, Part, Sections

_RE = Patterns("sections", WORDS)


def _plain_name(heading: str) -> str:
    return " ".join(word for word in words(_RE.in_brackets.sub("", heading)) if word.isalnum())


_USUAL: dict[str, str] = {
    _plain_name(spelling): name
    for name, spellings in TREE["usual"].items()
    for spelling in spellings.split(";")
}
_USUAL |= {
    _plain_name(spelling): name
    for spelling, name in NAMES.items()
    if name in TREE["usual"] and _plain_name(spelling) not in _USUAL
}
USUAL_NAMES = frozenset({*_USUAL.values(), *NAMES.values(), "preamble"})
"""Names of sections that reports have as a rule; any other is left out for want of a name."""
_WEAK = frozenset(_plain_name(name) for name in TREE["weak"].split(";"))
_LATER = frozenset(
    {"comment", "discussion", "other finding", "additional finding", "incidental finding"}
)
"""Headings that only follow what they comment on."""
_STRONG = frozenset(_plain_name(name) for name in TREE["strong"].split(";"))
_TELLING = [
    (name, frozenset(_plain_name(word) for word in listed.split(";")))
    for name, listed in TREE["telling"].items()
]
_OF_IMAGE = {"findings": "findings", "impression": "impression", "addendum": "impression"}
"""Usual name -> the section that its text is read into; what has other names is left out."""
ELSEWHERE = "other part of the body"
_BEFORE_IMAGE = {"history", "technique", "comparison"}
_BRIEF = {"technique", "comparison", "examination"}
"""Sections of a line or two: a paragraph behind them is not theirs."""
_LEFT_OUT = {*_BEFORE_IMAGE, "indication", "examination", "recommendation", ELSEWHERE}
"""Sections that may speak of findings, and not of the image's."""
_MOST_WORDS = 5


def read_loose_sections(text: str, _study_id: str = "") -> Sections:
    """Find findings and impression of a report of any layout, or what stands in for both.

    Sections of one name are joined; addenda and corrections join the impression. The id is not
    used: both readers are called alike.
    """
    parts = cut_report(text)
    joined = {
        section: "\n\n".join(
            part.body.strip() for part in parts if part.section == section and part.body.strip()
        )
        for section in Sections._fields
    }
    return Sections(**joined)


def cut_report(text: str) -> list[Part]:
    """Cut a report, without its mark-up, into parts; headings and texts make up all of it.

    A heading is a usual name, in any case, at a line's start or behind a stop, with a colon, a dash
    or alone on its line. Behind findings or impression any other heading is a sub-heading and stays
    inside; elsewhere one that names a part of the body begins the findings.

    Where there are no findings, what precedes the first heading, or follows the paragraph of
    another section, stands in, if it speaks of a finding. A report without a usual heading stands
    in as a whole. A sentence that a correction takes back is left out, as the part `withdrawn`.
    """
    text = clean_text(text)
    parts = _parts(text)
    if not any(part.heading and part.name in USUAL_NAMES for part in parts):
        if all(part.name != ELSEWHERE for part in parts):
            return [Part("", "", text, "last_paragraph")]
        return [
            part if part.name == ELSEWHERE else part._replace(section="last_paragraph")
            for part in parts
        ]
    parts = [
        part._replace(section="findings")
        if part.name and part.name not in _LEFT_OUT and not part.section and read_claims(part.body)
        else part
        for part in parts
    ]
    later = next((part for part in parts if part.section), parts[0])
    if not parts[0].name:
        claims = read_claims(parts[0].body)
        if claims.negated or (claims and _plain_name(later.heading) in _LATER):
            parts[0] = parts[0]._replace(section="findings")
    for section in ("findings", ""):
        if not _has(section, parts):
            rest = (_with_rest(part, is_alone=not section) for part in parts)
            parts = [piece for pieces in rest for piece in pieces]
    return _without_withdrawn(parts)


def _has(section: str, parts: Iterable[Part]) -> bool:
    """Whether a section, or with "" any, has text."""
    return any(
        part.section
        and section in {"", part.section}
        and any(letter.isalpha() for letter in part.body)
        for part in parts
    )


def _parts(text: str) -> list[Part]:
    sections = [("", 0, 0)]  # name, and where heading and body begin
    for start, end, name in _headings(text):
        sections.append((name, start, end))
    ends = [start for _, start, _ in sections[1:]] + [len(text)]
    return [
        Part(name, text[start:body], text[body:end], _OF_IMAGE.get(name, ""))
        for (name, start, body), end in zip(sections, ends, strict=True)
    ]


def _headings(text: str) -> Iterator[tuple[int, int, str]]:
    """Find start, end and name of every heading that begins a section."""
    if not _RE.unpunctuated.search(text):
        for match in _RE.bare.finditer(text):
            name = match.group().strip()
            yield match.end() - len(name), match.end(), _USUAL[_plain_name(name)]
        return
    current, offset, begins_list, elsewhere = "", 0, False, False
    given: set[str] = set()
    previous = ""  # the line before
    for line in text.split("\n"):
        headings = [*_line_heading(line, previous, current)]
        if not headings and begins_list and _RE.bullet.match(line) and _speaks(line):
            headings = [(0, 0, "findings")]  # "INDICATION: fall" and, below it, the findings
        headings += _inner_headings(line, headings[-1][1] if headings else 0)
        elsewhere = _is_elsewhere(line, elsewhere)
        if not headings and elsewhere != (current == ELSEWHERE):
            headings = [(0, 0, ELSEWHERE if elsewhere else "findings")]
        for start, end, name in headings:
            # an impression that is the first of all is about the chest as well
            is_common = name == "impression" and "impression" not in given
            current = name if is_common or not elsewhere else ELSEWHERE
            given.add(name)
            yield offset + start, offset + end, current
        begins_list = current not in _OF_IMAGE and bool(
            headings and line[headings[-1][1] :].strip(" \t:") and not line.rstrip().endswith(":")
        )
        previous = line
        offset += len(line) + 1


def _is_elsewhere(line: str, before: bool) -> bool:
    """Whether what follows is about another part of the body than the chest."""
    label = _RE.labelled.match(line)
    if label and _RE.limb.search(label["label"]) and not _RE.chest.search(label["label"]):
        return True
    if label and before and find_marks(label["label"]):
        return not _names_chest(label["label"]) or bool(_RE.other_part.search(label["label"]))
    head, stop, _ = line.partition(". ")
    if label and _RE.title.match(label["label"]):  # "X-ray paranasal sinuses: haziness"
        head = line = label["label"]
        stop = ""
    exam = _RE.exam.match(head)
    is_title = exam or (not stop and not line.rstrip().endswith(".") and _RE.title.match(head))
    if not is_title:
        return before
    return not _RE.chest.search(head) and (before or bool(_RE.other_part.search(head)))


def _names_chest(label: str) -> bool:
    return bool(_RE.chest.search(label)) or any(
        mark.region != "other" for mark in find_marks(label) if mark.region
    )


def _line_heading(line: str, previous: str, current: str) -> Iterator[tuple[int, int, str]]:
    match = _RE.line_head.match(line)
    if match is None or LIST_HEAD.fullmatch(line):
        return
    head, mark = match["head"].strip(), match["end"].strip(" \t*_")
    plain = _plain_name(head)
    start, end = 0, match.end()
    if current in _OF_IMAGE and plain in _WEAK:
        return
    if mark not in {":", "|"}:
        is_line = not mark
        follows_text = bool(previous.strip()) and not previous.rstrip().endswith((".", ":", "?"))
        name = _USUAL.get(plain, "")
        is_short = not (head.isupper() and VIEW.search(plain)) and len(head.split()) < _MOST_WORDS
        if _is_title(head) and (not previous.strip() and is_short if is_line else not name):
            # "Critical Findings", alone behind a blank line, or "Referrer's Question - "
            name = name or usual_name(head)
            is_chest = {mark.region or mark.concept for mark in find_marks(head)} == {"chest"}
            if not name and current and current not in _OF_IMAGE and is_chest:
                name = "findings"  # "Chest Radiograph", behind the history
        is_own = plain not in _WEAK if not is_line else not (follows_text and head.islower())
        if name and is_own:
            yield start, end, name
        return
    inside = current in _OF_IMAGE
    if name := usual_name(head, inside=inside):
        yield start, end, name
    elif not current or current in _OF_IMAGE:
        return
    elif named := [item for item in find_marks(head) if item.region or item.concept]:
        if all(item.region == "chest" for item in named) and current != "examination":
            return  # "radiograph of last week: effusion"
        is_apart = current not in {"history", "indication"} or not previous.strip()
        if is_apart or head.isupper() or any(item.region for item in named):
            yield start, start, "findings"  # its label is part of the text: "Pneumothorax: no"
    elif _is_title(head) and len(head) > 2:
        yield start, end, plain


def _is_title(head: str) -> bool:
    return all(word[0].isupper() or len(word) < 4 for word in head.split())


def _inner_headings(line: str, begin: int) -> Iterator[tuple[int, int, str]]:
    """Find usual names behind a stop in a line."""
    headings: list[tuple[int, int, str]] = []
    last = begin
    for match in _RE.separator.finditer(line, begin):
        shift = max(last, match.start() - 60)
        before = list(re.finditer(r"[^\s.;?!]+", line[shift : match.start()]))
        for token in before[-_MOST_WORDS:]:
            start = shift + token.start()
            name = line[start : match.start()]
            plain = _plain_name(name)
            stop = line[:start].rstrip()[-1:]
            if start == 0 or plain not in _USUAL or not stop or plain in _WEAK:
                continue
            behind_stop = stop in ".?!;"
            if behind_stop or (match["mark"][0] in ":|" and name.lstrip("*_")[:1].isupper()):
                headings.append((start, match.end(), _USUAL[plain]))
                last = match.end()
                break
    return iter(headings)


def usual_name(heading: str, *, inside: bool = False) -> str:
    """Bring a heading to its usual name; empty where it has none.

    One that names several parts has the name of what is about the image, the impression first.
    Else its words tell; inside of findings or impression no word ends what is about the image.
    """
    plain = _plain_name(heading)
    if plain in _USUAL:
        return _USUAL[plain]
    parts = [_plain_name(part) for part in re.split(r"[/,&+]|\band\b", heading, flags=re.I)]
    named = [_USUAL[part] for part in parts if part in _USUAL]
    if named and len(named) == len(parts):
        return next((name for name in ("impression", "findings") if name in named), named[0])
    listed = plain.split()
    if len(listed) <= _MOST_WORDS:
        if listed[:1] == ["clinical"] and listed[1:] != ["correlation"]:
            return "" if inside else "history"  # "Clinical Impression": the referrer's
        for word in (*listed[-1:], *listed[:1]):
            if word in _STRONG:
                return _USUAL[word]
        if (heading.isupper() or "view" in plain) and VIEW.search(plain) and "pain" not in plain:
            return "findings"
        telling = not any(word.isdigit() for word in listed)
        if telling and not any(
            mark.concept or mark.region not in {"", "chest"} for mark in find_marks(heading)
        ):
            name = next((name for name, telling in _TELLING if telling & {*listed}), "")
            return "" if inside and name in _BEFORE_IMAGE else name
    return ""


def _speaks(text: str) -> bool:
    """Whether a text speaks of a finding, or calls anything normal or not."""
    return any(mark.concept or mark.cue in _SPEAKING for mark in find_marks(text))


_SPEAKING = {Cue.NORMAL, Cue.LARGE, Cue.ABNORMALITY}


def _with_rest(part: Part, *, is_alone: bool) -> list[Part]:
    """Read as findings what stands behind no heading of its own, where there are no findings.

    Behind the first line, or sentence, of a section that has one as a rule; of any section where
    there `is_alone` nothing about the image.
    """
    body = part.body
    if part.section or not _speaks(body):
        return [part]
    if not part.name:
        return [part._replace(section="findings")]
    if not (is_alone or part.name in _BRIEF):
        return [part]
    start = end_of_first_line(body)
    if start == len(body) or not _speaks(body[start:]):
        ends = [end for _, end, _ in find_sentences(body)]
        is_brief = part.name in {*_BRIEF, "indication"}
        start = ends[0] if len(ends) > 2 - is_brief else len(body)
    if not _speaks(body[start:]):
        return [part]
    return [part._replace(body=body[:start]), Part("", "", body[start:], "findings")]


def _contradicted(body: str, denied: Set[str]) -> Iterator[tuple[int, int]]:
    """Find sentences that state nothing but what is denied, and such ends of others."""
    for start, end, sentence in find_sentences(body):
        claims = read_claims(sentence)
        stated = claims.asserted.keys() | claims.uncertain
        if stated and stated <= denied:
            yield start, end
        elif stated & denied and (tail := _RE.concludes.search(body, start, end)):
            claims = read_claims(tail.group())
            if set() < claims.asserted.keys() | claims.uncertain <= denied:
                yield tail.start(), end


def _without_withdrawn(parts: Sequence[Part]) -> list[Part]:
    """Leave out what corrections quote as wrong, and sentences that assert what they deny.

    A correction may stand below the report or above it; the last one itself stands.
    """
    last = max((at for at, part in enumerate(parts) if part.name == "addendum"), default=-1)
    corrections = " ".join(part.body for part in parts if part.name == "addendum")
    denied = read_claims(_RE.replaced.sub("", corrections)).negated
    left: list[Part] = []
    for at, part in enumerate(parts):
        spans = [match.span() for match in _RE.replaced.finditer(part.body)] if last >= 0 else []
        if denied and part.section and at != last:
            spans += _contradicted(part.body, denied)
        start = 0
        for first, end in sorted(spans):
            if first >= start:
                left.append(part._replace(body=part.body[start:first]))
                left.append(Part("withdrawn", "", part.body[first:end], ""))
                part, start = part._replace(heading=""), end
        left.append(part._replace(body=part.body[start:]))
    return left
