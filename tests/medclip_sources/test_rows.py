"""Tables with images in their rows: bytes, lists, boxes and nested columns."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from medclip_dcl.data import manifest, prepared, row_images
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.records import Source
from medclip_dcl.data.row_images import image_source, take_field
from medclip_dcl.data.selection import select
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.errors import ConfigError, StudyError
from medclip_dcl.tables import read_table
from medclip_sources import rows, table
from medclip_sources.readers import read_source
from testing.dicom import raster_bytes

ID = {"subject_id": "who"}


def picture(seed: int) -> bytes:
    levels = np.random.default_rng(seed).integers(0, 256, (40, 30), dtype=np.uint8)
    return raster_bytes(levels, "png")


def read(folder: Path, content: list[dict[str, Any]] | pa.Table, **changes: Any) -> Source:
    found = pa.Table.from_pylist(content) if isinstance(content, list) else content
    pq.write_table(found, folder / "t.parquet", row_group_size=2)
    columns = ID | changes.pop("columns", {})
    source = {"kind": "table", "root": str(folder), "table": "t.parquet", "columns": columns}
    return read_source(SourceConfig.model_validate(source | changes), Path)


def rejected(source: Source) -> set[tuple[str, str]]:
    return {(item.id, item.reason) for item in source.raw.rejects}


def test_bytes_paths_and_neither(tmp_path: Path) -> None:
    content = [
        {"who": "a", "x": {"bytes": picture(0), "path": "was.png"}, "r": "FINDINGS: one"},
        {"who": "b", "x": {"bytes": None, "path": "../deid/b.png"}, "r": "FINDINGS: two"},
        {"who": "c", "x": {"bytes": None, "path": None}, "r": "FINDINGS: three"},
        {"who": "d", "x": None, "r": "FINDINGS: four"},
        {"who": "e", "x": {"bytes": b"", "path": None}, "r": "FINDINGS: five"},
    ]
    (tmp_path / "b.png").write_bytes(picture(1))
    source = read(tmp_path, content, columns={"image": "x", "report": "r"}, prefix_strip="../deid/")
    paths = {image.image_id: image.path for image in source.raw.images}
    assert paths == {
        "row-000000": "t.parquet#x[0]",
        "row-000001": "b.png",
        "row-000004": "t.parquet#x[4]",
    }
    assert rejected(source) == {("row-000002", "no_image"), ("row-000003", "no_image")}
    assert bytes(image_source(tmp_path, paths["row-000000"])) == picture(0)
    assert image_source(tmp_path, paths["row-000001"]) == tmp_path / "b.png"
    kept = select(source.raw, SourceConfig(kind="table", columns={"image": "x"}))
    assert {image.image_id for image in kept.images} == set(paths)


def test_addresses_and_files_elsewhere_are_missing_images(tmp_path: Path) -> None:
    """Nothing is fetched, and nothing outside the folder is read."""
    (tmp_path / "set").mkdir()
    (tmp_path / "out.png").write_bytes(picture(0))
    (tmp_path / "set/link.png").symlink_to(tmp_path / "out.png")
    paths = ["http://127.0.0.1:9/a.png", "../out.png", str(tmp_path / "out.png"), "link.png"]
    content = [{"who": str(n), "x": {"bytes": None, "path": path}} for n, path in enumerate(paths)]
    source = read(tmp_path / "set", content, columns={"image": "x"})
    kept = select(source.raw, SourceConfig(kind="table", columns={"image": "x"}))
    assert kept.images == []
    assert [item.reason for item in kept.rejects] == ["missing_image"] * 4


def test_absolute_paths_below_the_root_are_the_roots_own(tmp_path: Path) -> None:
    """As pandas writes them, with the root as it is set or as its link leads."""
    folder, root = tmp_path / "disk", tmp_path / "link"
    (folder / "a").mkdir(parents=True)
    root.symlink_to(folder)
    for name in ("1.png", "2.png", "3.png"):
        (folder / "a" / name).write_bytes(picture(0))
    paths = [f"{root}/a/1.png", f"{folder}/a/2.png", "a/3.png", r"a\1.png", f"{folder}x/a/1.png"]
    content = [
        {"who": str(n), "p": path, "r": "FINDINGS: one", "b": [[1, 1, 2, 2]]}
        for n, path in enumerate(paths)
    ]
    (folder / "labels.csv").write_text(f"file,Edema\n{root}/a/1.png,1\na/2.png,0\n")
    boxes = ["dicom_id,category_name,label_text,x,y,w,h,image_width,image_height"]
    boxes += [f"{folder}/a/{name},Edema,edema,1,1,2,2,30,40" for name in ("1.png", "3.png")]
    (folder / "boxes.csv").write_text("\n".join(boxes))
    source = read(
        root,
        content,
        columns={"path": "p", "report": "r"},
        labels="labels.csv",
        label_id="file",
        boxes="boxes.csv",
    )
    kept = select(source.raw, SourceConfig(kind="table", columns={"path": "p"}))
    assert [image.path for image in kept.images] == ["a/1.png", "a/2.png", "a/3.png"]
    assert {(item.id, item.reason) for item in kept.rejects} == {
        ("row-000003", "backslash_path"),
        ("row-000004", "missing_image"),
    }
    assert source.raw.labels is not None
    assert source.raw.labels["Edema"].to_pylist() == [1, 0]
    assert [row["image_id"] for row in source.boxes.rows] == ["row-000000", "row-000002"]


def test_lists_are_exploded_with_what_is_parallel_to_them(tmp_path: Path) -> None:
    content = [
        {"who": "a", "x": [picture(0), picture(1)], "v": ["PA", "LATERAL"], "f": "one"},
        {"who": "b", "x": [picture(2)], "v": ["PA", "AP"], "f": "two"},  # lengths differ
        {"who": "c", "x": [], "v": [], "f": "three"},
        {"who": "d", "x": [None, picture(3)], "v": [None, "AP"], "f": "four"},
    ]
    source = read(tmp_path, content, columns={"image": "x", "view": "v", "findings": "f"})
    assert [(image.image_id, image.study_id, image.view) for image in source.raw.images] == [
        ("row-000000-0", "row-000000", "PA"),
        ("row-000000-1", "row-000000", "LATERAL"),
        ("row-000003-1", "row-000003", "AP"),
    ]
    assert rejected(source) == {
        ("row-000001", "bad_row"),
        ("row-000002", "no_image"),
        ("row-000003-0", "no_image"),
    }
    second = source.raw.images[1]
    assert bytes(image_source(tmp_path, second.path)) == picture(1)


def test_rows_of_one_study_are_joined_and_conflicts_counted(tmp_path: Path) -> None:
    content = [
        {"who": "a", "s": "1", "x": picture(0), "f": ""},
        {"who": "a", "s": "1", "x": picture(1), "f": "said"},
        {"who": "a", "s": "1", "x": picture(2), "f": "said otherwise"},
        {"who": "b", "s": "2", "x": picture(3), "f": "said"},
    ]
    source = read(tmp_path, content, columns={"image": "x", "study_id": "s", "findings": "f"})
    assert [image.image_id for image in source.raw.images] == ["1-0", "1-1", "1-2", "2-0"]
    assert source.raw.studies[0].report == ("said", "", "")
    assert source.raw.counts["report_conflicts"] == 1


def boxes_of(folder: Path, content: list[dict[str, Any]], **changes: Any) -> list[tuple[Any, ...]]:
    columns = {"image": "x", "boxes": "o.b", "phrase": "o.p", "category": "o.c"}
    columns |= changes.pop("columns", {})
    source = read(folder, content, columns=columns, **changes)
    names = ("image_id", "phrase", "category", "x", "y", "width", "height", "image_width")
    boxes = [tuple(row[name] for name in names) for row in source.boxes.rows]
    return [*boxes, dict(source.raw.counts), source.boxes.subjects]


SIZE = {"columns": {"width": "w", "height": "h"}}


def test_boxes_of_either_form_and_unit_are_the_same(tmp_path: Path) -> None:
    row = {"who": "a", "x": picture(0), "w": 40, "h": 20}
    want = [("row-000000", "left  base".replace("  ", " "), "Edema", 10, 5, 20, 10, 40)]
    want += [{"phrases_without_box": 0}, {"a"}]
    for form, numbers in (
        ("xywh", [10, 5, 20, 10]),
        ("xyxy", [10, 5, 30, 15]),
        ("xywh_fraction", [0.25, 0.25, 0.5, 0.5]),
        ("xyxy_fraction", [0.25, 0.25, 0.75, 0.75]),
    ):
        # Objects of lists, as older `datasets` have them, and lists of objects.
        lists = {"b": [numbers], "p": ["left  base"], "c": ["Edema"]}
        objects = [{"b": numbers, "p": "left  base", "c": "Edema"}]
        for given_as in (lists, objects):
            found = boxes_of(tmp_path, [row | {"o": given_as}], box_form=form, **SIZE)
            assert found == want, form


def test_boxes_by_sentence_and_sentences_without(tmp_path: Path) -> None:
    groups = {"b": [[[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.6, 0.7]], []], "p": ["seen", "not seen"]}
    columns = {"category": ""}
    found = boxes_of(
        tmp_path,
        [{"who": "a", "x": picture(0), "o": groups}],
        columns=columns,
        box_form="xyxy_fraction",
    )
    assert [row[1] for row in found[:2]] == ["seen", "seen"]
    assert np.allclose(found[1][3:7], (0.5, 0.5, 0.1, 0.2))
    assert found[1][7] == 1  # nobody states the size: fractions of the image
    assert found[2:] == [{"phrases_without_box": 1}, {"a"}]


@pytest.mark.parametrize(
    "numbers", [[1, 2, 3], [10, 5, 40, 10], [-3, 0, 5, 5], [1, 1, 0, 5], [1, 1, float("nan"), 5]]
)
def test_box_outside_its_image_is_refused(tmp_path: Path, numbers: list[float]) -> None:
    content = [{"who": "a", "x": picture(0), "w": 40, "h": 20, "o": {"b": [numbers], "p": ["a"]}}]
    columns = {"category": "", "width": "w", "height": "h"}
    with pytest.raises(StudyError, match="row 0"):
        boxes_of(tmp_path, content, columns=columns, box_form="xywh")
    with pytest.raises(StudyError, match="row 0"):
        boxes_of(tmp_path, content, columns=columns, box_form="xywh_fraction")


def test_boxes_of_lists_of_images(tmp_path: Path) -> None:
    row = {"who": "a", "x": [picture(0), picture(1)], "w": [40, 30], "h": [20, 20]}
    per_image = {"b": [[[1, 1, 2, 2]], [[3, 3, 4, 4], [5, 5, 6, 6]]], "p": [["p"], ["q", "r"]]}
    changes = {"columns": {"category": "", "width": "w", "height": "h"}, "box_form": "xywh"}
    found = boxes_of(tmp_path, [row | {"o": per_image}], **changes)
    assert [(box[0][-1], box[1], box[7]) for box in found[:3]] == [
        ("0", "p", 40),
        ("1", "q", 30),
        ("1", "r", 30),
    ]
    short = {"b": [[[1, 1, 2, 2]], []], "p": [["p", "q"], []]}
    source = read(
        tmp_path,
        [row | {"o": short}],
        columns={"image": "x", "boxes": "o.b", "phrase": "o.p", "width": "w", "height": "h"},
        box_form="xywh",
    )
    assert rejected(source) == {("row-000000", "bad_row")}
    assert source.raw.images == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"image": "x", "path": "x"}}, "path and image"),
        ({"columns": {"image": "x", "subject_id": ""}}, "split"),
        ({"columns": {"image": "x", "boxes": "b", "phrase": "p"}}, "box_form"),
        ({"columns": {"image": "x", "boxes": "b"}, "box_form": "xyxy"}, "phrase or category"),
    ],
)
def test_what_must_be_said_is_asked_for(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, [{"who": "a", "x": b"1"}], **changes)


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
    with pytest.raises(StudyError, match=r"huggingface|ClassLabel|ArrowIndexError"):
        read(tmp_path, content, columns={"report": "r", "view": "l"})


def test_tables_that_cannot_hold_images_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = [{"who": "a", "x": picture(0)}]
    with pytest.raises(StudyError, match=r"no column \['y'\]"):
        read(tmp_path, content, columns={"image": "y"})
    with pytest.raises(StudyError, match="map it to `image`"):
        read(tmp_path, content, columns={"image": "x", "findings": "x"})
    with pytest.raises(StudyError, match=r"under source\.root"):
        read(
            tmp_path,
            content,
            columns={"image": "x"},
            root=str(tmp_path / "else"),
            table=str(tmp_path / "t.parquet"),
        )
    monkeypatch.setattr(rows, "_MAX_GROUP_BYTES", 100)
    with pytest.raises(StudyError, match="row group 0"):
        read(tmp_path, content, columns={"image": "x"})
    (tmp_path / "t.parquet").write_bytes(b"PAR1 and no more")
    settings = {"kind": "table", "root": str(tmp_path), "table": "t.parquet"}
    config = SourceConfig.model_validate(settings | {"columns": ID | {"image": "x"}})
    with pytest.raises(StudyError, match="cannot be read"):
        read_source(config, Path)


def test_hostile_bytes_are_the_gates_affair(tmp_path: Path) -> None:
    """From the rows to prepared shards: same pixels as from files, and a code for each fault."""
    files = {"good": picture(0), "text": b"no", "cut": picture(1)[:90], "large": bytes(4096)}
    content = [{"who": name, "id": name, "x": {"bytes": files[name]}} for name in files]
    source = read(tmp_path, content, columns={"image": "x", "image_id": "id"})
    listed = [prepared.ListedImage(image.image_id, image.path) for image in source.raw.images]
    images = ImagesConfig(size_px=32, max_bytes=4000)
    (tmp_path / "rows").mkdir()
    prepared.prepare_images(tmp_path / "rows", listed, tmp_path, images)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "files").mkdir()
    named = [prepared.ListedImage(name, name) for name in files]
    prepared.prepare_images(tmp_path / "files", named, tmp_path, images)
    shards = [tmp_path / folder / "shard-00000.arrow" for folder in ("rows", "files")]
    assert shards[0].read_bytes() == shards[1].read_bytes()
    codes = {
        row["id"]: row["reason"]
        for row in read_table(tmp_path / "rows", manifest.REJECTS).to_pylist()
    }
    assert set(codes) == {"text", "cut", "large"}
    assert (codes["text"], codes["large"]) == ("unknown_format", "too_many_bytes")


def test_the_reader_opens_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = [{"who": "a", "x": picture(0)}, {"who": "b", "x": b"no image"}]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", refuse)
    source = read(tmp_path, content, columns={"image": "x"})
    assert [bytes(image_source(tmp_path, image.path)) for image in source.raw.images] == [
        row["x"] for row in content
    ]
    for module in (rows, table, row_images):
        tree = ast.parse(Path(module.__file__).read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        assert len(imports) > 3
        assert not any("PIL" in ast.unparse(node) for node in imports)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    depth=st.integers(0, 2),
    seed=st.randoms(use_true_random=False),
    cut=st.integers(0, 3),
)
def test_a_field_is_what_plain_python_takes(depth: int, seed: Any, cut: int) -> None:
    def make(level: int) -> Any:
        if seed.random() < 0.2:
            return None
        if level == 0:
            return {"f": seed.choice([None, 1, 2]), "g": "x"}
        return [make(level - 1) for _ in range(seed.randrange(3))]

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if value is None else value["f"]

    kind: pa.DataType = pa.struct([("f", pa.int8()), ("g", pa.string())])
    for _ in range(depth):
        kind = pa.list_(kind)
    values = [make(depth) for _ in range(4)]
    array = pa.array(values, kind).slice(cut)
    assert take_field(array, ["f"]).to_pylist() == [plain(value) for value in values[cut:]]
