"""Every place that is cited of the two papers is there: sections, equations, tables, figures.

The lists hold what could be checked; what is not in them must not be cited.
"""

import re
from collections.abc import Iterator

from tests.house.tree import name_of, tracked

WANG = {
    "Section": {"1", "2", "2.1", "2.2", "2.3", "2.4", "3", "3.1", "3.2", "4", "5"},
    "Eq.": {str(number) for number in range(1, 12)},
    "Table": {str(number) for number in range(1, 6)},
    "Figure": {str(number) for number in range(1, 6)},
    "Proposition": {"2.1"},
    "Lemma": {"A.2", "A.3", "A.4"},
    "Theorem": {"A.6"},
    "Appendix": {"A", "A.2"},
}
"""Wang et al. 2023, Sample-Specific Debiasing for Better Image-Text Models."""
CHUANG = {
    "Eq.": {str(number) for number in range(1, 9)},
    "Table": {"1", "2", "3"},
    "Figure": {str(number) for number in range(1, 6)},
    "Lemma": {"1", "2", "4"},
    "Theorem": {"3", "5"},
    "Appendix": {"A", "B", "B.2"},
}
"""Chuang et al. 2020, Debiased Contrastive Learning."""

_SPELLINGS = {"Eqs.": "Eq.", "Equation": "Eq.", "Fig.": "Figure", "Prop.": "Proposition"}
_KINDS = (*sorted({*WANG, *_SPELLINGS}), "Algorithm")
_NUMBER = r"(?:[A-Z]\.\d+|\d+\.\d+|\d+|[A-Z]\b)"
_PLACE = re.compile(
    rf"\b({'|'.join(map(re.escape, _KINDS))})s? ({_NUMBER}(?:(?:, | and | or |-){_NUMBER})*)"
)
_AUTHOR = re.compile(r"\b([A-Z]\w+)(?: et al\.'?s?| and [A-Z]\w+)?,? \(?(\d{4})\b")
_NEAR = 200  # characters after an author in which a place is the author's


def wrong_places(text: str) -> Iterator[str]:
    """Places that the papers do not have; those of nobody who is named near are Wang et al.'s."""
    flat = re.sub(r"\s*\n\s*(?:#+ )?", " ", text)
    named = [(found.start(), found.groups()) for found in _AUTHOR.finditer(flat)]
    for found in _PLACE.finditer(flat):
        before = [who for at, who in named if 0 <= found.start() - at < _NEAR]
        owner = before[-1] if before else ("Wang", "2023")
        if owner not in {("Wang", "2023"), ("Chuang", "2020")}:
            continue
        listed = WANG if owner[0] == "Wang" else CHUANG
        kind = _SPELLINGS.get(found[1], found[1])
        for number in re.findall(_NUMBER, found[2]):
            if number not in listed.get(kind, set()):
                yield f"{owner[0]} et al. {owner[1]}, {kind} {number}"


def test_a_place_that_is_not_there_is_found() -> None:
    text = "Wang et al. 2023,\n    # Section 3.3, Table 2; He et al. 2016, Table 9; Prop. 2.1; "
    text += "Chuang et al. 2020, Eq. 8, Lemmas 1 and 3"
    assert list(wrong_places(text)) == [
        "Wang et al. 2023, Section 3.3",
        "Chuang et al. 2020, Lemma 3",
    ]


def test_every_place_that_is_cited_is_in_the_paper() -> None:
    files = tracked(".py", ".md", ".yaml", ".html", ".ipynb")
    wrong = {
        name_of(path): found
        for path in files
        if path.name not in {"CHANGELOG.md", "test_citations.py"}
        if (found := list(wrong_places(path.read_text(encoding="utf-8"))))
    }
    assert wrong == {}
