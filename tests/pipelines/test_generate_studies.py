from pathlib import Path

from pipelines.job import main_of

main = main_of("generate_studies")


SMALL = ("generate.patients=3", "generate.size_px=64", "workers=1")


def run(folder: Path, *overrides: str) -> int:
    config_file = folder / "config.yaml"
    config_file.write_text(f"work: {folder / 'work'}\n")
    settings = [part for text in (*SMALL, *overrides) for part in ("--set", text)]
    return main(["--config", str(config_file), *settings])


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "note.txt").write_text("mine")
    assert run(tmp_path, f"source.root={real}") == 4
    assert [item.name for item in real.iterdir()] == ["note.txt"]
