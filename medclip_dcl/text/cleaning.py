"""Text as it came -> plain text: mark-up is cut, Unicode brought to one form, lines stay lines.

Reports leave hospital systems as HTML, Markdown, RTF or HL7 escapes, and in every form of
Unicode. What is cut here is never text: tags, marks of emphasis, controls.
"""

import html
import re
import unicodedata
from collections.abc import Iterator, Mapping, Set
from functools import partial
from pathlib import Path

import yaml


class Patterns:
    """Regular expressions of one module, by name; they are data, in `patterns.yaml`.

    Those with a replacement are what `rewrite` replaces, in their order.
    """

    tree: Mapping[str, Mapping[str, str]] = yaml.safe_load(
        Path(__file__).with_name("patterns.yaml").read_text(encoding="utf-8")
    )

    def __init__(self, module: str, words: Mapping[str, str] | None = None) -> None:
        self._words, self._rewrites = words or {}, []
        for name, text in self.tree[module].items():
            find, *write = [text] if isinstance(text, str) else text
            setattr(self, name, re.compile(self._filled(find, module)))
            self._rewrites += [(getattr(self, name), *write)] if write else []

    def rewrite(self, text: str) -> str:
        """Replace what the patterns with a replacement match."""
        for pattern, write in self._rewrites:
            text = pattern.sub(write, text)
        return text

    def _filled(self, text: str, module: str) -> str:
        def named(match: re.Match[str]) -> str:
            other, _, name = match[1].rpartition(".")
            if match[1] in self._words:
                return self._words[match[1]]
            return self._filled(self.tree[other or module][name], other or module)

        return re.sub(r"@([\w.]+)@", named, text.replace("\n", ""))

    def __getattr__(self, name: str) -> re.Pattern[str]:
        raise AttributeError(name)


_RE = Patterns("cleaning")

_BEFORE = str.maketrans({"\u2116": "#"})  # NUMERO SIGN would become the denial "No"
_AFTER = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63", "-")
    | {"\u2015": "\u2014", "\u2e3a": "\u2014", "\u2e3b": "\u2014"}
    | dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u02bc\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"')
)


def fold_unicode(text: str) -> str:
    """Fold compatibility forms, hyphens, quotes and line ends; cut what is invisible.

    Forms that differ in normalisation alone (NFC, NFD, NFKC, NFKD) become one; en and em dashes
    stay, since they part clauses where a hyphen does not.
    """
    if text.isascii() and text.isprintable():
        return text
    if text.isascii() and not _RE.invisible.search(text) and not _RE.line_end.search(text):
        return text
    text = _RE.invisible.sub("", _RE.line_end.sub("\n", text.translate(_BEFORE)))
    return unicodedata.normalize("NFKC", text).translate(_AFTER)


_INLINE = frozenset(
    "a abbr b bdi big cite code em font i img ins input label mark o:p q s small span strike "  # noqa: SIM905
    "strong sub sup tt u var".split()
)
_ALONE = frozenset({"br", "hr", "p", "li", "td", "th", "tr", "dt", "dd", "div", "meta", "link"})
_CELLS = {"td", "th"}
_TERMS, _DEFINITIONS = {"dt", "key", "label", "name", "term"}, {"dd", "value", "val"}
_HL7_MARK = {"F": "|", "S": "^", "T": "&", "R": "~", "E": "\\"}
_CIRCLE = str.maketrans(
    dict.fromkeys("\u25cf\u25c9\u29bf", "(x)") | dict.fromkeys("\u25cb\u25ef", "( )")
)
_SPOKEN_MARK = {"period": ".", "full": ".", "comma": ",", "new": "\n"}
_RTF_LINES = {"par", "line", "row", "sect", "page"}


def clean_text(text: str) -> str:
    """Cut the mark-up out of a text and fold its Unicode; lines stay lines.

    Cells of a table are parted by `|`, items of a list begin with `-`.
    """
    if text.lstrip().startswith("{\\rtf"):
        text = _RE.rtf_word.sub(_plain_rtf, _RE.rtf_group.sub("", text))
    if "\\" in text or "_x000" in text:
        text = _RE.escape.sub("\n", text)
        text = _RE.hl7.sub(lambda match: _HL7_MARK.get(match.group(1), ""), text)
        text = _RE.written_line_end.sub("\n", text).replace("\\t", "\t")
    for _ in range(2):  # mark-up may itself be escaped: "&lt;br&gt;"
        if "<" in text:
            text = _RE.hidden.sub("", text)
            closed = {name.lower() for name in _RE.closed.findall(text)}
            text = _RE.tag.sub(partial(_plain_tag, closed=closed), text)
        if "&" in text:
            text = _RE.entity.sub(lambda match: html.unescape(match.group()), text)
    text = _RE.odd_box.sub(r"[\1]", fold_unicode(text))
    if not text.isascii():
        text = _RE.circles.sub(lambda match: match.group().translate(_CIRCLE), text)
    if "#" in text:
        text = _RE.fracture.sub("fracture ", text)
    text = _RE.cells.sub(lambda match: match.group().replace(";", " | "), text)
    text = _RE.rewrite(text)
    text = _RE.emphasis.sub(r"\1", text) if text.count("*") > 1 else text
    if not _RE.punctuated.search(text):
        text = _RE.spoken_colon.sub(r"\1:", text)
        text = _RE.spoken.sub(lambda match: _SPOKEN_MARK[match[1].lower().split()[0]], text)
    return "\n".join(_fill_ticks(text.split("\n"))) if _RE.columns.search(text) else text


def _fill_ticks(lines: list[str]) -> Iterator[str]:
    """Replace ticks in columns headed yes and no by the heads: "Effusion | | x".

    Columns may be parted by blanks alone; then a tick stands below its head.

    What stands in a column headed right or left is of that side.
    """
    heads: list[str] = []
    asides: set[int] = set()
    places: dict[int, str] = {}  # where a head of columns parted by blanks has its middle
    for line in lines:
        named = [word for word in _RE.blank_head.finditer(line) if word[1].lower() in _HEADS]
        places = {(word.start(1) + word.end(1)) // 2: word[1] for word in named} or places
        if places and (tick := _RE.blank_tick.fullmatch(line)):
            at = min(places, key=lambda place: abs(place - tick.start(2)))
            line = f"{tick[1]} | {places[at]}"
        cells = [cell.strip() for cell in re.split(r"[|\t]", line)]
        asides = {at for at, cell in enumerate(cells) if _RE.aside.fullmatch(cell)} or asides
        if len(cells) > max(asides, default=len(cells)):
            line = " | ".join(cell for at, cell in enumerate(cells) if at not in asides)
        if sum(cell.lower() in _HEADS for cell in cells) > 1:
            heads = cells
            if {head.lower() for head in heads} >= _SIDES:
                continue  # its sides go to the cells below
        elif {head.lower() for head in heads} >= _SIDES and all(cells[:3]) and len(cells) > 2:
            sides = (f"{head} " if head.lower() in _SIDES else "" for head in heads[1:])
            sided = (
                side + cell if cell and not _RE.answer.fullmatch(cell) else cell
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
_HEADS = {*_SIDES, "yes", "no", "present", "absent", "positive", "negative", "possible"}
_TICKS = {"x", "[x]", "(x)", "\u2713", "\u2714", "\u2611", "\u2612", "*"}


def _plain_tag(match: re.Match[str], closed: Set[str]) -> str:
    """Write a tag out; what is in brackets and no tag stays: "effusion <small>"."""
    name, closes = match.group(1).lower(), match.group().startswith("</")
    if not (name in closed or name in _INLINE or name in _ALONE or match.group()[1] in "!?"):
        return match.group()
    if name in _INLINE:
        return ""
    if _RE.section.fullmatch(name):
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
