"""Report -> findings and impression.

Two readers share one table of header names: `read_sections` follows MIMIC-CXR's own section
parser to the letter, `read_loose_sections` reads reports of any other layout.

54 reports of MIMIC-CXR cannot be found by their headers. Whoever made the release read them
and recorded where their text is: under a header that usually means something else, or
between two characters.

Source: function `custom_mimic_cxr_rules` in mimic-iv-cxr/txt/section_parser.py of
    github.com/MIT-LCP/mimic-code, commit 20fe4496d96cec2634ed4ae99924b8dc548cd62e.
    Licence: MIT, Copyright (c) 2019 MIT Laboratory for Computational Physiology. Ids and
    numbers are theirs; no text of a report is repeated here.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_TREE: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("sections.yaml").read_text(encoding="utf-8")
)


def _inverted(lists: Mapping[str, str]) -> dict[str, str]:
    """Name -> words, separated by semicolons, as word -> name."""
    return {word.strip(): name for name, words in lists.items() for word in words.split(";")}


HEADER_OF: dict[str, str] = {
    study: name for name, ids in _TREE["studies_under"].items() for study in ids.split()
}
"""Study -> name of the section that holds its report: 23 studies."""

SPAN_OF = {
    study: (int(start), int(end))
    for study, start, end in (entry.split() for entry in _TREE["spans"].split(";"))
}
"""Study -> first character of its text and the one after its last: 31 studies."""

_HEADER = re.compile(r"\n ([A-Z ()/,-]+):\s")
_LOOSE_HEADER = re.compile(
    r"^[ \t]*([A-Z][A-Z ()/,&-]+):|"
    r"(?<![A-Za-z])(FINDINGS?|IMPRESSIONS?|CONCLUSIONS?|INDICATIONS?|COMPARISONS?|TECHNIQUE|"
    r"HISTORY|CLINICAL HISTORY|CLINICAL INFORMATION|EXAMINATION|RECOMMENDATIONS?):",
    re.MULTILINE,
)
_BLANK_LINE = "\n \n"
_LOOSE_BLANK_LINE = re.compile(r"\n[ \t]*\n")

_NAMES: dict[str, str] = _inverted(_TREE["spellings"]) | {name: name for name in _TREE["spellings"]}
_TELLING = ("impression", "findings", "history", "comparison", "addendum")
"""A header that holds one of these words has this name; the first in this order counts."""
_VIEW = re.compile("|".join(_inverted({"view": _TREE["views"]})))
_LOOSE_NAMES = _inverted(_TREE["loose"])
_USUAL = {*_NAMES.values(), *_TELLING, "technique", "procedure", "reason"}


class Sections(NamedTuple):
    """The parts of a report that are trained on; an empty string where there is none."""

    findings: str
    impression: str
    last_paragraph: str


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
    kept = _without_empty(_split(text))
    sections = dict(kept)
    if not {"findings", "impression"} & sections.keys():
        name, last = kept[-1]
        head, blank_line, rest = last.partition(_BLANK_LINE)
        sections |= {name: head, "last_paragraph": rest} if blank_line else {}
    order = [HEADER_OF.get(study_id, ""), "findings", "impression", "last_paragraph", "comparison"]
    first = next((name for name in order if name in sections), "")
    if first in {"findings", "impression"}:
        return _both(sections)
    return Sections("", "", sections.get(first, "").strip())


def read_loose_sections(text: str, _study_id: str = "") -> Sections:
    """Find findings and impression of a report of any layout, or what stands in for both.

    A header is a line that starts with capitals and a colon, or one of the usual names in
    capitals with a colon anywhere in a line. A report without headers, or with none that is
    usual, stands in as a whole; one with usual headers, but neither findings nor impression,
    by what follows the first blank line of its last section. The id is not used: both
    readers are called alike.
    """
    headers = list(_LOOSE_HEADER.finditer(text))
    if not headers:
        return Sections("", "", text.strip())
    ends = [header.start() for header in headers[1:]] + [len(text)]
    found = [
        (_loose_name(header.group(1) or header.group(2)), text[header.end() : end])
        for header, end in zip(headers, ends, strict=True)
    ]
    kept = _without_empty(found)
    sections = dict(kept)
    if "findings" in sections or "impression" in sections:
        return _both(sections)
    if _USUAL.isdisjoint(dict(found)):  # "PC: fever. BG: asthma." is a text, no list of sections
        return Sections("", "", text.strip())
    parts = _LOOSE_BLANK_LINE.split(found[-1][1].strip(), maxsplit=1)
    return Sections("", "", parts[1].strip() if len(parts) > 1 else "")


def section_name(header: str) -> str:
    """Bring a header, without its colon and in any case, to its usual name in lower case.

    A header that names both parts is `impression`; one that names a projection alone is
    `findings`. Source: section_parser.py of MIT-LCP/mimic-code.
    """
    name = header.lower().strip()
    if name in _NAMES:
        return _NAMES[name]
    telling = next((word for word in _TELLING if word in name), "")
    return telling or ("findings" if _VIEW.search(name) else name)


def _loose_name(header: str) -> str:
    name = " ".join(header.lower().split())
    return _LOOSE_NAMES.get(name) or section_name(name)


def _split(text: str) -> _Found:
    """Give name and text of what precedes the first header, and of every section, in order."""
    header = _HEADER.search(text)
    found = [("preamble", text if header is None else text[: header.start(1)])]
    while header is not None:
        line_end = text.find("\n", header.end())  # a header ends its line: none follows in it
        following = _HEADER.search(text, header.end() if line_end < 0 else line_end)
        end = len(text) if following is None else following.start()
        found.append((section_name(header.group(1)), text[header.end() : end]))
        header = following
    return found


def _without_empty(found: Iterable[tuple[str, str]]) -> _Found:
    return [
        (name, body)
        for name, body in found
        if name not in {"findings", "impression"} or body.strip()
    ]


def _both(sections: dict[str, str]) -> Sections:
    findings, impression = sections.get("findings", ""), sections.get("impression", "")
    return Sections(findings.strip(), impression.strip(), "")
