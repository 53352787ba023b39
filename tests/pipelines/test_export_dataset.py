"""An exported dataset loads by `datasets` alone and holds what the artifacts hold."""

from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest

from medclip_dcl.artifact import open_artifact
from medclip_dcl.data import manifest, prepared
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood import eta
from medclip_dcl.tables import read_table
from medclip_dcl.text import sentences
from medclip_exports import dataset as export_dataset
from pipelines import build_manifest, prepare_images
from pipelines.export_dataset import main
from testing.corpus import write_config
from testing.evaluated import write_evaluated


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_evaluated(tmp_path_factory.mktemp("export") / "work")
    config = write_config(
        folder / "config.yaml", folder, card={"data": "CC0-1.0"}, source={"root": str(folder)}
    )
    assert main(["--config", str(config)]) == 0
    return folder


@pytest.fixture(scope="module")
def studies(work: Path, tmp_path_factory: pytest.TempPathFactory) -> datasets.DatasetDict:
    cache = str(tmp_path_factory.mktemp("cache"))
    return datasets.load_dataset(str(work / "dataset"), cache_dir=cache)


def test_every_study_is_there_once_in_its_split(work: Path, studies: datasets.DatasetDict) -> None:
    listed = read_table(manifest.ARTIFACT.at(work), manifest.IMAGES).to_pylist()
    expected = {(row["study_id"], row["subject_id"], row["split"]) for row in listed}
    assert list(studies) == ["train", "validation", "test"]
    found = [
        (row["study_id"], row["subject_id"], row["split"])
        for part in studies.values()
        for row in part.select_columns(["study_id", "subject_id", "split"])
    ]
    assert Counter(found) == Counter(expected)
    assert {row["split"] for row in studies["validation"]} == {"validate"}


def test_pictures_are_the_prepared_ones(work: Path, studies: datasets.DatasetDict) -> None:
    images = PreparedImages(open_artifact(prepared.ARTIFACT.at(work), prepared.ARTIFACT))
    seen = 0
    for row in studies["test"]:
        pairs = zip(row["images"], row["image_ids"], row["heights"], row["widths"], strict=True)
        for picture, image_id, height, width in pairs:
            at = images.row_of[image_id]
            assert picture.mode == "L"
            assert np.array_equal(np.asarray(picture), images.pixels(at))
            assert (height, width) == images.original_size(at)
            seen += 1
    assert seen == 10


def test_sentences_have_their_eta_and_studies_their_labels(
    work: Path, studies: datasets.DatasetDict
) -> None:
    said = read_table(sentences.ARTIFACT.at(work), sentences.SENTENCES).to_pylist()
    by_key = read_table(eta.ARTIFACT.at(work), eta.ETA).to_pylist()
    value = {row["text_key"]: row["eta"] for row in by_key}
    labels = read_table(manifest.ARTIFACT.at(work), manifest.STUDY_LABELS).to_pylist()
    known = {row["study_id"]: row for row in labels}
    reports = read_table(manifest.ARTIFACT.at(work), manifest.REPORTS).to_pylist()
    written = {row["study_id"]: row["findings"] for row in reports}
    for row in studies["train"].remove_columns("images"):
        own = [item for item in said if item["study_id"] == row["study_id"]]
        assert row["sentences"] == [item["text"] for item in own]
        assert row["eta"] == [value[item["text_key"]] for item in own]
        assert row["Pneumonia"] == known[row["study_id"]]["Pneumonia"]
        assert row["findings"] == written[row["study_id"]]


def test_boxes_are_shares_of_the_image(work: Path, studies: datasets.DatasetDict) -> None:
    listed = read_table(manifest.ARTIFACT.at(work), manifest.BOXES).to_pylist()
    found = [
        (image_id, kind, phrase, tuple(box))
        for row in studies["test"].remove_columns("images")
        for image_id, *own in zip(
            *(row[name] for name in ("image_ids", "categories", "phrases", "boxes")), strict=True
        )
        for kind, phrase, box in zip(*own, strict=True)
    ]
    half = {"Pneumonia": (0, 0, 0.5, 0.5), "Pneumothorax": (0, 0.5, 0.5, 0.5)}  # 20 of 40 pixels
    assert sorted(found) == sorted(
        (row["image_id"], row["category"], row["phrase"], half[row["category"]]) for row in listed
    )
    assert len(found) == 6


def test_the_parquet_builder_reads_them_and_the_card_says_what_they_hold(
    work: Path, tmp_path: Path
) -> None:
    found = datasets.load_dataset(
        "parquet", data_dir=str(work / "dataset"), split="validation", cache_dir=str(tmp_path)
    )
    assert len(found) == 8
    assert found.features["images"] == datasets.List(datasets.Image())
    card = (work / "dataset" / "README.md").read_text()
    assert "license: cc0-1.0" in card
    assert all(f"| {column.name} |" in card for column in export_dataset.STUDIES.columns)
    assert "| train | 30 | 24 | 24 |" in card


def test_a_killed_export_goes_on_and_writes_the_same(work: Path, tmp_path: Path) -> None:
    listed, stored = (
        open_artifact(kind.at(work), kind) for kind in (manifest.ARTIFACT, prepared.ARTIFACT)
    )
    images = PreparedImages(stored)
    ten_studies = 10 * images.size_px**2

    def export() -> dict[str, tuple[bytes, int]]:
        summary = export_dataset.export_dataset(tmp_path, listed, images, None, None, ten_studies)
        assert summary["splits"] == {"train": 24, "validate": 8, "test": 8}
        assert not summary["sentences"]
        shards = sorted((tmp_path / "data").iterdir())
        return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in shards}

    first = export()
    assert [name for name in first if name.startswith("train")] == [
        f"train-0000{number}.parquet" for number in range(3)
    ]
    (tmp_path / "data" / "train-00001.parquet").unlink()
    again = export()
    assert {name: data for name, (data, _) in again.items()} == {
        name: data for name, (data, _) in first.items()
    }
    written = [name for name in first if again[name][1] != first[name][1]]
    assert written == ["train-00001.parquet"]


def test_an_exported_dataset_is_a_source_again(work: Path, tmp_path: Path) -> None:
    names = {"train": "train", "validate": "validation", "test": "test"}
    columns: dict[str, object] = {
        name: name for name in ("subject_id", "study_id", "findings", "impression", "boxes")
    }
    columns |= {"image": "images", "image_id": "image_ids", "view": "views", "width": "widths"}
    columns |= {"height": "heights", "phrase": "phrases", "category": "categories"}
    source = {
        "kind": "table",
        "root": str(work / "dataset"),
        "table": {ours: f"data/{name}-00000.parquet" for ours, name in names.items()},
        "columns": columns | {"labels": {"Pneumonia": "Pneumonia"}},
        "box_form": "xywh_fraction",
    }
    config = write_config(
        tmp_path / "config.yaml", tmp_path / "work", source=source, images={"size_px": 40}
    )
    for job in (build_manifest, prepare_images):
        assert job.main(["--config", str(config)]) == 0
    forms = {
        manifest.IMAGES: ("image_id", "study_id", "subject_id", "split", "view"),
        manifest.REPORTS: ("study_id", "split", "findings", "impression"),
        manifest.STUDY_LABELS: ("study_id", "Pneumonia"),
        manifest.BOXES: ("image_id", "subject_id", "category", "phrase", "x", "width", "height"),
    }
    for form, columns in forms.items():
        before, after = (
            read_table(manifest.ARTIFACT.at(folder), form, columns).to_pylist()
            for folder in (work, tmp_path / "work")
        )
        assert before
        assert after == before, form.file
    once, again = (
        PreparedImages(open_artifact(prepared.ARTIFACT.at(folder), prepared.ARTIFACT))
        for folder in (work, tmp_path / "work")
    )
    assert once.image_ids == again.image_ids
    for row in range(len(once)):  # a raster is stretched from its darkest to its brightest pixel
        pixels = once.pixels(row).astype(float)
        stretched = (pixels - pixels.min()) / np.ptp(pixels) * 255
        assert np.abs(stretched - again.pixels(row)).max() <= 1
