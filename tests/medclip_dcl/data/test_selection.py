"""Selection: what is used and a reason for each of the rest; splits by patient, and the summary."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest, records, selection
from medclip_dcl.data.records import BoxTable, ImageRecord, RawStudies, Reject, Source, Study, Text
from medclip_dcl.data.source_settings import SourceConfig

CONFIG = SourceConfig(max_reject_share=1.0)
NO_BOXES = BoxTable([], set(), 0)
HEAD = b"\n FINDINGS: "
LONGEST, POINTER = records.LONGEST_REPORT, "version https://git-lfs.github.com/spec/v1\n"
CLEAR = Text("Clear.", "", "")


def studies(tmp_path: Path, *images: ImageRecord, **more: object) -> RawStudies:
    """Studies of the patients p1 to p9, s1 to s9, all clear; the files of images are there."""
    for image in images:
        (tmp_path / image.path).write_bytes(b"image")
    reports = [Study(f"s{number}", f"p{number}", CLEAR) for number in range(1, 10)]
    return RawStudies(tmp_path, list(images), **{"studies": reports} | more)


def image(name: str, number: int, *, patient: int = 0, view: str = "PA") -> ImageRecord:
    """An image of study `sN` of patient `pN`, or of another patient."""
    return ImageRecord(name, f"s{number}", f"p{patient or number}", view, f"{name}.png")


def select_reports(root: Path, *reports: Study) -> selection.Selection:
    return selection.select(RawStudies(root, studies=[*reports], has_images=False), CONFIG)


def test_candidates_are_the_images_of_the_right_view_and_rows_that_named_none(tmp_path):
    raw = studies(
        tmp_path,
        image("d", 2),
        image("c", 1, view="pa"),
        image("b", 3, view="LL"),
        image("a", 4, view=""),
        image("f", 5, patient=6),
        image("e", 5, patient=4),
        image("c", 1),
        image("g", 7),
        rejects=[Reject("row-000007", "bad_id")],
    )
    chosen = selection.select(raw, CONFIG)
    assert [item.image_id for item in chosen.images] == ["c", "d", "g"]
    assert chosen.subjects == {"s1": "p1", "s2": "p2", "s5": "p5", "s7": "p7"}
    assert [tuple(item) for item in chosen.rejects] == [
        ("row-000007", "bad_id"),
        ("b", "lateral"),
        ("a", "no_view"),
        ("c", "duplicate_id"),
        ("f", "patient_conflict"),
        ("e", "patient_conflict"),
    ]
    assert (chosen.candidates, chosen.lost) == (7, 4)  # of nine rows, two are of another view
    alone = select_reports(tmp_path, *raw.studies)
    assert (alone.candidates, alone.lost, len(alone.texts)) == (9, 0, 9)


REPORTS = {  # of a file or of a table, and its findings or the reason to leave it out
    "lines": (HEAD + b"Clear.\r\nNo\reffusion.", "Clear.\nNo\neffusion."),
    "mark": (b"\xef\xbb\xbf" + HEAD + b"Clear.", "Clear."),
    "zero": (HEAD + b"Clear.\0", "not_utf8"),
    "long": (HEAD.ljust(LONGEST, b"a"), "a" * (LONGEST - len(HEAD))),
    "too long": (HEAD.ljust(LONGEST + 1, b"a"), "report_too_long"),
    "pointer": (b"../.git/annex/objects/x", "pointer_file"),
    "none": (None, "no_report"),
    "pointer in a section": (Text("", POINTER, ""), "pointer_file"),
    "blank sections": (Text(" ", "\n", ""), "empty_report"),
    "last paragraph": (Text("", "", "Clear."), ""),
}


@pytest.mark.parametrize(("content", "found"), REPORTS.values(), ids=REPORTS)
def test_a_report_is_text_or_a_reason(tmp_path, content: bytes | Text | None, found: str) -> None:
    if isinstance(content, bytes):
        (tmp_path / "s1.txt").write_bytes(content)
    report = content if isinstance(content, Text) else "s1.txt"
    chosen = select_reports(tmp_path, Study("s1", "p1", report), Study("s2", "p2", CLEAR))
    if "s1" in chosen.texts:
        assert chosen.texts["s1"].findings == found
    else:
        assert chosen.rejects == [Reject("s1", found)]
    assert chosen.texts["s2"] == CLEAR
    assert chosen.lost == len(chosen.rejects)


def test_a_blank_view_counts_as_frontal_where_it_is_asked_for_or_nothing_names_views(tmp_path):
    raw = studies(tmp_path, image("a", 1, view=""), image("b", 2, view="LL"))
    for settings, kept in (
        ({"frontal_views": ("AP", "PA", "")}, ["a"]),
        ({"kind": "table"}, ["a"]),
        ({"kind": "table", "columns": {"view": "side"}}, []),
    ):
        chosen = selection.select(raw, SourceConfig(**settings))
        assert [item.image_id for item in chosen.images] == kept


@pytest.mark.parametrize(("size", "found"), [(1024, ["pointer_file"]), (1025, [])])
def test_a_pointer_has_a_kibibyte_at_most(tmp_path: Path, size: int, found: list[str]) -> None:
    raw = studies(tmp_path, image("a", 1))
    (tmp_path / "a.png").write_bytes(POINTER.encode().ljust(size))
    assert [item.reason for item in selection.select(raw, CONFIG).rejects] == found


def test_the_reasons_of_what_is_lost_add_up_to_it(tmp_path: Path) -> None:
    rejects = [Reject("x", "bad_header"), Reject("y", "modality"), Reject("z", "modality")]
    raw = studies(tmp_path, image("a", 1), image("b", 2), image("b", 2), image("c", 3, view="LL"))
    raw = replace(raw, rejects=rejects, studies=raw.studies[:1])
    chosen = selection.select(raw, CONFIG)
    assert chosen.reasons == {"bad_header": 1, "duplicate_id": 1, "no_report": 1}
    assert (chosen.candidates, chosen.lost) == (4, chosen.reasons.total())
    words = (
        r"3 of 4 rows.*'no_report': 1.*; 3 others are not asked for .*: 2.*source\.max_reject_share"
        r" is 0\.5: correct the source, or set it to 0\.75"
    )
    half = SourceConfig(max_reject_share=0.5)
    with pytest.raises(StudyError, match=words):
        selection.write_manifest(tmp_path, Source(raw, NO_BOXES), half)
    assert (chosen.least_share, replace(chosen, candidates=7).least_share) == (0.75, 0.43)
    selection.require_few_rejects(chosen, chosen.least_share)
    blank = replace(raw, studies=[Study("s1", "p1", Text("", "", ""))], images=raw.images[:1])
    assert selection.select(blank, CONFIG).reasons == {"bad_header": 1, "empty_report": 1}


@pytest.mark.parametrize(
    ("rejects", "words"),
    [([Reject(name, "modality") for name in "yz"], "; 2 others .*'modality': 2.*"), ([], "")],
)
def test_a_source_without_images_and_reports_is_refused(tmp_path, rejects, words) -> None:
    source = Source(RawStudies(tmp_path, rejects=rejects), NO_BOXES)
    with pytest.raises(StudyError, match=f"no image or report that is asked for{words}; correct"):
        selection.write_manifest(tmp_path, source, CONFIG)


def test_splits_are_parts_of_a_hash_of_the_patient_unless_given_ones_or_boxes_overrule_it():
    splits = selection.assign_splits([f"p{number}" for number in range(200)], {}, set(), 0.25, 0.5)
    for name, split in splits.items():
        first = hashlib.sha256(f"split {name}".encode()).digest()[0]  # 256 equal parts
        assert split == ("test" if first < 128 else "validate" if first < 192 else "train")
    given = {"a": {"train"}, "b": {"train", "test"}, "c": {"validate", "train"}, "d": {"train"}}
    splits = selection.assign_splits("abcd", given, {"d"}, 0.0, 0.0)
    assert splits == {"a": "train", "b": "test", "c": "validate", "d": "test"}
    assert selection.assign_splits(["e"], {}, set(), 0.0, 0.0) == {"e": "train"}


def test_the_summary_counts_what_was_written(tmp_path: Path) -> None:
    box = dict.fromkeys(manifest.BOXES.schema.names, 1)
    box |= {"category": "edema", "phrase": "edema", "subject_id": "p1"}
    raw = studies(
        tmp_path,
        image("a", 1),
        image("b", 2),
        image("c", 3, view="LL"),
        splits={"p1": {"train"}, "p2": {"train"}, "p9": {"train", "test"}},
        by_patient=False,
        counts={"frames": 7},
        card={"name": "owner/set", "licence": "cc0"},
    )
    boxes = BoxTable([box | {"image_id": "a"}, box | {"image_id": "c"}], {"p1"}, unknown=4)
    assert selection.write_manifest(tmp_path, Source(raw, boxes), CONFIG) == {
        "images": 2,
        "reports": 2,
        "patients": 2,
        "labelled": 0,
        "boxes": 1,
        "boxes_without_image": 5,  # one of a lateral image, four of unknown ones
        "splits": {"test": 1, "train": 1},
        "split_conflicts": 1,
        "frames": 7,
        "splits_by_patient": False,
        "rejected": 1,
        "reasons": {"lateral": 1},
    }
    card = json.loads((tmp_path / manifest.DATASET).read_text())
    assert list(card) == ["licence", "name"]  # sorted: one card, one content
    forms = (manifest.IMAGES, manifest.REPORTS, manifest.BOXES, manifest.REJECTS)
    images, reports, boxes, rejects = (read_table(tmp_path, form).to_pylist() for form in forms)
    row = {"image_id": "a", "study_id": "s1", "subject_id": "p1"}
    assert images[0] == row | {"split": "test", "view": "PA", "path": "a.png"}
    assert [row["split"] for row in reports] == ["test", "train"]
    assert [row["image_id"] for row in boxes] == ["a"]
    assert rejects == [{"id": "c", "stage": "build_manifest", "reason": "lateral"}]


def test_the_first_labels_of_a_study_count() -> None:
    labels = pa.table({"study_id": ["s3", "s1", "s3", "s2"], "Edema": [1, 0, -1, 1]})
    assert selection.labels_of(labels, {"s1", "s3", "s4"}).to_pylist() == [
        {"study_id": "s1", "Edema": 0},
        {"study_id": "s3", "Edema": 1},
    ]
