"""Every cell of the relation's table, written out."""

import random

import torch

from medclip_dcl.losses.relations import (
    DIFFERENT,
    SAME,
    UNCLEAR,
    encode_claims,
    encode_labels,
    relation_gauges,
    relation_matrix,
)
from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels
from medclip_dcl.text.labeler.lexicon import LABELS


def claims(*asserted: str, negated=(), uncertain=(), normal=False) -> ReportLabels:
    """What a text says; sides as in `Edema|left`."""
    return ReportLabels.from_row(
        {"asserted": asserted, "negated": negated, "uncertain": uncertain, "normal": normal}
    )


SILENT, POSITIVE, NORMAL = claims(), claims("Edema"), claims(normal=True)
NEGATIVE, HEDGED = claims(negated=["Edema"]), claims(uncertain=["Edema"])


def test_one_claim_against_every_kind_of_report() -> None:
    said = encode_claims([POSITIVE, NEGATIVE, HEDGED, NORMAL, SILENT])
    assert relation_matrix(said, said).tolist() == [
        [SAME, DIFFERENT, UNCLEAR, DIFFERENT, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR, UNCLEAR, UNCLEAR],
        [UNCLEAR, DIFFERENT, UNCLEAR, DIFFERENT, DIFFERENT],
        [DIFFERENT, UNCLEAR, UNCLEAR, SAME, UNCLEAR],
        [DIFFERENT, DIFFERENT, DIFFERENT, DIFFERENT, DIFFERENT],
    ]


def test_a_side_counts_where_the_anchor_names_one() -> None:
    left, right, both = "Edema|left", "Edema|right", ("Edema|left", "Edema|right")
    texts = encode_claims([claims(left), claims(*both), claims("Edema"), claims(right)])
    assert relation_matrix(texts[:3], texts).tolist() == [
        [SAME, SAME, UNCLEAR, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR, DIFFERENT],
        [SAME, SAME, SAME, SAME],
    ]


def test_a_label_table_knows_no_side_hedges_minus_one_and_says_normal():
    labels = encode_labels([{"Edema": 1}, {"Edema": 0}, {"Edema": -1}, {"Edema": None}])
    anchors = encode_claims([POSITIVE, claims("Edema|left"), NEGATIVE])
    assert relation_matrix(anchors, labels).tolist() == [
        [SAME, DIFFERENT, UNCLEAR, DIFFERENT],
        [UNCLEAR, DIFFERENT, UNCLEAR, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR, UNCLEAR],
    ]
    labels = encode_labels([{"No Finding": 1}, {"No Finding": None, "Edema": 1}])
    assert relation_matrix(encode_claims([NORMAL]), labels).tolist() == [[SAME, DIFFERENT]]


def test_codes_hold_every_finding_and_normal() -> None:
    findings = [name for name in LABELS if name != "No Finding"]
    codes = encode_claims([claims(f"{name}|left") for name in findings] + [NORMAL])
    assert codes.dtype == torch.int8
    assert codes.shape == (14, (len(FINDINGS) + 1))
    assert (codes != 0).sum(dim=1).tolist() == [1] * 14
    assert (codes != 0).sum(dim=0).tolist() == [1] * 14


def test_gauges_count_other_images_alone() -> None:
    anchors = encode_claims([POSITIVE, NEGATIVE, SILENT])
    relation = torch.tensor([[SAME, SAME, DIFFERENT], [UNCLEAR, SAME, UNCLEAR], [0, 0, 0]])
    gauges = relation_gauges(relation.to(torch.int8), anchors, torch.arange(3))
    assert {name: round(value.item(), 4) for name, value in gauges.items()} == {
        "mates": 0.3333,  # 1, 0, 0
        "unclear": 0.3333,  # 2 of 6
        "with_claims": 0.6667,
        "alone": 0.3333,  # the second
    }


def expected_relation(anchor: ReportLabels, report: ReportLabels) -> int:
    """The module's table, one claim after the other."""
    verdicts = set()
    for name, sides in anchor.asserted.items():
        if name in report.asserted:
            known = report.asserted[name]
            verdicts.add(SAME if sides <= known else DIFFERENT if known else UNCLEAR)
        else:
            verdicts.add(UNCLEAR if name in report.uncertain else DIFFERENT)
    for name in anchor.negated:
        silent = UNCLEAR if name not in report.negated else SAME
        verdicts.add(DIFFERENT if name in report.asserted else silent)
    for name in anchor.uncertain:
        spoken = name in report.asserted or name in report.uncertain
        verdicts.add(UNCLEAR if spoken else DIFFERENT)
    if not verdicts and anchor.normal:
        rest = SAME if report.normal else UNCLEAR
        verdicts.add(DIFFERENT if report.asserted else rest)
    return next((item for item in (DIFFERENT, UNCLEAR, SAME) if item in verdicts), DIFFERENT)


def drawn(generator: random.Random, most: int) -> ReportLabels:
    names = generator.sample(FINDINGS[:5], generator.randint(0, most))
    kinds = {name: generator.choice("anu") for name in names}
    sides = [frozenset(), frozenset({"left"}), frozenset({"right"}), frozenset({"left", "right"})]
    return ReportLabels(
        {name: generator.choice(sides) for name in names if kinds[name] == "a"},
        frozenset(name for name in names if kinds[name] == "n"),
        frozenset(name for name in names if kinds[name] == "u"),
        generator.random() < 0.3,
    )


def test_matrix_is_the_table_for_any_claims() -> None:
    generator = random.Random(0)
    anchors = [drawn(generator, 3) for _ in range(150)]
    reports = [drawn(generator, 5) for _ in range(150)]
    expected = [[expected_relation(anchor, report) for report in reports] for anchor in anchors]
    matrix = relation_matrix(encode_claims(anchors), encode_claims(reports))
    assert matrix.tolist() == expected
    assert all((matrix == kind).sum() > 500 for kind in (DIFFERENT, SAME, UNCLEAR))
