import json
from pathlib import Path

import pytest

from pipelines.generate_studies import main

SMALL = (
    "generate.patients=3",
    "generate.size_px=64",
    "workers=1",
)


def run(folder: Path, *overrides: str) -> int:
    config_file = folder / "config.yaml"
    config_file.write_text(f"work: {folder / 'work'}\n")
    settings = [part for text in (*SMALL, *overrides) for part in ("--set", text)]
    return main(["--config", str(config_file), *settings])


def last(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_tree_is_made_once_and_reused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    made = last(capsys)
    assert made["state"] == "made"
    assert made["patients"] == 3
    assert (tmp_path / "work/studies/mimic-cxr-2.0.0-metadata.csv.gz").is_file()
    assert run(tmp_path, "workers=2") == 0  # which changes no content
    assert last(capsys)["state"] == "reused"


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "note.txt").write_text("mine")
    assert run(tmp_path, f"source.root={real}") == 4
    assert [item.name for item in real.iterdir()] == ["note.txt"]
