"""Text as it came -> plain text: mark-up is cut, Unicode brought to one form, lines stay lines.

Reports leave hospital systems as HTML, Markdown, RTF or HL7 escapes, and in every form of
Unicode. What is cut here is never text: tags, marks of emphasis, controls.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Set
from functools import partial

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff"
    "\x00-\x08\x0e-\x1f\x7f]"
)
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_BEFORE = str.maketrans({"\u2116": "#"})  # NUMERO SIGN would become the denial "No"
_AFTER = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63", "-")
    | {"\u2015": "\u2014", "\u2e3a": "\u2014", "\u2e3b": "\u2014"}
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
)


EMPTY_BOX = r"(?:\[[ \t]?\]|\([ \t]{1,2}\)|[\u2610\u25a1\u25fb])"
TICKED_BOX = r"(?:\[[ \t]?[xX*\u2713\u2714][ \t]?\]|\([xX\u2713]\)|[\u2611\u2612])"


def fold_unicode(text: str) -> str:
    """Fold compatibility forms, hyphens, quotes and line ends; cut what is invisible.

    Forms that differ in normalisation alone (NFC, NFD, NFKC, NFKD) become one; en and em dashes
    stay, since they part clauses where a hyphen does not.
    """
    if text.isascii() and text.isprintable():
        return text
    if text.isascii() and not _INVISIBLE.search(text) and not _LINE_END.search(text):
        return text
    text = _INVISIBLE.sub("", _LINE_END.sub("\n", text.translate(_BEFORE)))
    return unicodedata.normalize("NFKC", text).translate(_AFTER)


_HIDDEN = re.compile(
    r"<!--.{0,20000}?-->|<(style|script)\b[^<>]{0,500}>.{0,20000}?</\1\s{0,9}>", re.DOTALL | re.I
)
_TAG = re.compile(r"<[/!?]?([A-Za-z][\w:.-]{0,40})(?:\s[^<>]{0,2000})?/?>")
_INLINE = frozenset(
    "a abbr b bdi big cite code em font i img ins input label mark o:p q s small span strike "  # noqa: SIM905
    "strong sub sup tt u var".split()
)
_ALONE = frozenset({"br", "hr", "p", "li", "td", "th", "tr", "dt", "dd", "div", "meta", "link"})
_SECTION = re.compile(
    r"(?:clinical_?)?(?:findings?|impression|history|indication|technique|comparison|conclusion|"
    r"exam(?:ination)?|recommendations?|addendum|opinion|information)"
)
"""Names of tags that are headings, as in XML."""
_CLOSED = re.compile(r"</([A-Za-z][\w:.-]{0,40})")
_CELLS = {"td", "th"}
_TERMS, _DEFINITIONS = {"dt", "key", "label", "name", "term"}, {"dd", "value", "val"}
_ENTITY = re.compile(r"&(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,8}\d{0,2});")
_ESCAPE = re.compile(r"\\\.(br|sp|in|ti)[+-]?\d{0,3}\\|\\X0[AaDd](?:0[AaDd])?\\|_x000[aAdD]_")
_HL7 = re.compile(r"\\([FSTRHNE])\\")
_HL7_MARK = {"F": "|", "S": "^", "T": "&", "R": "~", "E": "\\"}
_WRITTEN_LINE_END = re.compile(r"(?:\\r)?\\n|\\r(?![a-z])")  # in two characters, as in some CSV
_MARKDOWN = re.compile(
    r"^[ \t]*#{1,6}[ \t]+|^[ \t]*>[ \t]|\*\*|~~[^~\n]{0,200}~~|`"
    r"|^[ \t]*\|[ \t]?|[ \t]*\|[ \t]*$"  # outer borders of a table
    r"|(?<=\?)[ \t]*\.{3,}"  # what leads from a question to its answer
    r"|^[ \t]*(?=[-=|:+*]{0,200}[-=|:+*]{3})[-=|:+* \t]+$",  # rules of a page or a table
    re.MULTILINE,
)
_FRACTURE = re.compile(
    r"(?:(?<=\S[ ])|(?<=[/,;(?]))#s?(?=(?<=s)\b|[ ]*(?:[.,;)/]|$)|[ ][A-Za-z])"
    r"|(?<=[^\sA-Za-z][ ])#(?=[ ]?:)"
    r"|#[ ]?(?=(?:[\w/,-]+\.?[ ]){0,5}(?:ribs?|clavicles?|scapulae?|sternum|humerus)\b)",
    re.IGNORECASE | re.MULTILINE,
)
"""The sign in the shorthand of British hospitals: "# R clavicle"."""
_TAB = re.compile(r"(?<=[\w)]) ?\t+(?=\S)")
_DECORATED = re.compile(
    r"^[ \t]*([-=*~_<>+#]{2,})[ \t]*([A-Za-z][^\n]{0,60}?)[ \t]*[-=*~_<>+#]{2,}[ \t]*$",
    re.MULTILINE,
)
"""A heading between rules: "--- Addendum ---"."""
_CIRCLES = re.compile(r"^(?=.*[\u25cf\u25c9\u29bf])(?=.*[\u25cb\u25ef]).*", re.MULTILINE)
"""A line of choices, of which the full circle is the one made."""
_CIRCLE = str.maketrans(
    dict.fromkeys("\u25cf\u25c9\u29bf", "(x)") | dict.fromkeys("\u25cb\u25ef", "( )")
)
_EMPHASIS = re.compile(r"(?<![\w*])\*(\w[^*\n]{0,60})(?<=[\w.:])\*(?!\w)")
_PUNCTUATED = re.compile(r"[.,;:|]")
_SPOKEN_COLON = re.compile(
    r"\b(findings|impression|conclusion|indication|technique|comparison|history|opinion) colon\b",
    re.IGNORECASE,
)
_SPOKEN = re.compile(r"[ \t]*\b(period|full stop|comma|new line|new paragraph)\b", re.IGNORECASE)
_SPOKEN_MARK = {"period": ".", "full": ".", "comma": ",", "new": "\n"}
_RTF_GROUP = re.compile(
    r"\{\\(?:fonttbl|colortbl|stylesheet|info|\*)[^{}]{0,9000}(?:\{[^{}]{0,9000}\}[^{}]{0,9000}){0,99}\}"
)
_RTF_WORD = re.compile(
    r"\\'([0-9a-fA-F]{2})|\\u(-?\d{1,5}) ?\??|\\([a-zA-Z]{1,32})-?\d{0,9} ?|[{}]"
)
_RTF_LINES = {"par", "line", "row", "sect", "page"}


def clean_text(text: str) -> str:
    """Cut the mark-up out of a text and fold its Unicode; lines stay lines.

    Cells of a table are parted by `|`, items of a list begin with `-`.
    """
    if text.lstrip().startswith("{\\rtf"):
        text = _RTF_WORD.sub(_plain_rtf, _RTF_GROUP.sub("", text))
    if "\\" in text or "_x000" in text:
        text = _ESCAPE.sub("\n", text)
        text = _HL7.sub(lambda match: _HL7_MARK.get(match.group(1), ""), text)
        text = _WRITTEN_LINE_END.sub("\n", text).replace("\\t", "\t")
    for _ in range(2):  # mark-up may itself be escaped: "&lt;br&gt;"
        if "<" in text:
            text = _HIDDEN.sub("", text)
            closed = {name.lower() for name in _CLOSED.findall(text)}
            text = _TAG.sub(partial(_plain_tag, closed=closed), text)
        if "&" in text:
            text = _ENTITY.sub(lambda match: html.unescape(match.group()), text)
    text = _ODD_BOX.sub(r"[\1]", fold_unicode(text))
    if not text.isascii():
        text = _CIRCLES.sub(lambda match: match.group().translate(_CIRCLE), text)
    if "#" in text:
        text = _FRACTURE.sub("fracture ", text)
    text = _TAB.sub(" | ", text)
    text = _MARKDOWN.sub("", _DECORATED.sub(r"\n\2", text))
    text = _EMPHASIS.sub(r"\1", text) if text.count("*") > 1 else text
    if not _PUNCTUATED.search(text):
        text = _SPOKEN_COLON.sub(r"\1:", text)
        text = _SPOKEN.sub(lambda match: _SPOKEN_MARK[match[1].lower().split()[0]], text)
    return "\n".join(_fill_ticks(text.split("\n"))) if _COLUMNS.search(text) else text


def _fill_ticks(lines: list[str]) -> Iterator[str]:
    """Replace ticks in columns headed yes and no by the heads: "Effusion | | x".

    Columns may be parted by blanks alone; then a tick stands below its head.

    What stands in a column headed right or left is of that side.
    """
    heads: list[str] = []
    places: dict[int, str] = {}  # where a head of columns parted by blanks has its middle
    for line in lines:
        named = [word for word in _BLANK_HEAD.finditer(line) if word[1].lower() in _HEADS]
        places = {(word.start(1) + word.end(1)) // 2: word[1] for word in named} or places
        if places and (tick := _BLANK_TICK.fullmatch(line)):
            at = min(places, key=lambda place: abs(place - tick.start(2)))
            line = f"{tick[1]} | {places[at]}"
        cells = [cell.strip() for cell in re.split(r"[|\t]", line)]
        if sum(cell.lower() in _HEADS for cell in cells) > 1:
            heads = cells
            if {head.lower() for head in heads} >= _SIDES:
                continue  # its sides go to the cells below
        elif {head.lower() for head in heads} >= _SIDES and all(cells[:3]) and len(cells) > 2:
            sides = (f"{head} " if head.lower() in _SIDES else "" for head in heads[1:])
            sided = (
                side + cell if cell and not _ANSWER.fullmatch(cell) else cell
                for side, cell in zip(sides, cells[1:], strict=False)
            )
            line = " | ".join([cells[0], *sided])
        ticked = [
            at for at, cell in enumerate(cells) if cell.lower() in _TICKS and 0 < at < len(heads)
        ]
        if len(ticked) == 1 and cells[0] and heads[ticked[0]].lower() in _HEADS:
            line = f"{cells[0]} | {heads[ticked[0]]}"
        elif heads and len(cells) == 1 and line.strip():
            heads = []
        yield line


_SIDES = {"right", "left"}
_ANSWER = re.compile(r"yes|no|none|nil|absent|present|[yn]", re.IGNORECASE)
_ODD_BOX = re.compile(r"[<{][ ]?([xX ])[ ]?[>}]")
_HEADS = {*_SIDES, "yes", "no", "present", "absent", "positive", "negative", "possible"}
_TICKS = {"x", "[x]", "(x)", "\u2713", "\u2714", "\u2611", "\u2612", "*"}
_BLANK_HEAD = re.compile(r"(?<=[ ]{2})([A-Za-z]+)(?=[ ]{2}|[ ]*$)")
_BLANK_TICK = re.compile(r"[ ]*([A-Za-z][A-Za-z /()-]{2,40}?)[ ]{2,}([xX*\u2713\u2714]|\[x\])[ ]*")
_COLUMNS = re.compile(
    r"(?:[|\t]|[ ]{2})[ ]*(?:yes|no|present|absent|right|left)\b[ ]*(?=[|\t]|$|[ ]{2})",
    re.IGNORECASE | re.MULTILINE,
)


def _plain_tag(match: re.Match[str], closed: Set[str]) -> str:
    """Write a tag out; what is in brackets and no tag stays: "effusion <small>"."""
    name, closes = match.group(1).lower(), match.group().startswith("</")
    if not (name in closed or name in _INLINE or name in _ALONE or match.group()[1] in "!?"):
        return match.group()
    if name in _INLINE:
        return ""
    if _SECTION.fullmatch(name):
        return "\n" if closes else f"\n{name}: "
    if name in _CELLS:
        return " | " if closes or name not in closed else ""
    if name in _TERMS | _DEFINITIONS:
        is_term = name in _TERMS
        return ": " if closes and is_term else "\n" if closes or is_term else ""
    return "\n- " if name == "li" and not closes else "\n"


def _plain_rtf(match: re.Match[str]) -> str:
    byte, point, word = match.groups()
    if byte:
        return bytes.fromhex(byte).decode("cp1252", "replace")
    if point:
        return chr(int(point) % 0x10000)
    if word == "cell":
        return " | "
    return "\n" if word in _RTF_LINES else "\t" if word == "tab" else ""
