"""Labels in every form, reports made of them, and claims of other readers."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.labels import label_table
from medclip_dcl.data.sources.readers import read_source
from medclip_dcl.losses.relations import DIFFERENT, SAME, UNCLEAR, encode_claims, relation_matrix
from medclip_dcl.text.labeler.labels import FINDINGS, GivenClaims, ReportLabels, unite
from medclip_dcl.text.sentences import text_key
from pipelines.data import claims_of_template, read_claims_table

WANT = {
    "s1": {"Edema": 1, "Pleural Effusion": 0},
    "s2": {"Edema": 0, "Pleural Effusion": 1},
    "s3": {"Edema": 0, "Pleural Effusion": 0},
}
"""What every table below says; of s4 none says anything."""
CODES = {"Edema": "edema", "Pleural Effusion": "fluid"}
FORMS = {
    "numbers": ({"edema": ["1", "0", "0,000", ""], "fluid": ["0", " 1.00", "0.0", "nan"]}, CODES),
    "words": (
        {"edema": ["Positive", "absent", "no", ""], "fluid": ["negative", "yes", "No", "None"]},
        CODES,
    ),
    "booleans": ({"edema": [True, False, False, None], "fluid": [False, True, False, None]}, CODES),
    "integers": ({"edema": [1, 0, 0, None], "fluid": [0.0, 1.0, 0.0, None]}, CODES),
    "bars": ({"found": ["Edema", "Effusion|Hernia", "No Finding", ""]}, "found"),
    "commas": ({"found": ["edema, hernia", "Pleural Effusion", "Normal", "nan"]}, "found"),
    "python": ({"found": ["['Edema', 'Hernia']", '["effusion"]', "[]", None]}, "found"),
    "lists": ({"found": [["Edema"], ["Hernia", "Pleural_Effusion"], [], None]}, "found"),
    "fields": (
        {"gold": [{"e": 1, "f": 0}, {"e": 0, "f": 1}, {"e": 0, "f": 0}, {"e": None, "f": None}]},
        {"Edema": "gold.e", "Pleural Effusion": "gold.f"},
    ),
}


def labels_of(root: Path, added: dict[str, list[Any]], mapped: object, **settings: object):
    """Read the labels of a table of four studies."""
    values = {"study": ["s1", "s2", "s3", "s4"], "who": [*"abcd"], "text": ["A report."] * 4}
    pq.write_table(pa.table(values | added), root / "t.parquet")
    columns = {"study_id": "study", "subject_id": "who", "report": "text"}
    columns |= {"labels": mapped} if mapped else {}
    return read(root, {"table": "t.parquet", "columns": columns} | settings)


def read(root: Path, settings: dict[str, Any]) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Labels of a source, without what is blank, and what was counted."""
    raw = read_source(SourceConfig(kind="table", root=str(root), **settings), Path).raw
    rows = {row.pop("study_id"): row for row in raw.labels.to_pylist()}
    labels = {
        study: {name: code for name, code in row.items() if code is not None}
        for study, row in rows.items()
    }
    return labels, raw.counts


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(tmp_path: Path, form: str) -> None:
    labels, _ = labels_of(tmp_path, *FORMS[form])
    assert {s: {n: row[n] for n in CODES} for s, row in labels.items()} == WANT
    assert {name for row in labels.values() for name in row} <= {*CODES, "No Finding"}


def test_a_table_of_its_own_is_joined_by_ids_and_may_name_images(tmp_path: Path) -> None:
    # CheXpert Plus: JSON lines by path of the image, CheXpert's names, null where not mentioned
    codes = {" a/1.png\t": 1.0, "a/2.png": None, "a/3.png": -1.0, "a/unknown.png": 1.0}
    rows = [json.dumps({"path": path, "Edema": code}) for path, code in codes.items()]
    (tmp_path / "labels.json").write_text("\n".join(rows))
    columns = {"image_id": "file", "study_id": "study", "subject_id": "who", "report": "text"}
    settings = {"columns": columns | {"path": "file"}, "labels": "labels.json", "label_id": "path"}
    files = {"file": [f"a/{n}.png" for n in range(1, 5)]}
    labels, counts = labels_of(tmp_path, files, None, **settings)
    assert labels == {"s1": {"Edema": 1}, "s3": {"Edema": -1}}
    assert counts["labels_without_study"] == 1


def test_class_labels_in_a_table_of_their_own_are_their_names(tmp_path: Path) -> None:
    features = {"Edema": {"_type": "ClassLabel", "names": ["yes", "no"]}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"id": ["s1", "s2", "s3"], "Edema": [0, 1, -1]})
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "labels.parquet")
    labels, _ = labels_of(tmp_path, {}, None, labels="labels.parquet", label_id="id")
    assert labels == {"s1": {"Edema": 1}, "s2": {"Edema": 0}}


def test_ids_of_studies_and_of_images_are_not_confused(tmp_path: Path) -> None:
    """Both are numbered from 1, and two images belong to each study."""
    rows = "1,1,p1,1.png,A\n2,1,p1,2.png,A\n3,2,p2,3.png,B\n4,2,p2,4.png,B\n"
    (tmp_path / "t.csv").write_text(f"image,study,who,file,text\n{rows}")
    (tmp_path / "labels.csv").write_text("id,Edema\n1,1\n2,0\n")
    columns = {"image_id": "image", "study_id": "study", "subject_id": "who", "path": "file"}
    settings: dict[str, object] = {"table": "t.csv", "labels": "labels.csv", "label_id": "id"}
    settings |= {"columns": columns | {"report": "text"}}
    with pytest.raises(ConfigError, match=r"has 1 ids .* say which .* \{study: id\} or \{image"):
        read(tmp_path, settings)
    by_study, _ = read(tmp_path, settings | {"label_id": {"study": "id"}})
    assert by_study == {"1": {"Edema": 1}, "2": {"Edema": 0}}
    by_image, _ = read(tmp_path, settings | {"label_id": {"image": "id"}})
    assert by_image == {"1": {"Edema": 1}}


def test_rows_of_a_study_are_united_by_what_they_show() -> None:
    rows = [{"Edema": 0}, {"Edema": -1, "Fracture": 0}, {}, {"Edema": 1}, {"Edema": -1}]
    table = label_table("aabba", rows).to_pylist()
    codes = {row["study_id"]: (row["Edema"], row["Fracture"]) for row in table}
    assert codes == {"a": (-1, 0), "b": (1, None)}
    rows = [{"No Finding": 1}, {"No Finding": 0, "Edema": 1}]
    assert label_table("aa", rows)["No Finding"].to_pylist() == [0]


def test_all_that_is_not_a_label_is_counted_without_being_printed(tmp_path: Path) -> None:
    values = {"edema": ["1", "2", "Jane Roe", "Jane Roe"], "fluid": ["0", "0.5", "0.5", ""]}
    with pytest.raises(StudyError, match=r"labels of t\.parquet") as caught:
        labels_of(tmp_path, values, CODES)
    message = str(caught.value)
    assert "'edema' in 3 rows (2 different), first in row 1" in message
    assert "'fluid' in 2 rows (1 different), first in row 1" in message
    assert not any(word in message for word in ("Jane", "0.5"))


@pytest.mark.parametrize(
    ("mapped", "names", "table", "words"),
    [
        ({"Edema": "edema"}, {}, "", r"no column \['edema'\]"),
        ("l", {"Edema": ["oedema"]}, "", r"no name of \['Edema'\] in any row"),
        ("l", {}, "", r"no name of \['Atelectasis'"),
        (
            None,
            {},
            "study_id,Edema\nS1,1\nS2,1\n",
            "2 rows, .* 0 have a .*; 2 of 2 would .* case",
        ),
        (None, {}, "study_id,Edema\nx_a,1\ny,1\n", r"0 have .* 'study_id'; set source\.label_id"),
        (None, {}, "study_id,oedema\ns1,1\n", r"findings, only \['study_id', 'oedema'\]"),
    ],
)
def test_labels_of_no_finding_or_of_no_study_are_refused(tmp_path, mapped, names, table, words):
    (tmp_path / "l.csv").write_text(table)
    own_table = {"labels": "l.csv"} if table else {}
    with pytest.raises(StudyError, match=words):
        labels_of(tmp_path, {"l": list("abcd")}, mapped, label_names=names, **own_table)


def test_a_source_names_its_own_findings_and_names_are_of_one_or_several(tmp_path):
    added = {"found": [["Tuberculosis"], ["hernia", "nodule"], [], None]}
    own = {"findings": ["Nodule", "Tuberculosis", "Hernia"]}
    labels, _ = labels_of(tmp_path, added, "found", **own)
    assert [list(row.items()) for row in labels.values()] == [
        [("Nodule", 0), ("Tuberculosis", 1), ("Hernia", 0)],
        [("Nodule", 1), ("Tuberculosis", 0), ("Hernia", 1)],
        [("Nodule", 0), ("Tuberculosis", 0), ("Hernia", 0)],
    ]
    both = ("Pneumothorax", "Pleural Effusion")
    names = {name: ["hydropneumothorax"] for name in both} | {"Pneumonia": ["bacterial", "viral"]}
    column = {"found": ["Hydropneumothorax", "viral", "", "No Indexing"]}
    labels, _ = labels_of(tmp_path, column, "found", label_names=names)
    assert labels == {
        "s1": {"Pneumonia": 0} | dict.fromkeys(both, 1),
        "s2": {"Pneumonia": 1} | dict.fromkeys(both, 0),
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"findings": ["Nodule", "Nodule"]}, "name of its own"),
        ({"findings": ["Nodule", " "]}, "name of its own"),
        ({"findings": ["study_id"]}, "column of ids"),
        ({"findings": ["Nodule"], "columns": {"labels": {"Edema": "e"}}}, r"\['Edema'\] are not"),
        ({"findings": ["Nodule"], "label_names": {"Edema": ["e"]}}, "it names Nodule"),
    ],
)
def test_findings_have_names_of_their_own(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SourceConfig.model_validate(settings)


# Reports made of labels

ROWS = """\
patient,file,Mass,Hernia
a,0.png,1,0
b,1.png,1,1
c,2.png,0,0
d,3.png,0,
e,4.png,-1,0
"""
SHORT = "{finding} in the chest X-ray"
LONG = {"present": "There is a {finding}.", "absent": "There is no {finding}."}
FAULTY = ("a chest X-ray", {"absent": "No {finding}."}, {"present": "{finding}", "absent": "none"})


def source(root: Path, template: Any, **changes: Any) -> SourceConfig:
    columns = {"subject_id": "patient", "path": "file"}
    columns |= {"labels": {"Mass": "Mass", "Hernia": "Hernia"}}
    (root / "table.csv").write_text(ROWS)
    tree = {"kind": "table", "root": str(root), "table": "table.csv", "template": template}
    tree |= {"columns": columns, "findings": ["Mass", "Hernia", "Fracture"]} | changes
    return SourceConfig.model_validate(tree)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (SHORT, ["Mass in the chest X-ray.",
                 "Mass in the chest X-ray. Hernia in the chest X-ray.",
                 "No finding in the chest X-ray.", "", ""]),
        (LONG, ["There is a Mass. There is no Hernia.", "There is a Mass. There is a Hernia.",
                "There is no Mass. There is no Hernia.", "There is no Mass.",
                "There is no Hernia."]),
        ({**LONG, "absent": "", "none": "Normal lungs."},
         ["There is a Mass.", "There is a Mass. There is a Hernia.", "Normal lungs.", "", ""]),
    ],
)  # fmt: skip
def test_present_absent_and_no_findings_are_said_and_blank_ones_are_not(template, said, tmp_path):
    raw = read_source(source(tmp_path, template), Path).raw
    assert [study.report.findings for study in raw.studies] == said
    assert [study.subject_id for study in raw.studies] == ["a", "b", "c", "d", "e"]
    assert raw.has_reports


def test_sentences_claim_what_they_were_made_of_whatever_a_labeler_knows(tmp_path):
    claims = claims_of_template(source(tmp_path, {**LONG, "none": "Normal lungs."})).sentences
    assert claims[text_key("There is a Hernia.")].asserted == {"Hernia": frozenset()}
    assert claims[text_key("There is no Hernia.")].negated == {"Hernia"}
    assert claims[text_key("Normal lungs.")].normal


@pytest.mark.parametrize(
    ("template", "labels", "words"),
    [
        *((template, {"labels": "Mass"}, r"needs \{finding\}") for template in FAULTY),
        (SHORT, {}, "makes reports of labels, and there are none"),
        (SHORT, {"report": "Mass"}, "this source has reports; leave out"),
    ],
)
def test_a_template_needs_its_finding_and_labels_and_no_reports(tmp_path, template, labels, words):
    columns = {"subject_id": "patient", "path": "file"} | labels
    with pytest.raises((ValidationError, ConfigError), match=words):
        read_source(source(tmp_path, template, columns=columns), Path)


# Claims of other readers: of sentences or of reports, in place of our own labeler's


def read_claims(folder: Path, *lines: str) -> GivenClaims:
    (folder / "claims.csv").write_text("\n".join(lines))
    return read_claims_table(folder / "claims.csv")


def says(asserted=(), negated: str = "", uncertain: str = "", *, normal: bool = False):
    """Claims about findings of one word each, asserted with their sides."""
    sided = {name: frozenset(sides.split()) for name, sides in dict(asserted).items()}
    return ReportLabels(sided, frozenset(negated.split()), frozenset(uncertain.split()), normal)


def test_rows_of_a_sentence_are_united_and_reports_may_stand_in_one_table_with_sentences(tmp_path):
    claims = read_claims(
        tmp_path,
        "text,finding,state,side",
        "Left base  scar; effusion on both sides.,Scar,present,left",
        "Left base scar; effusion on both sides.,Pleural Effusion,1,both",
        "Maybe a nodule.,Nodule,uncertain,",
        "Maybe a nodule.,Scar,0,",
        "All is well.,No Finding,present,",
        "Comparison: none.,,,",
    )
    assert claims.reports is None
    both = says({"Scar": "left", "Pleural Effusion": "left right"})
    assert claims.sentences == {
        text_key("Left base scar; effusion on both sides."): both,
        text_key("Maybe a nodule."): says(negated="Scar", uncertain="Nodule"),
        text_key("All is well."): says(normal=True),
        text_key("Comparison: none."): says(),
    }
    claims = read_claims(
        tmp_path, "study_id,text,finding,state", ",Scar.,Scar,1", "s1,,Scar,1", "s1,,Nodule,-1"
    )
    assert claims.sentences == {text_key("Scar."): says({"Scar": ""})}
    assert claims.reports == {"s1": says({"Scar": ""}, uncertain="Nodule")}


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
        read_claims(tmp_path, header, row)
    assert "perhaps" not in str(error.value)


def test_relations_know_findings_beyond_our_own_and_uniting_keeps_the_strongest_word():
    codes = encode_claims([says({"Scar": ""}), says(negated="Scar"), says()], (*FINDINGS, "Scar"))
    assert relation_matrix(codes, codes).tolist() == [
        [SAME, DIFFERENT, DIFFERENT],
        [DIFFERENT, SAME, UNCLEAR],
        [DIFFERENT, DIFFERENT, DIFFERENT],
    ]
    asserted = says({"Edema": "left"})
    hedged = says(negated="Scar", uncertain="Edema", normal=True)
    denied = says(negated="Edema", uncertain="Scar", normal=True)
    assert unite([asserted, hedged, denied]) == says({"Edema": "left"}, uncertain="Scar")
    calm = says(negated="Edema", normal=True)
    assert unite([calm, calm]) == calm
