"""The figures of the result pages are those of the kept outputs in benchmarks/results.

Decimals in the cells of a table must occur, rounded, in a JSON file that the page names above it.
Counts, sizes and targets without decimals are not looked for.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.tables import RESULT_PAGES, RESULTS, RUN

NOT_KEPT = {
    ("index.md", "The demo learns"),
    ("index.md", "Report labeler"),
}
"""Sections with figures of which no output was kept; each says so."""

COMPUTED = {
    ("real_studies.md", "Which objective"),  # again by tests/benchmarks/method/test_summary.py
    ("real_studies.md", "Rules that were fixed before the runs"),
    ("real_studies.md", "Reports written otherwise"),
    ("reliability.md", "The gateway"),
}
"""Sections with differences, ratios or sums of what was kept."""

_SCALES = (1, 100, 1e3, 1e-3, 1e-6, 1e-9, 1 / 60, 2**-10, 2**-20, 2**-30)
"""Per cent, and units of time and of memory."""

_NUMBER = re.compile(r"(?<![\w.-])[-+]?\d*\.\d+")


def numbers(tree: Any) -> Iterator[float]:
    """Every number of a tree, in its words too, and the means of its lists."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from numbers(name)
            yield from numbers(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from numbers(value)
        known = [value for value in tree if isinstance(value, int | float)]
        if known:
            yield sum(known) / len(known)
    elif isinstance(tree, str):
        yield from map(float, re.findall(r"\d*\.?\d+", tree))
    elif isinstance(tree, int | float):
        yield float(tree)


def kept_numbers(file: str) -> set[float]:
    text = (RESULTS / file).read_text(encoding="utf-8")
    lines = text.splitlines() if file.endswith(".jsonl") else [text]
    return {abs(value) for line in lines for value in numbers(json.loads(line))}


def is_kept(token: str, known: set[float]) -> bool:
    """Whether a number as it is printed is one that was kept, rounded."""
    value, half = abs(float(token)), 0.5000001 * 10.0 ** -len(token.partition(".")[2])
    return any(abs(scale * one - value) <= half for one in known for scale in _SCALES)


def missing(page: Path) -> dict[str, list[str]]:
    """Printed decimals that are in no kept output, by section."""
    found: dict[str, list[str]] = defaultdict(list)
    section, known, follows = "", set[float](), False
    for line in page.read_text(encoding="utf-8").splitlines():
        run = RUN.match(line)
        if run:
            known = (known if follows else set()) | kept_numbers(run[2])
        follows = bool(run)
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|"):
            for cell in line.strip("|").split("|")[1:]:
                found[section] += [t for t in _NUMBER.findall(cell) if not is_kept(t, known)]
    return {name: tokens for name, tokens in found.items() if tokens}


def sections(page: Path) -> dict[str, str]:
    """Text of each section, on one line, by its heading."""
    parts = re.split(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = (" ".join(text.split()) for text in parts[2::2])
    return dict(zip(parts[1::2], texts, strict=True))


@pytest.mark.parametrize("page", RESULT_PAGES, ids=lambda page: page.stem)
def test_figures_of_tables_are_those_that_were_kept(page: Path) -> None:
    without = {name for file, name in NOT_KEPT | COMPUTED if file == page.name}
    assert {name: found for name, found in missing(page).items() if name not in without} == {}


def test_sections_without_a_kept_output_say_so() -> None:
    texts = {page.name: sections(page) for page in RESULT_PAGES}
    for file, name in NOT_KEPT | COMPUTED:
        assert name in texts[file]
    silent = [(file, name) for file, name in NOT_KEPT if "not kept" not in texts[file][name]]
    assert silent == []


def test_a_met_target_is_met_by_its_figure() -> None:
    for file in sorted(RESULTS.glob("*.json")):
        kept = json.loads(file.read_text(encoding="utf-8"))
        trees = (kept, *kept.get("others", {}).values())
        bars = ((tree, *bar) for tree in trees for bar in tree.get("bars", {}).items())
        for tree, name, item in bars:
            sign, *number = item["bar"].split()
            value = tree["figures"].get(name)
            if value is not None and sign in {">=", "<="}:
                target = float(number[0])
                reached = value >= target if sign == ">=" else value <= target
                assert reached == item["met"], (file.name, name)


def test_a_number_is_found_as_it_is_rounded() -> None:
    assert is_kept("0.95", {0.945538})
    assert not is_kept("0.94", {0.945538})
    assert is_kept("94.6", {0.945538})
    assert {2.0, 3.5} <= set(numbers({"a 3.5": [1, 2, 3]}))
