"""Findings and impression of MIMIC-CXR's reports, read as the release's own parser does.

54 reports of MIMIC-CXR cannot be found by their headers. Whoever made the release read them
and recorded where their text is: under a header that usually means something else, or
between two characters.

Source: function `custom_mimic_cxr_rules` in mimic-iv-cxr/txt/section_parser.py of
    github.com/MIT-LCP/mimic-code, commit 20fe4496d96cec2634ed4ae99924b8dc548cd62e.
    Licence: MIT, Copyright (c) 2019 MIT Laboratory for Computational Physiology. Ids and
    numbers are theirs; no text of a report is repeated here.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

TREE: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("sections.yaml").read_text(encoding="utf-8")
)


def _inverted(lists: Mapping[str, str]) -> dict[str, str]:
    """Name -> words, separated by semicolons, as word -> name."""
    return {word.strip(): name for name, words in lists.items() for word in words.split(";")}


HEADER_OF: dict[str, str] = {
    study: name for name, ids in TREE["studies_under"].items() for study in ids.split()
}
"""Study -> name of the section that holds its report: 23 studies."""

SPAN_OF = {
    study: (int(start), int(end))
    for study, start, end in (entry.split() for entry in TREE["spans"].split(";"))
}
"""Study -> first character of its text and the one after its last: 31 studies."""

_HEADER = re.compile(r"\n ([A-Z ()/,-]+):\s")
_BLANK_LINE = "\n \n"

NAMES: dict[str, str] = _inverted(TREE["spellings"]) | {name: name for name in TREE["spellings"]}
_TELLING = ("impression", "findings", "history", "comparison", "addendum")
"""A header that holds one of these words has this name; the first in this order counts."""
VIEW = re.compile("|".join(_inverted({"view": TREE["views"]})))


class Sections(NamedTuple):
    """The parts of a report that are trained on; an empty string where there is none."""

    findings: str
    impression: str
    last_paragraph: str


class Part(NamedTuple):
    """A stretch of a report: its heading as written, its text, and what is done with it."""

    name: str
    """The heading's usual name, or its own in lower case; empty before the first heading."""
    heading: str
    body: str
    section: str
    """Section that the text is read into; empty where it is left out."""


_Found = list[tuple[str, str]]


def read_sections(text: str, study_id: str = "") -> Sections:
    """Find findings and impression of a MIMIC-CXR report, or what stands in for both.

    A header is a line that is indented by one space and starts with capitals and a colon.
    Of several sections of one name the last counts; empty findings and impressions do not.
    Where neither exists, what follows the first line that holds one space in the last
    section stands in, and where there is no such line the comparison, under which some
    reports are written. For 54 studies the release says by hand where the text stands.

    Args:
        text: the report, lines divided by newlines.
        study_id: the study, digits alone; empty where it is none of the release.

    Source: section_parser.py and create_section_files.py of MIT-LCP/mimic-code, rules
        re-expressed; outcomes were compared on 200,000 generated reports.
    """
    if study_id in SPAN_OF:
        start, end = SPAN_OF[study_id]
        return Sections("", "", text[start:end].strip())
    filled = [
        (name, body)
        for name, body in _split(text)
        if name not in {"findings", "impression"} or body.strip()
    ]
    sections = dict(filled)
    if not {"findings", "impression"} & sections.keys():
        name, last = filled[-1]
        head, blank_line, rest = last.partition(_BLANK_LINE)
        sections |= {name: head, "last_paragraph": rest} if blank_line else {}
    order = [HEADER_OF.get(study_id, ""), "findings", "impression", "last_paragraph", "comparison"]
    first = next((name for name in order if name in sections), "")
    if first in {"findings", "impression"}:
        findings, impression = sections.get("findings", ""), sections.get("impression", "")
        return Sections(findings.strip(), impression.strip(), "")
    return Sections("", "", sections.get(first, "").strip())


def cut_release_report(text: str, study_id: str = "") -> list[Part]:
    """Cut a report of MIMIC-CXR into parts, as `read_sections` reads it."""
    read = {name: body for name, body in read_sections(text, study_id)._asdict().items() if body}
    parts = []
    for name, body in _split(text):
        section = next((field for field, used in read.items() if used in body), "")
        before, used, after = body.partition(read.pop(section)) if section else (body, "", "")
        parts += [
            Part(name, "", before, ""),
            Part(name, "", used, section),
            Part(name, "", after, ""),
        ]
    return [part for part in parts if part.body.strip()]


def section_name(header: str) -> str:
    """Bring a header, without its colon and in any case, to its usual name in lower case.

    A header that names both parts is `impression`; one that names a projection alone is
    `findings`. Source: section_parser.py of MIT-LCP/mimic-code.
    """
    name = header.lower().strip()
    if name in NAMES:
        return NAMES[name]
    telling = next((word for word in _TELLING if word in name), "")
    return telling or ("findings" if VIEW.search(name) else name)


def _split(text: str) -> _Found:
    """Return name and text of what precedes the first header, and of every section, in order."""
    header = _HEADER.search(text)
    sections = [("preamble", text if header is None else text[: header.start(1)])]
    while header is not None:
        line_end = text.find("\n", header.end())  # a header ends its line: none follows in it
        following = _HEADER.search(text, header.end() if line_end < 0 else line_end)
        end = len(text) if following is None else following.start()
        sections.append((section_name(header.group(1)), text[header.end() : end]))
        header = following
    return sections
