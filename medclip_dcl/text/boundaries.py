"""Where the sentences of a report begin and end: lines, items of lists, full stops.

Reports are prose that was wrapped, lists with bullets or numbers, tables, and lines without any
stop. A line begins a sentence where the line before it was not wrapped: it has a bullet or a
label, or its first word would still have fitted on the line before. Inside a line a stop ends a
sentence unless an abbreviation explains it; the next number or bullet of a list does, too.

Every rule looks at a bounded stretch of text, so the time grows with its length alone.
"""

import re
from collections.abc import Iterator, Sequence

from medclip_dcl.text.cleaning import Patterns, clean_text
from medclip_dcl.text.labeler.lexicon import WORDS
from medclip_dcl.text.labeler.phrases import is_size, is_term, lacks_part, names_parts_alone

_RE = Patterns("boundaries", WORDS)
LIST_HEAD = _RE.list_head
_LEAST_WIDTH, _MOST_WIDTH = 60, 100
"""Columns: hardly any report is wrapped narrower, and a longer line was not wrapped at all."""


def cut_sentences(text: str) -> list[str]:
    """Cut a text into its sentences, whitespace collapsed, each with its bullet or number.

    Nothing is lost but mark-up, whitespace, and heads of lists ("Absent:"), which go to the items.
    """
    if _RE.sentence.fullmatch(text):
        return [" ".join(text.split())]
    return [
        sentence
        for block in _join_lines(_carry_heads(clean_text(text).split("\n")))
        for item in _cut_items(block)
        for sentence in _cut_at_stops(item)
    ]


def find_sentences(text: str) -> Iterator[tuple[int, int, str]]:
    """Find start, end and text of each sentence of a text without mark-up.

    A sentence whose word was parted at the end of a line is not found.
    """
    start = 0
    for sentence in cut_sentences(text):
        pattern = r"\s+".join(map(re.escape, sentence.split()))
        match = re.compile(pattern).search(text, start)
        if match is not None:
            yield match.start(), match.end(), sentence
            start = match.end()


def without_number(sentence: str) -> str:
    """Cut off the bullet or number of an item: "2. No effusion." gives "No effusion."."""
    return _RE.marks.sub("", sentence, count=1)


def end_of_first_line(text: str) -> int:
    """Find where the first line with text ends, and the lines that it was wrapped into."""
    width, is_lower = _layout(text.split("\n"))
    end, previous = 0, ""
    for line in text.splitlines(keepends=True):
        if previous and (not line.strip() or _begins(previous, line, width, is_lower)):
            break
        end += len(line)
        previous = line.strip() or previous
    return end


def _layout(lines: Sequence[str]) -> tuple[int, bool]:
    """The width that lines were wrapped to, and whether nothing but lines parts the sentences."""
    width = min(max(_LEAST_WIDTH, *map(len, lines)), _MOST_WIDTH)
    return width, not any(re.search(r"^\s*[A-Z]|[.?!](?:\s|$)", line) for line in lines)


def _carry_heads(lines: Sequence[str]) -> list[str]:
    """Say of each item what the head of its list says: "Absent:", or "Heart", then "- effusion"."""
    carried, head, part = [], "", ""
    for line in lines:
        list_head = _RE.list_head.fullmatch(line)
        marks = _RE.marks.match(line)
        if head and not marks and names_parts_alone(line.strip(), findings=True):
            marks = re.match(r"\s*", line)  # an item without a bullet
        line = _RE.answer_beside.sub("? ", line)
        stripped = without_number(line).strip(" :")
        if names_parts_alone(stripped, findings=not marks):
            part = stripped
        elif part and _RE.of_side.match(stripped):
            line = f"{marks.group() if marks else ''}{part} {stripped}"
        elif part and marks and lacks_part(stripped):  # "- Not enlarged"
            line = f"{marks.group()}{part}: {stripped}"
        elif not marks:
            part = ""
        if list_head or (line.strip() and not marks):
            head = list_head.lastgroup or "" if list_head else ""
        if head in {"no", "possible"} and marks and not line.lower().startswith("no ", marks.end()):
            line = f"{marks.group()}{head} {line[marks.end() :]}"
        carried.append("" if list_head else line)
    return carried


def _join_lines(lines: Sequence[str]) -> Iterator[str]:
    """Join the lines that were wrapped; the others begin a block."""
    width, is_lower = _layout(lines)
    block: list[str] = []
    previous = ""
    for line in lines:
        words = line.split()
        if block and (not words or _begins(previous, line, width, is_lower)):
            yield " ".join(block)
            block = []
        if block and block[-1].endswith("-") and is_term(block[-1][:-1] + words[0].rstrip(".,;:")):
            words[0] = block.pop()[:-1] + words[0]  # "effu-" and "sion"
        if block and block[-1].endswith("?"):
            words = _RE.marks.sub("", line).split()  # "Q1. Effusion?" and "A1. None."
        block += words
        previous = line.strip()
    yield " ".join(block)


def _begins(previous: str, line: str, width: int, is_lower: bool) -> bool:
    """Whether a line begins a sentence, though no blank line parts it from the previous."""
    answers = _RE.answer.match(_RE.marks.sub("", line).lstrip())
    if answers and (previous.endswith("?") or names_parts_alone(previous, findings=True)):
        return False  # "Effusion" or "Effusion?", and on a line of its own "None."
    if names_parts_alone(previous) and not _RE.label.match(line):
        return False  # "Heart" and, on a line of its own, "Enlarged"
    in_form = ("|" in previous and "|" in line) or "\t" in previous
    if _RE.marked.match(line) or in_form:
        return True
    if previous.endswith((".", "?", "!")):
        return not _RE.never_last.search(previous[:-1][-10:])
    stripped = line.lstrip()
    if _RE.answered.search(previous[-60:]) or (_RE.label.match(previous) and _RE.label.match(line)):
        return True  # "an effusion? - yes (left)"
    is_item = _RE.label.match(previous) or _RE.marked.match(previous)
    if is_item and line[:1].isupper() and names_parts_alone(stripped, findings=True):
        return True  # "- Left: small" and, on the next line, "Effusion"
    if _RE.dangling.search(previous[-40:]) or _RE.continues.match(stripped):
        return False
    if _RE.label.match(line):
        return True
    fits = len(previous) + 1 + len(stripped.split(None, 1)[0]) <= width
    return fits and (is_lower or not stripped[0].islower())


def _cut_items(block: str) -> Iterator[str]:
    """Cut a line that holds several items of a list."""
    next_item = _RE.next_box if _RE.box_first.match(block) else _RE.next_dot
    cuts = [match.end() for match in next_item.finditer(block)]
    cuts += _labels_in_row(block)
    if _RE.spoken_list.fullmatch(block):
        cuts += [match.start() for match in _RE.spoken_number.finditer(block)]
    last = 0
    for match in _RE.number.finditer(block):
        at = int(match[1]) if match[1].isdigit() else int(match[1], 36) - 9
        if last < at <= last + 2 and (last or at == 1):
            last = at
            cuts.append(match.start())
    start = 0
    for cut in sorted(cuts):
        if block[start:cut].strip():
            yield block[start:cut]
            start = cut
    yield block[start:]


def _labels_in_row(block: str) -> list[int]:
    """Find the labels in a row that is a whole table: "Heart | Enlarged | Pleura | Clear"."""
    cells = [*re.finditer(r"[^|]+", block)] if block.count("|") > 2 else []
    labels = [
        cell.start() for cell in cells if names_parts_alone(cell.group().strip(), findings=True)
    ]
    return labels if len(labels) > 1 and labels == [cell.start() for cell in cells[::2]] else []


def _cut_at_stops(item: str) -> Iterator[str]:
    start = 0
    for match in _RE.stop.finditer(item):
        if _is_end(item, start, match):
            yield item[start : match.end()].strip()
            start = match.end()
    if rest := item[start:].strip():
        yield rest


def _is_end(item: str, start: int, match: re.Match[str]) -> bool:
    """Whether a stop ends the sentence that began at `start`."""
    before = item[max(start, match.start() - 12) : match.start()]
    after = item[match.end() : match.end() + 40].lstrip()
    if _RE.about_before.match(after):
        return False
    if "?" in match.group():
        answer = after.lstrip("-\u2013: ")
        return bool(before[-1:].strip()) and not (
            _RE.answer.match(answer) or is_size(answer.split(".")[0])
        )
    if "!" in match.group() or not after:
        return True
    if match.group().startswith("..") and not before[-1:].strip():
        return False  # dots that lead from a label to what is stated of it
    if after.startswith("."):  # "seen.."
        return True
    if start + len(before) == match.start() and re.fullmatch(r"\s*\(?(?:\d{1,2}|[A-Za-z])", before):
        return False  # the number of an item
    if _RE.never_last.search(before) or (
        before[-3:].strip().lower() == "no" and after[0].isdigit()
    ):
        return False
    if _RE.shortened.search(before):
        starts = _RE.starts if after[0].isupper() else _RE.surely_starts
        return bool(starts.match(after)) or ("." in before and after[0].isupper())
    return not _RE.initial.search(before) or bool(_RE.starts.match(after) and after[0].isupper())
