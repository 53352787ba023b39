"""The rows of the tables: one objective each, under the same name in every bed."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Floor = Literal["floor", "zero", "fallback"]


@dataclass(frozen=True)
class Row:
    """One objective.

    Attributes:
        name: how the tables call it.
        kind: `infonce`, `debiased`, `multipositive` or `sigmoid`.
        eta: source of eta, or a constant; 0 for none.
        floor: what stands in for Eq. 8 at its minimum.
        relation: who is known to be positive: `none`, `claims`, `labels`, `truth`,
            `shuffled`, the claims of another image's report, `dropped` and `invented`,
            the claims of a worse reader, or `asserting`, the claims for sentences that
            assert a finding and nobody for the others.
        negatives: weights on negatives, as `objective.negatives` names them.
        early: whether training stops early, with a schedule of its own.
        directions: anchors, as `objective.directions` names them.
        image_anchor: loss of image anchors: `same` as that of texts, or InfoNCE on the
            `own` pair.
        places: what the place loss goes by, as `objective.places` names it; empty: no
            place loss.
    """

    name: str
    kind: Literal["infonce", "debiased", "multipositive", "sigmoid"] = "infonce"
    eta: str | float = 0.0
    floor: Floor = "fallback"
    relation: str = "none"
    negatives: str = "all"
    early: bool = False
    directions: Literal["t2i", "i2t", "both"] = "t2i"
    image_anchor: Literal["own", "same"] = "same"
    places: Literal["", "anatomy", "words", "shuffled"] = ""


CONSTANTS = (0.02, 0.05, 0.1, 0.2)
CONTROLS = ("pll reversed", "pll shuffled", "oracle reversed", "oracle shuffled")
FLOORS: tuple[Floor, ...] = ("fallback", "floor", "zero")

MAIN = (
    Row("infonce"),
    Row("infonce, early", early=True),
    Row("const 0.05", "debiased", 0.05),
    Row("const 0.1", "debiased", 0.1),
    Row("pll", "debiased", "pll"),
    Row("pll, floor", "debiased", "pll", "floor"),
    Row("frequency", "debiased", "frequency"),
    Row("oracle", "debiased", "oracle"),
    Row("const 0.1, known", "debiased", 0.1, relation="claims"),
    Row("multipositive claims", "multipositive", relation="claims"),
    Row("multipositive labels", "multipositive", relation="labels"),
    Row("multipositive truth", "multipositive", relation="truth"),
    Row("multipositive shuffled", "multipositive", relation="shuffled"),
    Row("remove truth", "debiased", 0.0, relation="truth"),
    Row("remove labels", negatives="remove_labels"),
)
"""What every bed with reports is asked; `pll, floor` is the paper's. `remove truth` is the
label oracle: every false negative leaves the denominator."""

BOTH = (
    Row("infonce, both", directions="both"),
    Row("multipositive claims, both", "multipositive", relation="claims", directions="both"),
)
"""The generated studies once more, with images as anchors next to texts."""

BASELINES = (
    Row("remove similar", negatives="remove_similar"),
    Row("resample similar", negatives="resample_similar"),
    Row("reweight similar", negatives="reweight_similar"),
    Row("hard", negatives="hard"),
    Row("sigmoid", "sigmoid"),
)

EARLY = (
    Row("const 0.1, early", "debiased", 0.1, early=True),
    Row("const 0.1, known, early", "debiased", 0.1, relation="claims", early=True),
    Row("multipositive claims, early", "multipositive", relation="claims", early=True),
)


CROSS_RIVALS = (
    Row("infonce"),
    Row("infonce, both", directions="both"),
    Row("const 0.1", "debiased", 0.1),
    Row("const 0.2", "debiased", 0.2),
)
"""What `cross` is held against, the best of them in each metric."""

_CROSS = Row("cross", "multipositive", relation="claims", directions="both", image_anchor="own")
CROSS = (
    *CROSS_RIVALS,
    Row("const 0.1, known", "debiased", 0.1, relation="claims"),
    Row("pll, floor", "debiased", "pll", "floor"),
    Row("relations", "multipositive", relation="claims"),
    Row("relations, both", "multipositive", relation="claims", directions="both"),
    _CROSS,
    Row("const 0.1, both", "debiased", 0.1, directions="both"),
    Row("const 0.1, both, own", "debiased", 0.1, directions="both", image_anchor="own"),
    Row("pll, floor, both, own", "debiased", "pll", "floor", directions="both", image_anchor="own"),
    replace(_CROSS, name="cross, shuffled", relation="shuffled"),
    replace(_CROSS, name="cross, dropped", relation="dropped"),
    replace(_CROSS, name="cross, invented", relation="invented"),
)
"""Rows of the confirmatory round on the phantom; the last three are controls of the reader."""

PLACED_RIVALS = (Row("infonce, both", directions="both"), Row("const 0.1", "debiased", 0.1))
"""What `cross, place` is held against on pixels, the better of them in each metric and seed."""
PLACED = replace(_CROSS, name="cross, place", places="anatomy")
PIXELS_FIRST = (
    PLACED,
    _CROSS,
    *PLACED_RIVALS,
    Row("relations, both", "multipositive", relation="claims", directions="both"),
    replace(PLACED, name="cross, place, shuffled", relation="shuffled"),
    replace(PLACED, name="cross, place, places shuffled", places="shuffled"),
    Row("infonce, both, place", directions="both", places="anatomy"),
    Row("infonce"),
)
"""Rows of the confirmatory round on pixels that its bars need."""
PIXELS_THEN = (
    replace(PLACED, name="cross, place, words alone", places="words"),
    Row("const 0.2", "debiased", 0.2),
    Row("const 0.1, known", "debiased", 0.1, relation="claims"),
    Row("relations", "multipositive", relation="claims"),
    Row("pll, floor", "debiased", "pll", "floor"),
    replace(PLACED, name="cross, place, dropped", relation="dropped"),
    replace(PLACED, name="cross, place, invented", relation="invented"),
)
"""Its other rows: rivals, usual places off, and a worse reader."""

ASSERTING = (PLACED, replace(PLACED, name="cross, place, asserting", relation="asserting"))
"""Rows of the round on relations of asserting sentences alone: a sentence that denies says what
most reports say, so that nearly every image is its positive or leaves its loss."""


def factorial() -> tuple[Row, ...]:
    """Give every row of the phantom once, main ones first: eta x positives x floor, and others."""
    first: dict[tuple[object, ...], Row] = {}
    for row in (*MAIN, *BASELINES, *EARLY, *_crossed()):
        first.setdefault(_settings(row), row)
    return tuple(first.values())


def _crossed() -> Iterator[Row]:
    sources: tuple[str | float, ...] = ("pll", "frequency", "oracle", *CONSTANTS)
    for source in sources:
        for relation in ("none", "claims"):
            for floor in FLOORS:
                name = source if isinstance(source, str) else f"const {source}"
                name += ", known" if relation == "claims" else ""
                name += "" if floor == "fallback" else f", {floor}"
                yield Row(name, "debiased", source, floor, relation)
    yield Row("const 0.3", "debiased", 0.3)  # so that the best constant is a strong rival
    yield Row("const 0.1, known truth", "debiased", 0.1, relation="truth")
    for control in CONTROLS:
        yield Row(control, "debiased", control)
        yield Row(f"{control}, floor", "debiased", control, "floor")


def _settings(row: Row) -> tuple[object, ...]:
    return dataclasses.astuple(dataclasses.replace(row, name=""))
