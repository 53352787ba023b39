"""embed: a row for everything that was given and vectors as the model's."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_dcl.data.images import open_image
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.retrieval import vectors
from pipelines import embed
from tests.house.tree import ROOT
from tests.support.dicom import dicom_bytes, ramp, raster_bytes
from tests.support.published import SENTENCES, publish, random_range
from tests.support.service import png
from tests.support.tiny_models import random_images

SECRET = "PHISENTINEL"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    publish(folder / "model", known=random_range())
    return folder / "model"


@pytest.fixture(scope="module")
def predictor(model: Path) -> Predictor:
    return load(model, "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images in two folders; one file is cut off, one holds text, one is hidden."""
    folder = tmp_path_factory.mktemp("images")
    (folder / "b").mkdir()
    for number in range(38):
        (folder / f"b/{number:02d}.png").write_bytes(png(seed=number))
    whole = dicom_bytes(ramp(96, 64))
    (folder / f"a {SECRET}").write_bytes(whole)
    (folder / "cut.dcm").write_bytes(whole[:-100])
    (folder / "c.jpg").write_bytes(raster_bytes(random_images(1)[0], "jpeg"))
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(png())
    return folder


def run(*words: object) -> int:
    return embed.main([str(word) for word in words])


def vector_of(predictor: Predictor, data: bytes | Path) -> np.ndarray:
    regions = predictor.embed_images(predictor.square(open_image(data))[None]).numpy()
    mean = regions.mean(axis=(1, 2))[0]
    return mean / np.linalg.norm(mean)


def test_every_file_has_a_row_and_those_that_are_images_a_vector(
    folder: Path, model: Path, predictor: Predictor, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    out = tmp_path / "vectors.parquet"
    assert run(folder, "--model", model, "--out", out, "--engine", "torch") == 0
    table = pq.read_table(out)
    rows = {row["path"]: row for row in table.to_pylist()}
    assert list(rows) == sorted(rows)
    assert set(rows) == {
        f"a {SECRET}", "c.jpg", "cut.dcm", "notes.txt", *(f"b/{n:02d}.png" for n in range(38))
    }  # fmt: skip
    refused = {name: row["refused"] for name, row in rows.items() if row["vector"] is None}
    assert refused == {"cut.dcm": "truncated", "notes.txt": "unknown_format"}
    assert [row["refused"] for row in rows.values() if row["vector"]] == [None] * 40
    for name in (f"a {SECRET}", "b/00.png", "b/37.png", "c.jpg"):
        assert rows[name]["vector"] == pytest.approx(vector_of(predictor, folder / name), abs=1e-5)
    assert rows[f"a {SECRET}"]["out_of_range"] is True  # a ramp
    assert rows["b/00.png"]["out_of_range"] is False
    assert rows["cut.dcm"]["out_of_range"] is None
    dim = predictor.config.model.similarity.dim
    assert table.schema.field("vector").type == pa.list_(pa.float32(), dim)
    facts = json.loads(table.schema.metadata[vectors.METADATA])
    assert (facts["model"], facts["precision"]) == (predictor.digest, "float32")
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err
    line = json.loads(printed.out)
    assert (line["state"], line["rows"], line["refused"]) == ("made", 42, 2)
    assert line["reasons"] == {"truncated": 1, "unknown_format": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".{out.name}.lock", out.name]


def test_a_file_is_made_once_and_never_replaced_unasked(
    folder: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, common = tmp_path / "v.parquet", (folder, "--model", model, "--engine", "torch", "--out")
    assert run(*common, out) == 0
    made = out.stat().st_mtime_ns
    assert run(*common, out) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[1])["state"] == "reused"
    assert run(*common, out, "--dtype", "float16") == 2
    assert "--replace" in capfd.readouterr().err
    assert out.stat().st_mtime_ns == made
    before = np.stack(pq.read_table(out)["vector"].drop_null().to_numpy())
    assert run(*common, out, "--dtype", "float16", "--replace") == 0
    after = pq.read_table(out)["vector"]
    assert after.type.value_type == pa.float16()
    assert np.stack(after.drop_null().to_numpy()).astype(float) == pytest.approx(before, abs=1e-3)
    other = tmp_path / "mine.txt"
    other.write_text("not ours")
    assert run(*common, other) == 2
    assert other.read_text() == "not ours"


def test_the_rows_of_a_table_keep_their_key(
    model: Path, predictor: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "one.png").write_bytes(png(seed=5))
    ids = pa.array([7, 8, 9], pa.int32())
    (tmp_path / "two.png").write_bytes(png(seed=2))
    pictures = pa.array(["one.png", None, "two.png"])
    pq.write_table(pa.table({"id": ids, "picture": pictures}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text(
        f"id,file,text\na,one.png,{SENTENCES[0]}\nb,../x.png,\nc,,{SENTENCES[1]}\n"
    )
    out, common = tmp_path / "v.parquet", ("--model", model, "--engine", "torch", "--replace")

    def rows_of(*words: object) -> dict[object, dict[str, object]]:
        assert run(*words, "--out", out, *common) == 0
        table = pq.read_table(out)
        return {row[table.column_names[0]]: row for row in table.to_pylist()}

    rows = rows_of(tmp_path / "t.parquet", "--images", "picture", "--id", "id")
    assert pq.read_schema(out).field("id").type == pa.int32()
    assert [row["refused"] for row in rows.values()] == [None, "missing", None]
    assert rows[9]["vector"] == pytest.approx(vector_of(predictor, png(seed=2)), abs=1e-5)
    rows = rows_of(tmp_path / "t.csv", "--images", "file", "--id", "id")
    assert [row["refused"] for row in rows.values()] == [None, "missing", "missing"]
    assert rows["a"]["vector"] == pytest.approx(vector_of(predictor, png(seed=5)), abs=1e-5)
    rows = rows_of(tmp_path / "t.csv", "--sentences", "text")
    assert list(rows) == [0, 1, 2]
    assert [row["refused"] for row in rows.values()] == [None, "empty", None]
    assert "out_of_range" not in rows[0]
    expected = predictor.embed_sentences([SENTENCES[1]]).numpy()[0]
    assert rows[2]["vector"] == pytest.approx(expected, abs=1e-5)


def test_what_cannot_be_embedded_is_named(
    folder: Path, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"vector": ["a"], "n": [1]}), table)
    common = ("--model", model, "--out", tmp_path / "v.parquet", "--engine", "torch")
    (tmp_path / "none").mkdir()
    for words, rule in (
        ((table,), "--images or by --sentences"),
        ((folder, "--id", "x"), "are of a table"),
        ((table, "--sentences", "n"), "holds int64"),
        ((table, "--sentences", "vector", "--id", "vector"), "rename it"),
        ((tmp_path / "none",), "nothing to embed"),
    ):
        assert run(*words, *common) == 2
        assert rule in capfd.readouterr().err
    assert not (tmp_path / "v.parquet").exists()


def shrink_units() -> None:
    vectors.UNIT = 4


def test_the_tutorial_runs(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    section = page.partition("## Vectors")[2].partition("\n## ")[0]
    first, second = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model, "runs/demo/model")
    assert run(folder, "--model", "runs/demo", "--out", "vectors.parquet", "--engine", "torch") == 0
    capsys.readouterr()
    names: dict[str, object] = {}
    exec(first, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1.000 {names['paths'][0]}"
    assert len(lines) == 3
    exec(second, names)
    cosines = names["vectors"] @ names["sentence"][0]
    assert list(names["rows"][0]) == list(np.argsort(-cosines)[:3])
