"""Datasets in every form give the same studies; hubs, commits, terms and what is refused."""

import errno
import io
import json
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import numpy as np
import pytest

from medclip_dcl.core.errors import ArtifactUnwritable, ConfigError, HubError, StudyError
from medclip_dcl.core.files import path_under
from medclip_dcl.data import manifest
from medclip_dcl.data.records import RawStudies, ReportText, Source
from medclip_dcl.data.selection import select, write_manifest
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.sources.readers import images_root, read_source
from pipelines.report.cards import data_card
from tests.support.dicom import raster_bytes
from tests.support.hub import COMMIT, Hub, running_hub

SPLITS = {"train": [0, 1, 2], "validation": [3], "test": [4, 0]}  # patient 0 is in two splits
COLUMNS = {"image": "image", "subject_id": "who", "report": "text", "labels": {"Edema": "label"}}
ANONYMOUS = COLUMNS | {"subject_id": ""}
FEATURES = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["yes", "no"])}
FEATURES |= {"who": datasets.Value("string"), "text": datasets.Value("string")}
CARD = "---\nlicense: other\nlicense_name: use-agreement\nextra_gated_prompt: Share nothing.\n---\n"


def picture(number: int) -> bytes:
    levels = np.random.default_rng(number).integers(0, 256, (20, 16), dtype=np.uint8)
    return raster_bytes(levels, "png")


def row(number: int) -> dict[str, Any]:
    label = ["yes", "no"][number % 2]
    return {"who": f"p{number}", "text": f"FINDINGS: number {number}.", "label": label}


def split_of(numbers: list[int]) -> datasets.Dataset:
    rows = [row(n) | {"image": {"bytes": picture(n), "path": None}} for n in numbers]
    return datasets.Dataset.from_list(rows, features=datasets.Features(FEATURES))


def write_folder(folder: Path, numbers: dict[str, int]) -> None:
    """Describe the images of a folder, by their names, as `datasets` reads it."""
    lines = [json.dumps(row(n) | {"file_name": name}) for name, n in numbers.items()]
    (folder / "metadata.jsonl").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same dataset: by save_to_disk, as Parquet, as a folder of images, as tar files."""
    base = tmp_path_factory.mktemp("forms")
    datasets.disable_progress_bars()
    parts = {split: split_of(numbers) for split, numbers in SPLITS.items()}
    datasets.DatasetDict(parts).save_to_disk(str(base / "saved"))
    (base / "web").mkdir()
    for split, numbers in SPLITS.items():
        parts[split].to_parquet(str(base / f"parquet/{split}-00000-of-00001.parquet"))
        folder = base / "images" / split
        folder.mkdir(parents=True)
        write_folder(folder, {f"{n}.png": n for n in numbers})
        with tarfile.open(base / f"web/{split}.tar", "w") as tar:
            for n in numbers:
                (folder / f"{n}.png").write_bytes(picture(n))
                for name, data in (("png", picture(n)), ("json", json.dumps(row(n)).encode())):
                    member = tarfile.TarInfo(f"{n}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    (base / "parquet/README.md").write_text(CARD)
    return base


def read(work: Path, root: Path, **changes: Any) -> tuple[Source, Path]:
    given = {"kind": "huggingface", "root": str(root), "columns": COLUMNS} | changes
    config = SourceConfig.model_validate(given)
    work.mkdir(exist_ok=True)

    def resolve(text: str) -> Path:
        return Path(text.replace("${WORK}", str(work)))

    return read_source(config, resolve), images_root(config, resolve)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection, and no image opened outside the gate either."""
    refuse = Mock(side_effect=AssertionError("a socket or an image was opened"))
    monkeypatch.setattr("PIL.Image.open", refuse)
    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)


OF_WEB = {"image": "png", "subject_id": "json.who", "report": "json.text"}
OF_WEB |= {"labels": {"Edema": "json.label"}}


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("form", ["saved", "parquet", "images", "web"])
def test_every_form_gives_the_same(tmp_path: Path, forms: Path, form: str) -> None:
    columns = COLUMNS | (OF_WEB if form == "web" else {})
    source, root = read(tmp_path / "work", forms / form, columns=columns)
    raw = source.raw
    ids = [f"{split}-{at:06d}" for split, numbers in SPLITS.items() for at in range(len(numbers))]
    assert [image.image_id for image in raw.images] == ids
    assert [image.subject_id for image in raw.images] == ["p0", "p1", "p2", "p3", "p4", "p0"]
    assert raw.splits["p0"] == {"train", "test"}
    assert [raw.splits[f"p{n}"] for n in (2, 3, 4)] == [{"train"}, {"validate"}, {"test"}]
    assert raw.labels["Edema"].to_pylist() == [1, 0, 1, 0, 1, 1]
    assert raw.studies[1].report == ReportText("FINDINGS: number 1.")
    for image in raw.images:
        assert path_under(root, image.path).read_bytes() == picture(int(image.subject_id[1:]))
    if form == "parquet":
        assert raw.card == {"licence": "other, use-agreement", "terms": "Share nothing."}


def test_splits_are_mapped_or_left_out_and_a_config_of_several_is_named(tmp_path, forms):
    source, _ = read(tmp_path, forms / "saved", splits={"test": "validation"})
    assert (source.raw.splits, source.raw.counts["ignored_splits"]) == ({"p3": {"test"}}, 2)
    source, _ = read(tmp_path, forms / "saved", splits={"any": "train"})
    assert source.raw.splits == {}
    with pytest.raises(ConfigError, match="nothing"):
        read(tmp_path, forms / "saved", splits={"train": "nothing"})
    source, _ = read(tmp_path, forms / "saved", columns=ANONYMOUS)
    assert (source.raw.by_patient, len(source.raw.splits)) == (False, 6)
    with pytest.raises(ConfigError, match="own splits alone"):
        read(tmp_path, forms / "saved", splits={"any": "train"}, columns=ANONYMOUS)
    lines = []
    for name, number in (("frontal", 1), ("lateral", 2)):
        split_of([number]).to_parquet(str(tmp_path / f"set/{name}.parquet"))
        lines.append(f"- config_name: {name}\n  data_files: {name}.parquet\n")
    (tmp_path / "set/README.md").write_text(f"---\nconfigs:\n{''.join(lines)}---\n")
    source, _ = read(tmp_path / "work", tmp_path / "set", config="lateral")
    assert [image.subject_id for image in source.raw.images] == ["p2"]
    assert source.raw.card == {"config": "lateral"}
    with pytest.raises(StudyError, match=r"source\.config"):
        read(tmp_path / "work", tmp_path / "set")


@pytest.mark.parametrize(
    ("number", "file", "expected"),
    [
        (errno.ENOSPC, "", ArtifactUnwritable),
        (errno.EIO, "cache", ArtifactUnwritable),
        (errno.EACCES, "set/data.parquet", StudyError),
        (errno.EISDIR, "cache", StudyError),
    ],
)
def test_a_full_disk_is_no_fault_of_a_dataset(tmp_path, monkeypatch, number, file, expected):
    (tmp_path / "set").mkdir()
    fault = OSError(number, "of the disk", str(tmp_path / file) if file else None)
    monkeypatch.setattr(datasets, "load_dataset_builder", Mock(side_effect=fault))
    with pytest.raises(expected):
        read(tmp_path / "work", tmp_path / "set")


def test_folders_that_hold_no_dataset_are_refused(tmp_path: Path, forms: Path) -> None:
    with pytest.raises(ConfigError, match="names path"):
        read(tmp_path, forms / "images", columns=COLUMNS | {"path": "image"})
    for name in ("one", "two"):
        split_of([1]).save_to_disk(str(tmp_path / name))
    note = tmp_path / "one/state.json"
    note.write_text(note.read_text().replace('"data-', '"../two/data-'))
    for name in ("empty", "remote", "dataset_dict.json", "state.json"):
        (tmp_path / name).mkdir()
    address = "---\nconfigs:\n- config_name: a\n  data_files: http://10.0.0.1/x.parquet\n---\n"
    (tmp_path / "remote/README.md").write_text(address)
    for name, words in (
        ("nowhere", "not a folder"),
        ("empty", "holds no dataset"),
        ("remote", "by address"),
        ("one", "whose files are all in it"),
    ):
        with pytest.raises(StudyError, match=words):
            read(tmp_path, tmp_path / name)
    for name in ("dataset_dict.json", "state.json"):  # not as save_to_disk writes them
        for text in ("[]", '{"splits": 1}', "[" * 100_000, "no JSON"):
            (tmp_path / name / name).write_text(text)
            with pytest.raises(StudyError, match="holds no dataset"):
                read(tmp_path, tmp_path / name)


def test_a_link_out_of_the_folder_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "secret.png").write_bytes(picture(0))
    (tmp_path / "set/a.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "set/b.png").write_bytes(picture(1))
    write_folder(tmp_path / "set", {"a.png": 0, "b.png": 1})
    source, root = read(tmp_path / "work", tmp_path / "set")
    assert [file.read_bytes() for file in root.glob("train-00000/*")] == [picture(1)]
    linked, own = source.raw.images
    assert path_under(root, own.path).read_bytes() == picture(1)
    with pytest.raises(StudyError):
        path_under(root, linked.path)


def saved(folder: Path, images: list[Any], feature: Any) -> Path:
    """A dataset of these images, a patient each."""
    rows = {"who": [str(n) for n in range(len(images))], "x": images}
    features = datasets.Features({"who": datasets.Value("string"), "x": feature})
    made = datasets.Dataset.from_dict(rows, features=features)
    made.to_parquet(str(folder / "set/train.parquet"))
    return folder / "set"


OF_IMAGES = {"columns": {"subject_id": "who", "image": "x"}}
AS_STORED = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}


def test_bytes_paths_and_neither(tmp_path: Path) -> None:
    """Nothing is fetched, and nothing outside the folder is read."""
    (tmp_path / "out.png").write_bytes(picture(2))
    root = tmp_path / "set"
    root.mkdir()
    (root / "b.png").write_bytes(picture(1))
    (root / "link.png").symlink_to(tmp_path / "out.png")
    outside = ["http://127.0.0.1:9/a.png", "../out.png", str(tmp_path / "out.png"), "link.png"]
    images: list[Any] = [{"bytes": picture(0), "path": "was.png"}]
    images += [{"bytes": None, "path": path} for path in ("b.png", None, *outside)]
    source, rows = read(tmp_path / "work", saved(tmp_path, images, AS_STORED), **OF_IMAGES)
    chosen = select(source.raw, SourceConfig(kind="huggingface", **OF_IMAGES))
    kept = {image.subject_id: path_under(rows, image.path).read_bytes() for image in chosen.images}
    assert kept == {"0": picture(0), "1": picture(1)}
    assert [item.reason for item in chosen.rejects] == ["no_image", *["missing_image"] * 4]


def test_lists_of_images_are_of_one_study_and_columns_without_images_are_refused(tmp_path):
    root = saved(tmp_path, [[picture(0), picture(1)], [], [picture(2)]], [datasets.Value("binary")])
    source, rows = read(tmp_path / "work", root, **OF_IMAGES)
    studies = ["train-000000", "train-000000", "train-000002"]
    assert [image.study_id for image in source.raw.images] == studies
    for number, image in enumerate(source.raw.images):
        assert (rows / image.path).read_bytes() == picture(number)
    root = saved(tmp_path, [1, 2], datasets.Value("int32"))
    with pytest.raises(StudyError, match="a column without images"):
        read(tmp_path / "work", root, **OF_IMAGES)


@pytest.fixture
def hub(forms: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    files = {path.name: path.read_bytes() for path in (forms / "parquet").iterdir()}
    with running_hub(Hub("datasets/someone/chests", token="", files=files)) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", "")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield running


def test_a_hubs_dataset_is_fetched_once_and_by_its_commit(tmp_path, hub):
    def fetch(name: str = f"someone/chests@{COMMIT}") -> RawStudies:
        return read(tmp_path / "work", tmp_path / "set", name=name)[0].raw

    for name in ("someone/chests@main", "someone/chests"):
        with pytest.raises(ConfigError, match="40 hexadecimal digits, since a branch moves"):
            fetch(name)
    hub.refuse_after = 2  # of four: then the download fails, and is resumed
    with pytest.raises(HubError):
        fetch()
    hub.refuse_after = 100
    raw = fetch()
    assert len(raw.images) == 6
    assert (raw.card["commit"], raw.card["terms"]) == (COMMIT, "Share nothing.")
    hub.asked.clear()
    assert fetch().images == raw.images
    assert hub.asked == []
    with pytest.raises(ConfigError, match="something else"):
        fetch(f"someone/chests@{COMMIT[::-1]}")


def test_terms_are_accepted_and_a_full_disk_is_no_fault_of_the_hub(tmp_path, hub, monkeypatch):
    hub.token, name = "hf_mine", f"someone/chests@{COMMIT}"
    with pytest.raises(HubError, match="accept the agreement of someone/chests"):
        read(tmp_path / "work", tmp_path / "set", name=name)
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    source, _ = read(tmp_path / "work", tmp_path / "set", name=name)
    assert len(source.raw.images) == 6
    assert "hf_mine" not in json.dumps(source.inputs | source.raw.card)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(ArtifactUnwritable, match="other could not be written: No space"):
        read(tmp_path / "work", tmp_path / "other", name=name)


def test_terms_and_missing_patients_reach_manifest_and_card(tmp_path: Path, forms: Path) -> None:
    source, _ = read(tmp_path, forms / "parquet", columns=ANONYMOUS)
    settings = SourceConfig(kind="huggingface", columns={"image": "image"})
    assert write_manifest(tmp_path, source, settings)["splits_by_patient"] is False
    dataset = json.loads((tmp_path / manifest.DATASET).read_text())
    facts = {"terms": "", "splits": {}, "labels": {}, "rejected": {}, "stages": {}, "digests": {}}
    page = data_card(facts | {"source": "huggingface", "dataset": dataset, "by_patient": False})
    assert "| terms | Share nothing. |" in page
    assert "Splits are not by patient" in page
    assert "not by patient" not in data_card(facts | {"source": "table", "by_patient": True})
