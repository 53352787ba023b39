import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from medclip_dcl.data.raster import read_picture
from medclip_dcl.errors import ImageError, StudyError
from medclip_dcl.image_only.data import ImageSource, open_source
from medclip_dcl.image_only.settings import ImageSetConfig

COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))


def png(colour: tuple[int, int, int], size: int = 8) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(stream, "PNG")
    return stream.getvalue()


def write_tables(root: Path, *, wrapped: bool = True, names: tuple[str, ...] = ()) -> Path:
    """Three classes, each of one colour; six training images, three test images."""
    for split, count in (("train", 6), ("test", 3)):
        labels = [row % 3 for row in range(count)]
        cells = [png(COLOURS[label]) for label in labels]
        image = [{"bytes": cell, "path": "x"} for cell in cells] if wrapped else cells
        table = pa.table({"image": image, "label": pa.array(labels, pa.int64())})
        if names:
            facts = {"info": {"features": {"label": {"names": list(names)}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(facts)})
        pq.write_table(table, root / f"{split}.parquet")
    return root


def opened(kind: str, root: Path | None = None, **settings: object) -> ImageSource:
    plain = {"kind": kind, "size_px": 8, "thinned": [], **settings}
    return open_source(ImageSetConfig.model_validate(plain), root)


@pytest.mark.parametrize("wrapped", [True, False])
def test_tables_give_pictures_in_their_colours(tmp_path: Path, wrapped: bool) -> None:
    source = opened("parquet", write_tables(tmp_path, wrapped=wrapped))
    assert source.names == ("0", "1", "2")
    assert source.train.labels.tolist() == [0, 1, 2] * 2
    assert source.test is not None
    assert len(source.test.labels) == 3
    pixels = source.train.pixels(np.array([4, 2]))
    assert pixels.shape == (2, 3, 8, 8)
    assert pixels[:, :, 0, 0].tolist() == [[0, 255, 0], [0, 0, 255]]
    assert set(source.digests) == {"train.parquet", "test.parquet"}


def test_class_names_are_those_that_the_table_says(tmp_path: Path) -> None:
    source = opened("parquet", write_tables(tmp_path, names=("red", "green", "blue")))
    assert source.names == ("red", "green", "blue")
    with pytest.raises(StudyError, match=r"\['dog'\], which are no classes"):
        opened("parquet", tmp_path, thinned=["dog", "red"])


def test_folders_are_classes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name, colour in zip(("b", "a"), COLOURS, strict=False):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            (folder / "one.png").write_bytes(png(colour, size=16))
            (folder / "note.txt").write_text("no picture")
    source = opened("folder", tmp_path)
    assert source.names == ("a", "b")
    assert source.train.labels.tolist() == [0, 1]
    pixels = source.train.pixels(np.array([0, 1]))
    assert pixels[:, :, 3, 3].tolist() == [[0, 255, 0], [255, 0, 0]]


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for split in ("train", "test"):
        (root / split / "a").mkdir(parents=True)
        (root / split / "a" / "one.png").write_bytes(png(COLOURS[0]))
    outside = tmp_path / "secret.png"
    outside.write_bytes(png(COLOURS[1]))
    (root / "train" / "a" / "two.png").symlink_to(outside)
    with pytest.raises(StudyError):
        opened("folder", root)


def test_digits_are_there_without_data() -> None:
    source = opened("digits", channels=1, size_px=16)
    assert source.names == tuple("0123456789")
    assert source.test is None
    assert len(source.train.labels) == 1797
    pixels = source.train.pixels(np.arange(3))
    assert pixels.shape == (3, 1, 16, 16)
    assert pixels.max() > 200


def test_a_grey_set_weighs_the_colours() -> None:
    grey = read_picture(png((255, 0, 0)), 1, 8)
    assert grey.shape == (1, 8, 8)
    assert grey[0, 0, 0] == round(0.299 * 255)


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\xff\xd8\xff\xe0 cut", png(COLOURS[0])[:50]])
def test_what_is_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="corrupt"):
        read_picture(data, 3, 8)


def test_a_huge_picture_is_refused_before_it_is_decoded() -> None:
    stream = io.BytesIO()
    Image.new("1", (3000, 3000)).save(stream, "PNG")
    with pytest.raises(ImageError, match="too_many_pixels"):
        read_picture(stream.getvalue(), 3, 8)


def test_a_damaged_picture_is_named_by_its_id(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b"x"], "label": [0]}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"image": [png(COLOURS[0])], "label": [0]}), tmp_path / "test.parquet")
    source = opened("parquet", tmp_path)
    with pytest.raises(StudyError, match=r"image train/0 .*\(corrupt\)"):
        source.train.pixels(np.array([0]))


def test_columns_are_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"columns \['picture'\]"):
        opened("parquet", write_tables(tmp_path), image_column="picture")


@pytest.mark.parametrize("kind", ["parquet", "folder"])
def test_an_empty_folder_is_named(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StudyError, match=r"image_set\.root"):
        opened(kind, tmp_path)


@pytest.mark.real_data
def test_cifar_10_is_read_from_its_tables(test_data: Path) -> None:
    source = opened("parquet", test_data / "cifar10", size_px=32, thinned=["dog", "truck"])
    assert source.names[:2] == ("airplane", "automobile")
    assert np.bincount(source.train.labels).tolist() == [5000] * 10
    assert source.test is not None
    assert np.bincount(source.test.labels).tolist() == [1000] * 10
    mean = source.train.pixels(np.arange(500)).mean(axis=(0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.03)
