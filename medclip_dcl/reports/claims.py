"""Report or sentence -> claims about the 13 CheXpert findings.

A claim is a finding with a polarity and, where it is asserted, its sides. What no
sentence says is no claim. The reading itself is in `reading`, its words in `lexicon` and
`cues`; here sentences come together:

    asserted anywhere beats hedged, hedged beats negated; sides are united;
    `normal` stands where a sentence calls the film or the lungs normal, or heart, lungs
    and pleura are each denied a finding, and nothing abnormal, also beyond the 13
    findings, is asserted or hedged.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from medclip_dcl.artifacts.claims import join_sides, split_sides
from medclip_dcl.artifacts.manifest import LABELS
from medclip_dcl.reports.lexicon import FINDINGS_OF, LEFT_OPEN_BY, MIDLINE
from medclip_dcl.reports.mentions import Mention, Polarity
from medclip_dcl.reports.reading import Reading, read_report

FINDINGS = tuple(name for name in LABELS if name != "No Finding")
"""The 13 findings that claims are about, as MIMIC-CXR-JPG's table names them."""

_ABNORMAL = {Polarity.ASSERTED, Polarity.UNCERTAIN}
_CHECKED_WHERE_NORMAL = (
    {"Cardiomegaly"},
    {"Consolidation", "Lung Opacity", "Pneumonia"},
    {"Pleural Effusion"},
)
"""Heart, lungs, pleura: with something denied of each, a text has called the film normal."""


@dataclass(frozen=True)
class Claims:
    """What a text says of the findings.

    Attributes:
        asserted: finding -> sides ("left", "right"); empty where no side is named.
        negated: findings denied, and neither asserted nor hedged.
        uncertain: findings left open, and not asserted.
        normal: the film or the lungs are called normal, and nothing contradicts it.
    """

    asserted: Mapping[str, frozenset[str]]
    negated: frozenset[str]
    uncertain: frozenset[str]
    normal: bool

    def __bool__(self) -> bool:
        """Whether the text makes any claim."""
        return bool(self.asserted or self.negated or self.uncertain or self.normal)

    def to_row(self) -> dict[str, Any]:
        """Give the claims as the columns of the claims artifact.

        Returns:
            Column -> value, without the column that names the text.
        """
        return {
            "asserted": join_sides(self.asserted),
            "negated": sorted(self.negated),
            "uncertain": sorted(self.uncertain),
            "normal": self.normal,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """Take claims from a row of the claims artifact.

        Args:
            row: a row with the columns that `to_row` gives.

        Returns:
            The claims.
        """
        return cls(
            split_sides(row["asserted"]),
            frozenset(row["negated"]),
            frozenset(row["uncertain"]),
            bool(row["normal"]),
        )


def read_claims(text: str) -> Claims:
    """Read what a sentence or a whole report says of the findings.

    Args:
        text: findings, impression or one sentence; any text is allowed.

    Returns:
        Its claims; a text that says nothing of the findings gives empty ones.

    Source: ours; findings of CheXpert (Irvin et al. 2019).
    """
    return claims_of([read_report(text)])


def claims_of(readings: Iterable[Reading]) -> Claims:
    """Bring what several sentences say together.

    Args:
        readings: readings of the sentences of one report, in any order.

    Returns:
        The claims of the report.
    """
    asserted: dict[str, frozenset[str]] = {}
    negated, uncertain = set[str](), set[str]()
    normal = abnormal = False
    for reading in readings:
        normal |= reading.normal
        for mention in reading.mentions:
            abnormal |= mention.polarity in _ABNORMAL
            for finding, polarity in _said_of(mention):
                if polarity is Polarity.ASSERTED:
                    sides = frozenset[str]() if finding in MIDLINE else mention.sides
                    asserted[finding] = asserted.get(finding, frozenset()) | sides
                elif polarity is Polarity.UNCERTAIN:
                    uncertain.add(finding)
                elif polarity is Polarity.NEGATED:
                    negated.add(finding)
    uncertain -= asserted.keys()
    negated -= asserted.keys() | uncertain
    normal |= all(negated & part for part in _CHECKED_WHERE_NORMAL)
    return Claims(asserted, frozenset(negated), frozenset(uncertain), normal and not abnormal)


def _said_of(mention: Mention) -> Iterator[tuple[str, Polarity]]:
    """Turn a concept into CheXpert findings."""
    for finding in FINDINGS_OF.get(mention.concept, ()):
        yield finding, mention.polarity
    for finding in LEFT_OPEN_BY.get(mention.concept, ()):
        is_open = mention.polarity is Polarity.ASSERTED
        yield finding, Polarity.UNCERTAIN if is_open else mention.polarity
