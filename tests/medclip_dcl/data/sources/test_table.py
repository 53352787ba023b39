"""Tables with mapped columns: ids, lists of images, nested columns; boxes there or in their own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data.records import BoxTable, ImageRecord, Source
from medclip_dcl.data.selection import select
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.boxes import read_boxes
from medclip_dcl.data.sources.readers import read_source
from medclip_dcl.data.table_files import take_field


def read(folder: Path, content: list[dict[str, Any]] | pa.Table, **changes: Any) -> Source:
    found = pa.Table.from_pylist(content) if isinstance(content, list) else content
    pq.write_table(found, folder / "t.parquet", row_group_size=2)
    columns = {"subject_id": "who"} | changes.pop("columns", {})
    source = {"kind": "table", "root": str(folder), "table": "t.parquet", "columns": columns}
    return read_source(SourceConfig.model_validate(source | changes), Path)


def test_absolute_paths_below_the_root_are_the_roots_own(tmp_path: Path) -> None:
    """As pandas writes them, with the root as it is set or as its link leads."""
    folder, root = tmp_path / "disk", tmp_path / "link"
    (folder / "a").mkdir(parents=True)
    root.symlink_to(folder)
    for name in ("1.png", "2.png", "3.png"):
        (folder / "a" / name).write_bytes(b"image")
    named = [f"{root}/a/1.png", f"{folder}/a/2.png", "../x/a/3.png", r"a\1.png", f"{folder}x/1.png"]
    row = {"r": "FINDINGS: one", "b": [[1, 1, 2, 2]]}
    content = [row | {"who": str(n), "p": path} for n, path in enumerate(named)]
    (folder / "labels.csv").write_text(f"file,Edema\n{root}/a/1.png,1\na/2.png,0\n")
    boxes = ["dicom_id,category_name,label_text,x,y,w,h,image_width,image_height"]
    boxes += [f"{folder}/a/{name},Edema,edema,1,1,2,2,30,40" for name in ("1.png", "3.png")]
    (folder / "boxes.csv").write_text("\n".join(boxes))
    files = {"labels": "labels.csv", "label_id": "file", "boxes": "boxes.csv"}
    columns = {"path": "p", "report": "r"}
    source = read(root, content, columns=columns, prefix_strip="../x/", **files)
    kept = select(source.raw, SourceConfig(kind="table", columns={"path": "p"}))
    assert [image.path for image in kept.images] == ["a/1.png", "a/2.png", "a/3.png"]
    assert {tuple(item) for item in kept.rejects} == {
        ("row-000003", "backslash_path"),
        ("row-000004", "missing_image"),
    }
    assert source.raw.labels["Edema"].to_pylist() == [1, 0]
    assert [row["image_id"] for row in source.boxes.rows] == ["row-000000", "row-000002"]


def test_lists_are_exploded_with_what_is_parallel_to_them(tmp_path: Path) -> None:
    content = [
        {"who": "a", "x": ["0.png", "1.png"], "v": ["PA", "LATERAL"], "f": "one"},
        {"who": "b", "x": ["2.png"], "v": ["PA", "AP"], "f": "two"},  # lengths differ
        {"who": "c", "x": [], "v": [], "f": "three"},
        {"who": "d", "x": [None, "3.png"], "v": [None, "AP"], "f": "four"},
    ]
    source = read(tmp_path, content, columns={"image": "x", "view": "v", "findings": "f"})
    assert [(image.image_id, image.study_id, image.view) for image in source.raw.images] == [
        ("row-000000-0", "row-000000", "PA"),
        ("row-000000-1", "row-000000", "LATERAL"),
        ("row-000003-1", "row-000003", "AP"),
    ]
    assert {tuple(item) for item in source.raw.rejects} == {
        ("row-000001", "bad_row"),
        ("row-000002", "no_image"),
        ("row-000003-0", "no_image"),
    }
    assert [image.path for image in source.raw.images] == ["0.png", "1.png", "3.png"]


def test_rows_of_one_study_are_joined_and_conflicts_counted(tmp_path: Path) -> None:
    content = [
        {"who": "a", "s": "1", "x": "0.png", "f": ""},
        {"who": "a", "s": "1", "x": "1.png", "f": "said"},
        {"who": "a", "s": "1", "x": "2.png", "f": "said otherwise"},
        {"who": "b", "s": "2", "x": "3.png", "f": "said"},
    ]
    source = read(tmp_path, content, columns={"image": "x", "study_id": "s", "findings": "f"})
    assert [image.image_id for image in source.raw.images] == ["1-0", "1-1", "1-2", "2-0"]
    assert source.raw.studies[0].report == ("said", "", "")
    assert source.raw.counts["report_conflicts"] == 1


def test_ids_that_differ_in_blanks_alone_are_one(tmp_path: Path) -> None:
    content = [
        {"who": "p1", "s": "s1", "i": "a ", "x": "0.png", "f": "one"},
        {"who": " p1", "s": "s1\u00a0", "i": "\tb", "x": " 1.png ", "f": "one"},
        {"who": '="p1"', "s": "\ufeffs1", "i": "c", "x": "2.png", "f": ""},
        {"who": "p2", "s": " ", "i": "d", "x": "3.png", "f": "two"},
    ]
    columns = {"path": "x", "study_id": "s", "image_id": "i", "findings": "f"}
    source = read(tmp_path, content, columns=columns)
    ids = [(image.image_id, image.study_id, image.subject_id) for image in source.raw.images]
    assert ids == [(name, "s1", "p1") for name in "abc"] + [("d", "d", "p2")]  # blank: the image's
    assert [image.path for image in source.raw.images] == [f"{row}.png" for row in range(4)]
    with pytest.raises(StudyError, match="export the column as text"):
        read(tmp_path, [{"who": 1e22, "f": "one"}], columns={"findings": "f"})


OF_BOXES = {"image": "x", "boxes": "o.b", "phrase": "o.p"}
SIZED = OF_BOXES | {"width": "w", "height": "h"}
FACTS = {"image_id": "row-000000", "phrase": "left base", "category": "Edema", "x": 10, "y": 5}
FACTS |= {"width": 20, "height": 10, "image_width": 40}


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        ("xywh", [10, 5, 20, 10]),
        ("xyxy", [10, 5, 30, 15]),
        ("xywh_fraction", [0.25, 0.25, 0.5, 0.5]),
        ("xyxy_fraction", [0.25, 0.25, 0.75, 0.75]),
    ],
)
def test_boxes_of_either_form_and_unit_are_the_same(tmp_path, form, numbers):
    # Objects of lists, as older `datasets` have them, and lists of objects.
    lists = {"b": [numbers], "p": ["left  base"], "c": ["Edema"]}
    objects = [{"b": numbers, "p": "left  base", "c": "Edema"}]
    for boxes in (lists, objects):
        row = {"who": "a", "x": "0.png", "w": 40, "h": 20, "o": boxes}
        source = read(tmp_path, [row], columns=SIZED | {"category": "o.c"}, box_form=form)
        (found,) = source.boxes.rows
        assert found.items() >= FACTS.items()
        assert source.raw.counts == {"phrases_without_box": 0}
        assert source.boxes.subjects == {"a"}


def test_boxes_by_sentence_and_sentences_without(tmp_path: Path) -> None:
    groups = {"b": [[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.6, 0.7]], []], "p": ["seen", "not seen"]}
    content = [{"who": "a", "x": "0.png", "o": groups}]
    source = read(tmp_path, content, columns=OF_BOXES, box_form="xyxy_fraction")
    first, second = source.boxes.rows
    assert (first["phrase"], second["phrase"]) == ("seen", "seen")
    sides = [second[name] for name in ("x", "y", "width", "height")]
    assert sides == pytest.approx([0.5, 0.5, 0.1, 0.2])
    assert second["image_width"] == 1  # nobody states the size: fractions of the image
    assert source.raw.counts == {"phrases_without_box": 1}
    assert source.boxes.subjects == {"a"}


@pytest.mark.parametrize("form", ["xywh", "xywh_fraction"])
@pytest.mark.parametrize(
    "numbers", [[1, 2, 3], [10, 5, 40, 10], [-3, 0, 5, 5], [1, 1, 0, 5], [1, 1, float("nan"), 5]]
)
def test_box_outside_its_image_is_refused(tmp_path: Path, numbers: list[float], form: str) -> None:
    content = [{"who": "a", "x": "0.png", "w": 40, "h": 20, "o": {"b": [numbers], "p": ["a"]}}]
    with pytest.raises(StudyError, match="row 0"):
        read(tmp_path, content, columns=SIZED, box_form=form)


def test_boxes_of_lists_of_images(tmp_path: Path) -> None:
    row = {"who": "a", "x": ["0.png", "1.png"], "w": [40, 30], "h": [20, 20]}
    per_image = {"b": [[[1, 1, 2, 2]], [[3, 3, 4, 4], [5, 5, 6, 6]]], "p": [["p"], ["q", "r"]]}
    source = read(tmp_path, [row | {"o": per_image}], columns=SIZED, box_form="xywh")
    facts = [(box["image_id"], box["phrase"], box["image_width"]) for box in source.boxes.rows]
    images = ("row-000000-0", "row-000000-1", "row-000000-1")
    assert facts == [*zip(images, "pqr", (40, 30, 30), strict=True)]
    short = {"b": [[[1, 1, 2, 2]], []], "p": [["p", "q"], []]}
    source = read(tmp_path, [row | {"o": short}], columns=SIZED, box_form="xywh")
    assert {tuple(item) for item in source.raw.rejects} == {("row-000000", "bad_row")}
    assert source.raw.images == []


# Tables of boxes

HEADER = "dicom_id,h,w,y,x,label_text,category_name,image_width,image_height"


def boxes_of(folder: Path, *lines: str, of=("p", 0, 0), **columns: str) -> BoxTable:
    """Read a table about an image of one patient, width and height."""
    subject, width, height = of
    image = ImageRecord("f", "s", subject, "PA", "images/f.jpg", width, height)
    (folder / "b.csv").write_text("\n".join(lines))
    return read_boxes(folder / "b.csv", [image], SourceConfig(box_columns=columns))


def test_columns_are_found_by_name_and_a_box_outside_its_image_is_refused(tmp_path: Path) -> None:
    table = boxes_of(tmp_path, HEADER, "f,4,3,2,1,left  base,Pneumonia,50,40")
    assert table.subjects == {"p"}
    (row,) = table.rows
    assert (row["x"], row["y"], row["width"], row["height"]) == (1, 2, 3, 4)
    assert row["phrase"] == "left base"
    for numbers in ("4,60,2,1", "4,3,2,-1", "0,3,2,1", "nan,3,2,1", "x,3,2,1"):
        with pytest.raises(StudyError, match="row 0"):
            boxes_of(tmp_path, HEADER, f"f,{numbers},left base,Pneumonia,50,40")


def test_a_path_names_the_patient_where_the_image_is_not_at_hand(tmp_path: Path) -> None:
    rows = [
        f"{name},4,3,2,1,a b,Edema,50,40,files/p10/p10{n}/x" for n, name in ((7, "f"), (8, "g"))
    ]
    table = boxes_of(tmp_path, f"{HEADER},path", *rows, of=("107", 0, 0))
    assert (table.subjects, table.unknown, len(table.rows)) == ({"107", "108"}, 1, 1)


def test_other_columns_name_an_image_by_its_path_and_take_its_size(tmp_path: Path) -> None:
    names = {"image_id": "file", "category": "label", "phrase": "label"}
    names |= {"image_width": "", "image_height": ""}  # nobody states the size of an image
    lines = (
        "file,label,x,y,w,h,ok",
        "images/f.jpg,Left Lung,30,2.5,10,20,1",
        "f,Right Lung,1,2,10,20,1",
        "images/g.jpg,Left Lung,900,2,10,20,1",
    )
    table = boxes_of(tmp_path, *lines, of=("p", 50, 40), **names)
    left, right = table.rows
    assert (left["image_id"], left["subject_id"], left["phrase"]) == ("f", "p", "Left Lung")
    assert (left["x"], left["y"], left["image_width"], left["image_height"]) == (30, 2.5, 50, 40)
    assert (right["image_id"], right["category"]) == ("f", "Right Lung")
    assert (table.subjects, table.unknown) == ({"p"}, 1)
    for width, height, reason in ((0, 0, "size"), (35, 40, "inside its image")):
        with pytest.raises(StudyError, match=f"row 0.*{reason}"):
            boxes_of(tmp_path, *lines, of=("p", width, height), **names)


def test_where_no_image_joins_the_message_says_what_would(tmp_path: Path) -> None:
    """Ids are stripped; where all of a table are of other images, nothing is wrong."""
    box = "4,3,2,1,left base,Pneumonia,50,40"
    for name, count in ((" f ", 1), ("other", 0)):
        assert len(boxes_of(tmp_path, HEADER, f"{name},{box}").rows) == count
    with pytest.raises(StudyError, match=r"none of the 1 boxes .* 1 of 1 would be found but for"):
        boxes_of(tmp_path, HEADER, f"F,{box}")


# Faults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"image": "x", "path": "x"}}, "path and image"),
        ({"columns": {"image": "x", "subject_id": ""}}, "split"),
        ({"columns": {"image": "x", "boxes": "b", "phrase": "p"}}, "box_form"),
        ({"columns": {"image": "x", "boxes": "b"}, "box_form": "xyxy"}, "phrase or category"),
    ],
)
def test_what_must_be_said_is_asked_for(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, [{"who": "a", "x": "1.png"}], **changes)


@pytest.mark.parametrize(
    "metadata",
    [
        "no json",
        "[]",
        '{"info": []}',
        "[" * 100_000,
        '{"info": {"features": {"l": {"_type": "ClassLabel"}}}}',
        '{"info": {"features": {"l": {"_type": "ClassLabel", "names": 3}}}}',
        '{"info": {"features": {"l": {"_type": "ClassLabel", "names": ["a"]}}}}',
    ],
)
def test_metadata_of_other_people_s_are_refused(tmp_path: Path, metadata: str) -> None:
    content = pa.table({"who": ["a"], "l": [1], "r": ["text"]})
    content = content.replace_schema_metadata({"huggingface": metadata})
    with pytest.raises(StudyError, match=r"huggingface|ClassLabel"):
        read(tmp_path, content, columns={"report": "r", "view": "l"})


def fields(depth: int) -> st.SearchStrategy[Any]:
    """An object, or lists of objects within each other; each may be null."""
    value = st.fixed_dictionaries({"f": st.sampled_from([None, 1, 2]), "g": st.just("x")})
    return st.none() | (st.lists(fields(depth - 1), max_size=2) if depth else value)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), depth=st.integers(0, 2), cut=st.integers(0, 3))
def test_a_field_is_what_plain_python_takes(data: Any, depth: int, cut: int) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if value is None else value["f"]

    kind: pa.DataType = pa.struct([("f", pa.int8()), ("g", pa.string())])
    for _ in range(depth):
        kind = pa.list_(kind)
    values = data.draw(st.lists(fields(depth), min_size=4, max_size=4))
    array = pa.array(values, kind).slice(cut)
    assert take_field(array, ["f"]).to_pylist() == [plain(value) for value in values[cut:]]
