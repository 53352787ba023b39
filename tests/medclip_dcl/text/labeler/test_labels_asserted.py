"""Asserted findings as the tables keep them."""

import pytest

from medclip_dcl.text.labeler.labels import join_sides, split_sides

NONE = frozenset[str]()


@pytest.mark.parametrize(
    ("asserted", "entries"),
    [
        ({}, []),
        ({"Edema": NONE}, ["Edema"]),
        ({"Pleural Effusion": frozenset({"left"})}, ["Pleural Effusion|left"]),
        (
            {"Fracture": frozenset({"left", "right"}), "Edema": NONE},
            ["Edema", "Fracture|left", "Fracture|right"],
        ),
    ],
)
def test_sides_are_written_and_read_back(
    asserted: dict[str, frozenset[str]], entries: list[str]
) -> None:
    assert join_sides(asserted) == entries
    assert split_sides(entries) == asserted
