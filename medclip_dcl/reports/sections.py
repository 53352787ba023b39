"""Report -> findings and impression, by the rules of the release's own section parser."""

import re
from typing import NamedTuple

_HEADER = re.compile(r"\n ([A-Z ()/,-]+):\s")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")

_SPELLINGS = {
    "impression": (
        "conclusion",
        "conclusions",
        "final impression",
        "impresion",
        "impressions",
        "impresson",
        "impresssion",
        "impession",
        "imprssion",
        "imression",
        "opinion",
        "summary",
    ),
    "findings": (
        "chest, ap",
        "chest, pa",
        "chest, single view",
        "chest, two views",
        "finding",
        "findigns",
        "findins",
        "finidings",
        "finidngs",
        "fingings",
        "fndings",
        "observations",
        "report",
    ),
    "comparison": (
        "comparision",
        "comparisons",
        "comparsion",
        "compared to",
        "prior studies",
        "prior study",
    ),
    "indication": ("reason for exam", "reason for examination", "indications", "reason"),
    "history": ("clinical history", "clinical indication", "clinical information", "clinical data"),
    "technique": ("techinque", "procedure", "type of exam", "techniques"),
    "examination": ("exam", "exams", "study", "examinations"),
    "recommendation": ("recommendations",),
    "notification": ("notifications", "communication"),
}
_NAMES = {
    spelling: name for name, spellings in _SPELLINGS.items() for spelling in (name, *spellings)
}
_VIEW_WORDS = re.compile(
    r"\b(chest|portable|(two|one|single|frontal|lateral|pa|ap) views?|"
    r"(pa|ap|frontal) and lat(eral)?|lateral and (pa|ap|frontal)|ribs)\b"
)


class Sections(NamedTuple):
    """The parts of a report that are trained on; an empty string where there is none."""

    findings: str
    impression: str
    last_paragraph: str


def read_sections(text: str) -> Sections:
    """Find the findings and the impression of a report.

    A header is a line that is indented by one space and starts with capitals and a colon.
    Of several sections of one name the last counts, so an addendum above the report does
    not hide it; empty ones do not count. Where neither findings nor impression exists,
    what follows the first blank line of the last section stands in, and a report
    without any header stands in as a whole.

    Args:
        text: the report, lines divided by newlines.

    Returns:
        The sections, without whitespace at their ends.

    Source: the published section parser of MIMIC-CXR, rules re-expressed; headers that name
        a projection count as findings there too. Its list of 54 studies with hand-made
        sections is left out. The stand-in for a report without headers is ours.
    """
    found = _split(text)
    kept = {name: body for name, body in found if body}
    findings, impression = kept.get("findings", ""), kept.get("impression", "")
    if findings or impression:
        return Sections(findings, impression, "")
    last = found[-1][1] if found else text.strip()
    parts = _BLANK_LINE.split(last, maxsplit=1)
    if len(parts) > 1 and parts[1].strip():
        return Sections("", "", parts[1].strip())
    return Sections("", "", "" if found else last)


def section_name(header: str) -> str:
    """Bring the header of a section to its usual name.

    Args:
        header: the header without its colon, in any case.

    Returns:
        `findings`, `impression` or another name in lower case. A header that names both
        is `findings`, and so is one that names a projection.

    Source: MIMIC-CXR's section parser, normalised more briefly; ours where it is silent.
    """
    name = " ".join(header.lower().split())
    if name in _NAMES:
        return _NAMES[name]
    for part in ("findings", "impression", "comparison", "indication", "technique"):
        if part in name:
            return part
    return "findings" if _VIEW_WORDS.search(name) else name


def _split(text: str) -> list[tuple[str, str]]:
    """Give name and text of every section that has a header, in order."""
    found = []
    header = _HEADER.search(text)
    while header is not None:
        line_end = text.find("\n", header.end())
        following = _HEADER.search(text, header.end() if line_end < 0 else line_end)
        end = len(text) if following is None else following.start()
        found.append((section_name(header.group(1)), text[header.end() : end].strip()))
        header = following
    return found
