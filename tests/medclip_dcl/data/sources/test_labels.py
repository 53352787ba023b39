"""Labels: every form says the same, what is not a label is refused, and no value is printed."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.tables import read_table
from medclip_dcl.data.manifest import (
    STUDY_LABELS,
    label_format,
    label_names,
    read_labels,
)
from medclip_dcl.data.selection import write_manifest
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.labels import label_table
from medclip_dcl.data.sources.open_i import read_headings, read_open_i
from medclip_dcl.data.sources.readers import read_source
from medclip_dcl.text.labeler.lexicon import LABELS

TEST_DATA = os.environ.get("TEST_DATA")
needs_data = pytest.mark.skipif(not TEST_DATA, reason="TEST_DATA names no folder of real data")

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


def labels_of(
    root: Path, added: dict[str, list[Any]], mapped: object, **settings: object
) -> dict[str, dict[str, int]]:
    """Labels of the manifest of a table of four studies, without what is blank."""
    values: dict[str, list[Any]] = {"study": [f"s{row}" for row in range(1, 5)], "who": [*"abcd"]}
    values |= {"text": [f"Report {row}." for row in range(1, 5)]} | added
    pq.write_table(pa.table(values), root / "t.parquet")
    names: dict[str, object] = {"study_id": "study", "subject_id": "who", "report": "text"}
    names |= {"labels": mapped} if mapped else {}
    table = {"kind": "table", "table": "t.parquet", "columns": names}
    return manifest_labels(root, table | settings)


def manifest_labels(root: Path, settings: dict[str, object]) -> dict[str, dict[str, int]]:
    source = SourceConfig.model_validate({"max_reject_share": 1.0, "root": str(root)} | settings)
    (root / "manifest").mkdir(exist_ok=True)
    write_manifest(root / "manifest", read_source(source, Path), source)
    rows = read_table(root / "manifest", label_format(source.findings)).to_pylist()
    return {
        row.pop("study_id"): {name: code for name, code in row.items() if code is not None}
        for row in rows
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(tmp_path: Path, form: str) -> None:
    found = labels_of(tmp_path, *FORMS[form])
    assert {s: {n: row[n] for n in CODES} for s, row in found.items()} == WANT
    assert {name for row in found.values() for name in row} <= {*CODES, "No Finding"}


def test_a_table_of_its_own_is_joined_by_ids_and_may_name_images(tmp_path: Path) -> None:
    # CheXpert Plus: JSON lines by path of the image, CheXpert's names, null where not mentioned
    codes = {"1": 1.0, "2": None, "3": -1.0, "unknown": 1.0}
    rows = [{"path": f"a/{name}.png", "Edema": code} for name, code in codes.items()]
    (tmp_path / "labels.json").write_text("\n".join(json.dumps(row) for row in rows))
    files = {"file": [f"a/{row}.png" for row in range(1, 5)]}
    named = {"labels": "labels.json", "label_id": "path"}
    columns = {"image_id": "file", "study_id": "study", "subject_id": "who", "report": "text"}
    columns["path"] = "file"
    (tmp_path / "a").mkdir()
    for row in range(1, 5):
        (tmp_path / f"a/{row}.png").write_bytes(b"x" * 2000)
    found = labels_of(tmp_path, files, None, columns=columns, **named)
    assert found == {"s1": {"Edema": 1}, "s3": {"Edema": -1}}


def test_ids_of_studies_and_of_images_are_not_confused(tmp_path: Path) -> None:
    """Both are numbered from 1, and two images belong to each study."""
    lines = ["image,study,who,file,text"]
    for image in range(1, 5):
        (tmp_path / f"{image}.png").write_bytes(b"x" * 2000)
        study = (image + 1) // 2
        lines.append(f"{image},{study},p{study},{image}.png,Report {study}.")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    (tmp_path / "labels.csv").write_text("id,Edema\n1,1\n2,0\n")
    columns = {"image_id": "image", "study_id": "study", "subject_id": "who", "path": "file"}
    settings: dict[str, object] = {"kind": "table", "table": "t.csv", "labels": "labels.csv"}
    settings |= {"label_id": "id", "columns": columns | {"report": "text"}}
    with pytest.raises(ConfigError, match=r"has 1 ids .* say which .* \{study: id\} or \{image"):
        manifest_labels(tmp_path, settings)
    by_study = manifest_labels(tmp_path, settings | {"label_id": {"study": "id"}})
    assert by_study == {"1": {"Edema": 1}, "2": {"Edema": 0}}
    by_image = manifest_labels(tmp_path, settings | {"label_id": {"image": "id"}})
    assert by_image == {"1": {"Edema": 1}}


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (["S1", "S2"], r"; 2 of 2 would be found but for case"),
        (["x_a", "y"], r"in column 'study_id'; set source\.label_id"),
    ],
)
def test_where_no_id_joins_the_message_says_what_would(tmp_path, ids, words):
    lines = "".join(f"{name},1\n" for name in ids)
    (tmp_path / "l.csv").write_text(f"study_id,Edema\n{lines}")
    with pytest.raises(StudyError, match=f"{len(ids)} rows, of which 0 have a study.*{words}"):
        labels_of(tmp_path, {}, None, labels="l.csv")


def test_ids_of_labels_are_stripped_and_those_of_no_study_counted(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text('study_id;Edema\n s1\t;1,0\n="s2";0,0\ns9;1,0\n')
    assert labels_of(tmp_path, {}, None, labels="l.csv") == {"s1": {"Edema": 1}, "s2": {"Edema": 0}}
    columns = {"study_id": "study", "subject_id": "who", "report": "text"}
    config = SourceConfig(
        kind="table", root=str(tmp_path), table="t.parquet", columns=columns, labels="l.csv"
    )
    assert read_source(config, Path).raw.counts["labels_without_study"] == 1


def test_images_without_reports_keep_their_labels(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,who,class\n1.png,a,bacterial\n2.png,b,normal\n")
    for row in (1, 2):
        (tmp_path / f"{row}.png").write_bytes(b"x" * 2000)
    columns = {"path": "file", "image_id": "file", "subject_id": "who", "labels": "class"}
    names = {"Pneumonia": ["bacterial", "viral"], "No Finding": ["normal"]}
    settings = {"kind": "table", "table": "t.csv", "columns": columns, "label_names": names}
    assert manifest_labels(tmp_path, settings) == {
        "1.png": {"Pneumonia": 1, "No Finding": 0},
        "2.png": {"Pneumonia": 0, "No Finding": 1},
    }


def test_rows_of_a_study_are_united_by_what_they_show() -> None:
    rows = [{"Edema": 0}, {"Edema": -1, "Fracture": 0}, {}, {"Edema": 1}, {"Edema": -1}]
    table = label_table("aabba", rows).to_pylist()
    assert [(row["study_id"], row["Edema"], row["Fracture"]) for row in table] == [
        ("a", -1, 0),
        ("b", 1, None),
    ]
    rows = [{"No Finding": 1}, {"No Finding": 0, "Edema": 1}]
    assert label_table("aa", rows)["No Finding"].to_pylist() == [0]


def test_all_that_is_not_a_label_is_counted_without_being_printed(tmp_path: Path) -> None:
    values = {"edema": ["1", "2", "Jane Roe", "Jane Roe"], "fluid": ["0", "0.5", "0.5", ""]}
    with pytest.raises(StudyError, match=r"labels of t\.parquet") as caught:
        labels_of(tmp_path, values, CODES)
    for words in (
        "'edema' in 3 rows (2 different), first in row 1",
        "'fluid' in 2 rows (1 different), first in row 1",
    ):
        assert words in str(caught.value)
    assert not any(word in str(caught.value) for word in ("Jane", "0.5"))


def test_what_names_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"no column \['edema'\]"):
        labels_of(tmp_path, {}, {"Edema": "edema"})
    with pytest.raises(StudyError, match=r"no name of \['Edema'\] in any row"):
        labels_of(tmp_path, {"l": list("abcd")}, "l", label_names={"Edema": ["oedema"]})
    with pytest.raises(StudyError, match=r"no name of \['Atelectasis'"):
        labels_of(tmp_path, {"l": list("abcd")}, "l")
    (tmp_path / "l.csv").write_text("study_id,Edema\ns9,1\n")
    with pytest.raises(StudyError, match="0 have a study"):
        labels_of(tmp_path, {}, None, labels="l.csv")
    (tmp_path / "l.csv").write_text("study_id,oedema\ns1,1\n")
    with pytest.raises(StudyError, match=r"findings, only \['study_id', 'oedema'\]"):
        labels_of(tmp_path, {}, None, labels="l.csv")


@pytest.mark.parametrize(
    ("headings", "labels"),
    [
        (["normal"], dict.fromkeys(LABELS, 0) | {"No Finding": 1}),
        ([], {}),
        (["No Indexing"], {}),
        (
            ["Cardiomegaly/borderline", "Scoliosis"],
            {
                "Cardiomegaly": -1,
                "Edema": 0,
                "No Finding": None,
                "Enlarged Cardiomediastinum": None,
            },
        ),
        (
            ["Pneumonia/upper lobe/left", "Catheters, Indwelling/right"],
            {"Pneumonia": 1, "Support Devices": 1, "No Finding": 0, "Lung Opacity": None},
        ),
        (["Cardiac Shadow/mild/enlarged"], {"Cardiomegaly": 1}),
        (["Cardiac Shadow/left"], {"Cardiomegaly": 0}),
        (["Thickening/lung", "Thickening/pleura/left"], {"Pleural Other": 1}),
        (["Hydropneumothorax"], {"Pneumothorax": 1, "Pleural Effusion": -1}),
    ],
)
def test_headings_are_read_as_labels(headings: list[str], labels: dict[str, int | None]) -> None:
    found = read_headings(headings)
    assert {name: found.get(name) for name in labels} == labels
    assert bool(found) == bool(labels)


@needs_data
def test_open_i_s_headings_agree_with_other_people_s_labels(tmp_path: Path) -> None:
    """Kappa of each finding with the labels that NegBio's authors made of the same headings."""
    path = Path(TEST_DATA or "") / "openi" / "reports.jsonl"
    reports = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with (tmp_path / "indiana_reports.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["uid", "MeSH", "findings", "impression"])
        writer.writerows(
            [row["uid"], ";".join(row["mesh"]), row["findings"], row["impression"]]
            for row in reports
        )
    table = read_open_i(tmp_path).labels
    assert table.num_rows > 2300
    ours = {row["study_id"]: row for row in table.to_pylist()}
    names = {"Effusion": "Pleural Effusion", "normal": "No Finding"}
    for theirs in ("Atelectasis", "Cardiomegaly", "Edema", "Pneumothorax", *names):
        finding = names.get(theirs, theirs)
        pairs = [
            (ours[f"CXR{row['uid']}"][finding], row["gold"][theirs])
            for row in reports
            if f"CXR{row['uid']}" in ours
        ]
        both = np.array([pair for pair in pairs if pair[0] in {0, 1}])
        chance = sum(np.mean(both[:, 0] == code) * np.mean(both[:, 1] == code) for code in (0, 1))
        agree = np.mean(both[:, 0] == both[:, 1])
        assert (agree - chance) / (1 - chance) > 0.85, (finding, agree)


def test_a_source_names_its_own_findings_and_one_name_may_stand_for_two(tmp_path):
    added = {"found": [["Tuberculosis"], ["hernia", "nodule"], [], None]}
    own = {"findings": ["Nodule", "Tuberculosis", "Hernia"]}
    assert labels_of(tmp_path, added, "found", **own) == {
        "s1": {"Nodule": 0, "Tuberculosis": 1, "Hernia": 0},
        "s2": {"Nodule": 1, "Tuberculosis": 0, "Hernia": 1},
        "s3": {"Nodule": 0, "Tuberculosis": 0, "Hernia": 0},
    }
    names = {"Pneumothorax": ["Hydropneumothorax"], "Pleural Effusion": ["hydropneumothorax"]}
    column = {"found": ["hydropneumothorax", "other", "", "No Indexing"]}
    found = labels_of(tmp_path, column, "found", label_names=names)
    assert found == {"s1": dict.fromkeys(names, 1), "s2": dict.fromkeys(names, 0)}


def test_labels_are_read_by_the_findings_of_their_manifest(tmp_path: Path) -> None:
    added = {"tb": ["1", "0", "", "1"], "nod": ["0", "", "1", "0"]}
    own = {"findings": ["Nodule", "Tuberculosis"]}
    labels_of(tmp_path, added, {"Tuberculosis": "tb", "Nodule": "nod"}, **own)
    files: dict[str, dict[str, Any]] = {STUDY_LABELS.file: {}}
    listed = Artifact(tmp_path / "manifest", "manifest", 2, {}, "", files, "", {}, {})
    table = read_labels(listed)
    assert label_names(table) == ("Nodule", "Tuberculosis")
    assert table["Tuberculosis"].to_pylist() == [1, 0, None, 1]


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
