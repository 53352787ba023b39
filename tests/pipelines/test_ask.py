"""ask: a folder's answers as a table, those of a killed run kept."""

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from medclip_dcl.client import Client
from medclip_dcl.core.errors import ConfigError
from medclip_dcl.schemas import ClassifyAnswer
from pipelines.__main__ import main
from pipelines.ask import write_findings
from tests.support.service import png, running


@pytest.fixture(scope="module")
def url(published: Path) -> Iterator[str]:
    with running(published) as service:
        yield service.url


def test_a_folder_becomes_a_table_and_a_cut_one_goes_on(tmp_path, url, capfd):
    images, table = tmp_path / "images", tmp_path / "answers.csv"
    (images / "b").mkdir(parents=True)
    contents = {"a.png": png(seed=1), "b/c.png": png(seed=2), "d.txt": b"none"}
    for name, content in contents.items():
        (images / name).write_bytes(content)
    words = ["ask", "classify", str(images), "--csv", str(table), "--url", url]
    assert main(words) == 0
    with Client(url) as client:
        answer = client.classify(images / "b/c.png")
    whole = table.read_bytes()
    rows = list(csv.DictReader(whole.decode().splitlines()))
    assert [Path(row["image"]).name for row in rows] == ["a.png", "c.png", "d.txt"]
    assert isinstance(answer, ClassifyAnswer)
    for finding in answer.findings:
        assert float(rows[1][f"{finding.name} score"]) == pytest.approx(finding.score, abs=1e-6)
        assert rows[1][f"{finding.name} decision"] == str(finding.decision)
    assert [bool(row["refused"]) for row in rows] == [False, False, True]
    table.write_bytes(whole[: whole.rfind(b"c.png") + 9])  # a kill in the middle of a row
    assert main(words) == 0
    again = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["image"] for row in again] == [row["image"] for row in rows]
    digest = again[0]["model"]
    assert {row["model"] for row in again} == {answer.model} == {digest}  # of refused ones too
    other = whole.replace(digest.encode(), b"f" * 64, 1)
    for content, said in (
        (other, "rows of model ffffffffffff"),
        (b"image,other\n", "name another file"),
    ):
        table.write_bytes(content)
        capfd.readouterr()
        assert main(words) == 2
        assert said in capfd.readouterr().err


def test_no_name_is_a_formula_or_breaks_a_row(tmp_path, url, monkeypatch):
    names = {
        "=cmd|' calc'!A0.png": "./=cmd|' calc'!A0.png",
        "+1.png": "./+1.png",
        "-2+3.png": "./-2+3.png",
        "@SUM(1).png": "./@SUM(1).png",
        "\t=1.png": "./\\x09=1.png",
        "\r=1.png": "./\\x0d=1.png",
        "a\rb.png": "a\\x0db.png",
        "a\nb.png": "a\\x0ab.png",
        "a\u2028b.png": "a\\x2028b.png",
        'q"x, y.png': 'q"x, y.png',
        "Röntgen 胸.png": "Röntgen 胸.png",
    }
    folder, table = tmp_path / "in", tmp_path / "answers.csv"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(png())
    monkeypatch.chdir(folder)
    for _ in range(2):  # the second has nothing to ask
        assert main(["ask", "classify", ".", "--csv", str(table), "--url", url]) == 0
        rows = list(csv.DictReader(table.read_text("utf-8").splitlines()))
        assert {row["image"] for row in rows} == {*names.values()}
        assert len(rows) == len(names)
        assert not any(row["refused"] for row in rows)


def test_a_model_that_is_exchanged_meanwhile_is_not_mixed_in(tmp_path, url):
    (tmp_path / "a.png").write_bytes(png())
    with Client(url) as client:
        facts = client.model().model_copy(update={"digest": "f" * 64})
        client.model = lambda: facts  # what the service had said before the exchange
        with pytest.raises(ConfigError, match="another model since this run began"):
            write_findings(client, [tmp_path / "a.png"], tmp_path / "answers.csv")
