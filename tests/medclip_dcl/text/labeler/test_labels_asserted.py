"""Asserted findings as the tables keep them."""

from pathlib import Path

import pytest

from medclip_dcl.text.labeler.labels import join_sides, split_sides, write_claims

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


def test_the_summary_counts_sentences_as_they_occur(tmp_path: Path) -> None:
    said = {"a": "No edema.", "b": "Thank you.", "c": "The lungs are clear."}
    rows = [
        {"study_id": study, "text_key": key, "text": said[key]}
        for study, key in (("1", "a"), ("1", "b"), ("2", "b"), ("3", "c"), ("3", "a"), ("3", "a"))
    ]
    summary = write_claims(tmp_path, rows)
    assert (summary["sentences"], summary["distinct_sentences"], summary["reports"]) == (6, 3, 3)
    assert summary["share_with_claims"] == round(4 / 6, 4)
    assert summary["normal_reports"] == 1
    found = {"asserted": 0, "negated": 2, "uncertain": 0}
    assert summary["reports_per_finding"]["Edema"] == found
    assert write_claims(tmp_path, [])["share_with_claims"] == 0
