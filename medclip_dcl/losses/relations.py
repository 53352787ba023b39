"""How an anchor sentence stands to the report of every candidate image.

    SAME       the report says what the sentence says, in any wording
    UNCLEAR    neither said nor contradicted: no ground to push or to pull
    DIFFERENT  everything else

One claim at a time, report against anchor (`A`, `R`: sides that anchor and report name):

    anchor      report asserts                report negates  report hedges  report silent
    asserts     A within R: SAME              DIFFERENT       UNCLEAR        DIFFERENT
                R empty, A not: UNCLEAR
                otherwise: DIFFERENT
    negates     DIFFERENT                     SAME            UNCLEAR        UNCLEAR
    hedges      UNCLEAR                       DIFFERENT       UNCLEAR        DIFFERENT

A sentence with several claims takes the worst: one DIFFERENT makes it DIFFERENT, else
one UNCLEAR makes it UNCLEAR. A sentence that calls the image normal and names no finding
is SAME to a normal report, DIFFERENT to one that asserts a finding, UNCLEAR to the rest.
A sentence without claims is DIFFERENT to all: its anchor trains by plain InfoNCE.

Claims travel as one small integer per finding, and one for `normal`, so that a global
batch gathers them like ids.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Int8
from torch import Tensor

from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels

DIFFERENT, SAME, UNCLEAR = 0, 1, 2

NEGATED, HEDGED, ASSERTED, LEFT, RIGHT = 1, 2, 4, 8, 16
"""Bits of a finding's code; 0: not mentioned. The last column is 1 where normal."""

_SIDES = {"left": LEFT, "right": RIGHT}


def encode_claims(
    claims: Sequence[ReportLabels], findings: Sequence[str] = FINDINGS
) -> Int8[Tensor, "texts codes"]:
    """Turn what each sentence or report says into bits of each of the findings, then normal."""
    column = {name: number for number, name in enumerate(findings)}
    codes = torch.zeros(len(claims), len(findings) + 1, dtype=torch.int8)
    for row, text in enumerate(claims):
        # The stronger statement last: an assertion beats a hedge, and a hedge a denial.
        for name in text.negated:
            codes[row, column[name]] = NEGATED
        for name in text.uncertain:
            codes[row, column[name]] = HEDGED
        for name, sides in text.asserted.items():
            codes[row, column[name]] = ASSERTED | sum(_SIDES[side] for side in sides)
        codes[row, -1] = text.normal
    return codes


def encode_labels(
    labels: Sequence[Mapping[str, int | None]], findings: Sequence[str] = FINDINGS
) -> Int8[Tensor, "studies codes"]:
    """Turn rows of a label table into codes of reports.

    A label is 1 present, 0 absent, -1 uncertain, None or left out: not mentioned. The table has no
    sides, so that a sentence which names one is UNCLEAR to every study with its finding.

    Source: labels of MIMIC-CXR-JPG (Johnson et al. 2019) and CheXpert (Irvin et al. 2019).
    """
    bits = {1: ASSERTED, 0: NEGATED, -1: HEDGED}
    codes = torch.zeros(len(labels), len(findings) + 1, dtype=torch.int8)
    for row, study in enumerate(labels):
        for column, name in enumerate(findings):
            value = study.get(name)
            codes[row, column] = 0 if value is None else bits[value]
        codes[row, -1] = study.get("No Finding") == 1
    return codes


def relation_matrix(
    anchor_claims: Int8[Tensor, "anchors codes"], report_claims: Int8[Tensor, "candidates codes"]
) -> Int8[Tensor, "anchors candidates"]:
    """Read how each anchor sentence stands to each candidate's report, by the module's table.

    The losses count an anchor's own image as a positive whatever its relation is.

    Source: ours.
    """
    anchor, report = _features(anchor_claims), _features(report_claims)
    is_different, is_unclear = _compare(anchor, report)

    names_finding = (anchor_claims[:, :-1] != 0).any(dim=1, keepdim=True)
    is_normal = (anchor_claims[:, -1:] != 0) & ~names_finding
    is_different |= is_normal & report.asserted.any(dim=1)
    is_unclear |= is_normal & (report_claims[None, :, -1] == 0)
    is_different |= ~(names_finding | is_normal)  # no claim: the anchor trains by plain InfoNCE

    # Several claims take the worst verdict: different is written over unclear.
    relation = torch.full_like(is_different, SAME, dtype=torch.int8)
    return relation.masked_fill_(is_unclear, UNCLEAR).masked_fill_(is_different, DIFFERENT)


def relation_gauges(
    relation: Int8[Tensor, "anchors candidates"],
    anchor_claims: Int8[Tensor, "anchors codes"],
    positive: Int[Tensor, " anchors"],
) -> dict[str, Tensor]:
    """Measure what the relation adds to the pairing.

    `mates`: mean number of SAME images besides the anchor's own; `unclear`: share of UNCLEAR among
    the others; `with_claims`: share of anchors with claims; `alone`: share of anchors for which
    every other image is UNCLEAR.
    """
    # An anchor's own image is its positive whatever the relation says: it is not counted.
    others = torch.ones_like(relation, dtype=torch.bool)
    others[torch.arange(len(relation), device=relation.device), positive] = False
    unclear = (relation == UNCLEAR) & others
    return {
        "mates": ((relation == SAME) & others).sum(dim=1).float().mean(),
        "unclear": unclear.sum() / others.sum().clamp(min=1),
        "with_claims": (anchor_claims != 0).any(dim=1).float().mean(),
        "alone": (unclear.sum(dim=1) == others.sum(dim=1)).float().mean(),
    }


class _Features(NamedTuple):
    # What each text says of each finding: (texts, findings).

    asserted: Bool[Tensor, "texts findings"]
    negated: Bool[Tensor, "texts findings"]
    hedged: Bool[Tensor, "texts findings"]
    left: Bool[Tensor, "texts findings"]
    right: Bool[Tensor, "texts findings"]


def _features(codes: Int8[Tensor, "texts codes"]) -> _Features:
    findings = codes[:, :-1]
    return _Features(*(findings & bit != 0 for bit in (ASSERTED, NEGATED, HEDGED, LEFT, RIGHT)))


def _compare(
    anchor: _Features, report: _Features
) -> tuple[Bool[Tensor, "anchors candidates"], Bool[Tensor, "anchors candidates"]]:
    """Tell which pairs some claim makes different, and which unclear; different goes first.

    Each line of the module's table is a claim of the anchor times a state of the report. Whether
    any finding has both is one product of matrices, whatever the number of findings.
    """
    # A side that the report leaves open is unclear; the other side alone is a contradiction.
    unsided_left = report.asserted & ~report.left
    unsided_right = report.asserted & ~report.right
    different = [
        (anchor.asserted | anchor.hedged, ~(report.asserted | report.hedged)),
        (anchor.negated, report.asserted),
        (anchor.left, unsided_left & report.right),
        (anchor.right, unsided_right & report.left),
    ]
    unclear = [
        (anchor.negated, ~report.negated),
        (anchor.hedged, torch.ones_like(report.asserted)),
        (anchor.asserted, report.hedged),
        (anchor.left, unsided_left),
        (anchor.right, unsided_right),
    ]
    return _any_finding(different), _any_finding(unclear)


def _any_finding(
    pairs: Sequence[tuple[Bool[Tensor, "anchors findings"], Bool[Tensor, "candidates findings"]]],
) -> Bool[Tensor, "anchors candidates"]:
    # In float32, since GPUs multiply no matrices of booleans; sums of so few ones are exact.
    anchors, reports = (torch.cat(side, dim=1).float() for side in zip(*pairs, strict=True))
    return anchors @ reports.T > 0
