"""Claims of other readers: a table of sentences or of reports, in place of our own labeler."""

from pathlib import Path

import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR, encode_claims, relation_matrix
from medclip_dcl.text.labeler.labels import FINDINGS, ReportLabels, unite
from medclip_dcl.text.sentences import text_key
from pipelines.data import read_claims_table


def table(folder: Path, text: str) -> Path:
    path = folder / "claims.csv"
    path.write_text(text)
    return path


def test_rows_of_a_sentence_are_united_and_reports_may_stand_in_one_table_with_sentences(tmp_path):
    found = read_claims_table(
        table(
            tmp_path,
            "text,finding,state,side\n"
            "Left base  scar; effusion on both sides.,Scar,present,left\n"
            "Left base scar; effusion on both sides.,Pleural Effusion,1,both\n"
            "Maybe a nodule.,Nodule,uncertain,\n"
            "Maybe a nodule.,Scar,0,\n"
            "All is well.,No Finding,present,\n"
            "Comparison: none.,,,\n",
        )
    )
    assert found.reports is None
    assert found.sentences == {
        text_key("Left base scar; effusion on both sides."): ReportLabels(
            {"Scar": frozenset({"left"}), "Pleural Effusion": frozenset({"left", "right"})},
            frozenset(), frozenset(), normal=False,
        ),
        text_key("Maybe a nodule."): ReportLabels(
            {}, frozenset({"Scar"}), frozenset({"Nodule"}), normal=False
        ),
        text_key("All is well."): ReportLabels({}, frozenset(), frozenset(), normal=True),
        text_key("Comparison: none."): ReportLabels({}, frozenset(), frozenset(), normal=False),
    }  # fmt: skip
    lines = "study_id,text,finding,state\n,Scar.,Scar,1\ns1,,Scar,1\ns1,,Nodule,-1\n"
    found = read_claims_table(table(tmp_path, lines))
    assert found.sentences is not None
    assert found.reports == {
        "s1": ReportLabels({"Scar": frozenset()}, frozenset(), frozenset({"Nodule"}), normal=False)
    }


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("finding,state\nScar,1\n", "neither column text nor study_id"),
        ("text,state\nScar.,1\n", r"no column \['finding'\]"),
        ("text,finding,state\nScar.,Scar,perhaps\n", "row 0 of claims.csv has no usable state"),
        ("text,finding,state,side\nScar.,Scar,1,up\n", "row 0 of claims.csv has no usable state"),
        ("text,study_id,finding,state\nScar.,s1,Scar,1\n", "names 2 of text and study_id"),
        ("text,study_id,finding,state\n,,Scar,1\n", "names 0 of text and study_id"),
    ],
)
def test_rows_that_say_nothing_usable_are_refused(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(StudyError, match=words) as error:
        read_claims_table(table(tmp_path, lines))
    assert "perhaps" not in str(error.value)


def test_relations_know_findings_beyond_our_own_and_uniting_keeps_the_strongest_word():
    names = (*FINDINGS, "Scar")
    scar = ReportLabels({"Scar": frozenset()}, frozenset(), frozenset(), normal=False)
    none = ReportLabels({}, frozenset({"Scar"}), frozenset(), normal=False)
    silent = ReportLabels({}, frozenset(), frozenset(), normal=False)
    codes = encode_claims([scar, none, silent], names)
    assert relation_matrix(codes, codes).tolist() == [
        [SAME, DIFFERENT, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR],
        [DIFFERENT, DIFFERENT, DIFFERENT],
    ]
    asserted = ReportLabels({"Edema": frozenset({"left"})}, frozenset(), frozenset(), normal=False)
    hedged = ReportLabels({}, frozenset({"Scar"}), frozenset({"Edema"}), normal=True)
    denied = ReportLabels({}, frozenset({"Edema"}), frozenset({"Scar"}), normal=True)
    assert unite([asserted, hedged, denied]) == ReportLabels(
        {"Edema": frozenset({"left"})}, frozenset(), frozenset({"Scar"}), normal=False
    )
    calm = ReportLabels({}, frozenset({"Edema"}), frozenset(), normal=True)
    assert unite([calm, calm]) == calm
