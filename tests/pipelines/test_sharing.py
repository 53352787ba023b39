"""A second run shares the files of the first and changes none of them."""

from pathlib import Path

import pytest

from medclip_dcl.core.artifact import HEADER
from medclip_dcl.core.errors import ConfigError
from pipelines.run import share_data


def test_data_are_linked_and_what_training_made_is_not(tmp_path, capsys):
    first = tmp_path / "ours"
    for name in ("prepared", "studies", "model"):
        (first / name / "files").mkdir(parents=True)
        (first / name / HEADER).write_text(name)
        (first / name / "files/1").write_text("content")
    (first / "manifest").mkdir()  # unfinished: no header
    folder = share_data(first, "second")
    assert folder == tmp_path / "ours-second"
    assert sorted(path.name for path in folder.iterdir()) == ["prepared", "studies"]
    shared = folder / "prepared/files/1"
    assert shared.samefile(first / "prepared/files/1")
    assert capsys.readouterr().out.endswith("as hard links: studies, prepared\n")
    # An artifact that is made again takes the place of the links.
    (folder / "prepared").rename(folder / ".old")
    (folder / "prepared").mkdir()
    (folder / "prepared" / HEADER).write_text("its own")
    share_data(first, "second")
    assert (folder / "prepared" / HEADER).read_text() == "its own"
    assert (first / "prepared" / HEADER).read_text() == "prepared"
    assert capsys.readouterr().out == ""


def test_a_name_stays_in_its_folder(tmp_path: Path) -> None:
    for name in ("../up", "a/b", "-x"):
        with pytest.raises(ConfigError, match="must be letters, digits"):
            share_data(tmp_path / "ours", name)
