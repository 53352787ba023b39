"""Report or sentence -> claims about the 13 CheXpert findings.

A claim is a finding with a polarity and, where it is asserted, its sides. What no
sentence says is no claim. The reading itself is in `mentions`, its words in `lexicon`
and `cues`; here sentences come together:

    asserted anywhere beats hedged, hedged beats negated; sides are united;
    `normal` stands where a sentence calls the film or the lungs normal and nothing
    abnormal, also beyond the 13 findings, is asserted or hedged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from medclip_dcl.artifacts.claims import join_sides, split_sides
from medclip_dcl.artifacts.manifest import LABELS
from medclip_dcl.reports.lexicon import FINDINGS_OF, MIDLINE
from medclip_dcl.reports.mentions import Polarity, Reading, read_report

FINDINGS = tuple(name for name in LABELS if name != "No Finding")
"""The 13 findings that claims are about, as MIMIC-CXR-JPG's table names them."""

_ABNORMAL = {Polarity.ASSERTED, Polarity.UNCERTAIN}


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
    mentions, normal = [], False
    for reading in readings:
        mentions += reading.mentions
        normal |= reading.normal
    asserted: dict[str, frozenset[str]] = {}
    found: dict[Polarity, set[str]] = {polarity: set() for polarity in Polarity}
    for mention in mentions:
        for finding in FINDINGS_OF[mention.concept]:
            found[mention.polarity].add(finding)
            if mention.polarity is Polarity.ASSERTED:
                sides = frozenset[str]() if finding in MIDLINE else mention.sides
                asserted[finding] = asserted.get(finding, frozenset()) | sides
    abnormal = any(mention.polarity in _ABNORMAL for mention in mentions)
    uncertain = found[Polarity.UNCERTAIN] - asserted.keys()
    return Claims(
        asserted,
        frozenset(found[Polarity.NEGATED] - asserted.keys() - uncertain),
        frozenset(uncertain),
        normal and not abnormal,
    )
