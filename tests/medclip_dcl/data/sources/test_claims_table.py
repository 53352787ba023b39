"""Claims of other readers: a table of sentences or of reports, in place of our own labeler."""

from pathlib import Path

import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR, encode_claims, relation_matrix
from medclip_dcl.text.labeler.labels import FINDINGS, GivenClaims, ReportLabels, unite
from medclip_dcl.text.sentences import text_key
from pipelines.data import read_claims_table


def read(folder: Path, *lines: str) -> GivenClaims:
    (folder / "claims.csv").write_text("\n".join(lines))
    return read_claims_table(folder / "claims.csv")


def says(
    asserted: dict[str, str] | None = None, negated: str = "", uncertain: str = "", normal: int = 0
) -> ReportLabels:
    """Claims about findings of one word each, asserted with their sides."""
    sided = {name: frozenset(sides.split()) for name, sides in (asserted or {}).items()}
    others = frozenset(negated.split()), frozenset(uncertain.split())
    return ReportLabels(sided, *others, normal=bool(normal))


def test_rows_of_a_sentence_are_united_and_reports_may_stand_in_one_table_with_sentences(tmp_path):
    found = read(
        tmp_path,
        "text,finding,state,side",
        "Left base  scar; effusion on both sides.,Scar,present,left",
        "Left base scar; effusion on both sides.,Pleural Effusion,1,both",
        "Maybe a nodule.,Nodule,uncertain,",
        "Maybe a nodule.,Scar,0,",
        "All is well.,No Finding,present,",
        "Comparison: none.,,,",
    )
    assert found.reports is None
    both = says({"Scar": "left", "Pleural Effusion": "left right"})
    assert found.sentences == {
        text_key("Left base scar; effusion on both sides."): both,
        text_key("Maybe a nodule."): says(negated="Scar", uncertain="Nodule"),
        text_key("All is well."): says(normal=1),
        text_key("Comparison: none."): says(),
    }
    found = read(
        tmp_path, "study_id,text,finding,state", ",Scar.,Scar,1", "s1,,Scar,1", "s1,,Nodule,-1"
    )
    assert found.sentences == {text_key("Scar."): says({"Scar": ""})}
    assert found.reports == {"s1": says({"Scar": ""}, uncertain="Nodule")}


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("finding,state", "Scar,1", "neither column text nor study_id"),
        ("text,state", "Scar.,1", r"no column \['finding'\]"),
        ("text,finding,state", "Scar.,Scar,perhaps", "row 0 of claims.csv has no usable state"),
        ("text,finding,state,side", "Scar.,Scar,1,up", "row 0 of claims.csv has no usable state"),
        ("text,study_id,finding,state", "Scar.,s1,Scar,1", "names 2 of text and study_id"),
        ("text,study_id,finding,state", ",,Scar,1", "names 0 of text and study_id"),
    ],
)
def test_rows_that_say_nothing_usable_are_refused(tmp_path, header, row, words) -> None:
    with pytest.raises(StudyError, match=words) as error:
        read(tmp_path, header, row)
    assert "perhaps" not in str(error.value)


def test_relations_know_findings_beyond_our_own_and_uniting_keeps_the_strongest_word():
    codes = encode_claims([says({"Scar": ""}), says(negated="Scar"), says()], (*FINDINGS, "Scar"))
    assert relation_matrix(codes, codes).tolist() == [
        [SAME, DIFFERENT, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR],
        [DIFFERENT, DIFFERENT, DIFFERENT],
    ]
    asserted = says({"Edema": "left"})
    hedged = says(negated="Scar", uncertain="Edema", normal=1)
    denied = says(negated="Edema", uncertain="Scar", normal=1)
    assert unite([asserted, hedged, denied]) == says({"Edema": "left"}, uncertain="Scar")
    calm = says(negated="Edema", normal=1)
    assert unite([calm, calm]) == calm
