"""ask: a folder's answers as a table, those of a killed run kept."""

import csv
from pathlib import Path

import pytest

from medclip_dcl.client import Client
from medclip_dcl.schemas import ClassifyAnswer
from pipelines.__main__ import main
from testing.service import png, running


def test_a_folder_becomes_a_table_and_a_cut_one_goes_on(
    tmp_path: Path, published: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images, table = tmp_path / "images", tmp_path / "answers.csv"
    (images / "b").mkdir(parents=True)
    for name, content in (("a.png", png(seed=1)), ("b/c.png", png(seed=2)), ("d.txt", b"none")):
        (images / name).write_bytes(content)
    with running(published) as service:
        words = ["ask", "classify", str(images), "--csv", str(table), "--url", service.url]
        assert main(words) == 0
        with Client(service.url) as client:
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
        table.write_text("image,other\n")
        capfd.readouterr()
        assert main(words) == 2
        assert "name another file" in capfd.readouterr().err
