"""Splits: one per patient, stable, strict. Tables: their summary, and what is too many."""

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import TableFormat, read_table
from medclip_dcl.data import manifest
from medclip_dcl.data.records import BoxTable, RawStudies, Source
from medclip_dcl.data.selection import assign_splits, labels_of, write_manifest
from medclip_dcl.data.source_settings import SourceConfig
from tests.support.records import image, studies

PEOPLE = [f"p{number}" for number in range(4000)]


def test_shares_are_met_and_stay_when_others_leave() -> None:
    splits = assign_splits(PEOPLE, {}, set(), 0.1, 0.2)
    counts = {name: list(splits.values()).count(name) for name in ("train", "validate", "test")}
    assert abs(counts["test"] - 800) < 100
    assert abs(counts["validate"] - 400) < 80
    fewer = assign_splits(PEOPLE[::2], {}, set(), 0.1, 0.2)
    assert all(splits[name] == split for name, split in fewer.items())


def test_given_splits_count_and_boxes_overrule_them() -> None:
    given = {"a": {"train"}, "b": {"train", "test"}, "c": {"validate", "train"}, "d": {"train"}}
    splits = assign_splits("abcd", given, {"d"}, 0.0, 0.0)
    assert splits == {"a": "train", "b": "test", "c": "validate", "d": "test"}
    assert assign_splits(["e"], {}, set(), 0.0, 0.0) == {"e": "train"}


def test_shares_are_parts_of_a_hash_of_the_patient() -> None:
    splits = assign_splits(PEOPLE[:200], {}, set(), 0.25, 0.5)
    for name, split in splits.items():
        first = hashlib.sha256(f"split {name}".encode()).digest()[0]  # 256 equal parts
        assert split == ("test" if first < 128 else "validate" if first < 192 else "train")


CONFIG = SourceConfig(max_reject_share=1.0)


def table(tmp_path: Path, form: TableFormat) -> list[dict[str, object]]:
    return read_table(tmp_path, form).to_pylist()


def test_the_summary_counts_what_was_written(tmp_path: Path) -> None:
    box = dict.fromkeys(manifest.BOXES.schema.names, 1) | {
        "category": "edema",
        "phrase": "edema",
        "subject_id": "p1",
    }
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
    assert write_manifest(tmp_path, Source(raw, boxes), CONFIG) == {
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
    assert table(tmp_path, manifest.IMAGES)[0] == {
        "image_id": "a",
        "study_id": "s1",
        "subject_id": "p1",
        "split": "test",
        "view": "PA",
        "path": "a.png",
    }
    assert [row["split"] for row in table(tmp_path, manifest.REPORTS)] == ["test", "train"]
    assert [row["image_id"] for row in table(tmp_path, manifest.BOXES)] == ["a"]
    assert table(tmp_path, manifest.REJECTS) == [
        {"id": "c", "stage": "build_manifest", "reason": "lateral"}
    ]


def test_rejects_are_counted_against_candidates(tmp_path: Path) -> None:
    twice = [image("a", 1), image("b", 2), image("c", 3), image("a", 1)]
    source = Source(studies(tmp_path, *twice), BoxTable([], set(), 0))
    with pytest.raises(StudyError, match=r"1 of 4 rows .*'duplicate_id': 1.* 3 images and 3 rep"):
        write_manifest(tmp_path, source, SourceConfig(max_reject_share=0.24))
    write_manifest(tmp_path, source, SourceConfig(max_reject_share=0.25))
    empty = Source(RawStudies(tmp_path), BoxTable([], set(), 0))
    with pytest.raises(StudyError, match="no image or report that is asked for; correct its root"):
        write_manifest(tmp_path, empty, CONFIG)


def test_the_first_labels_of_a_study_count() -> None:
    labels = pa.table({"study_id": ["s3", "s1", "s3", "s2"], "Edema": [1, 0, -1, 1]})
    assert labels_of(labels, {"s1", "s3", "s4"}).to_pylist() == [
        {"study_id": "s1", "Edema": 0},
        {"study_id": "s3", "Edema": 1},
    ]
