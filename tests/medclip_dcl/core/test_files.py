"""A path that a table names stays under its root; a file is there whole or not at all."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from medclip_dcl.core import files
from medclip_dcl.core.errors import ArtifactUnwritable, StudyError
from tests.support.users import plain_user


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_written_file_has_the_mode_that_the_umask_leaves(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        files.write_bytes(tmp_path / "a", b"abc")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_failed_write_leaves_the_old_content(tmp_path, monkeypatch):
    files.write_bytes(tmp_path / "a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    def refuse(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactUnwritable, match="/a could not be written: No space"):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    monkeypatch.setattr(Path, "unlink", refuse)  # what failed first is what is said
    with (
        pytest.raises(ArtifactUnwritable, match="model could not be written: No space"),
        files.disk_faults_named(tmp_path / "model"),
    ):
        files.write_bytes(tmp_path / "a", b"new")


def test_a_disk_that_refuses_a_library_s_own_write_is_named(tmp_path: Path) -> None:
    """Tokenizers and safetensors are written in Rust and raise errors of their own."""
    tokenizer, file = Tokenizer(models.WordPiece({"a": 0}, unk_token="a")), tmp_path / "words"
    words = "words could not be written"
    with (
        pytest.raises(ArtifactUnwritable, match=f"{words}: No space"),
        files.disk_faults_named(file),
    ):
        tokenizer.save("/dev/full")
    with pytest.raises(Exception, match="os error 2"), files.disk_faults_named(file):
        tokenizer.save(str(tmp_path / "absent" / "words"))
    (tmp_path / "closed").mkdir(mode=0o500)
    refused = pytest.raises(ArtifactUnwritable, match=f"{words}: Permission denied")
    with refused, files.disk_faults_named(file), plain_user():
        save_file({"weight": torch.zeros(1)}, tmp_path / "closed" / "head")


@pytest.mark.parametrize(
    "name", ["", "../x", "/etc/passwd", "a\0b", "absent.dcm", ".", "link", "fifo", "loop", "\ud800"]
)
def test_path_outside_or_irregular_is_refused_without_naming_it(tmp_path: Path, name: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "x").touch()
    (root / "link").symlink_to(tmp_path / "x")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "fifo")
    with pytest.raises(StudyError) as caught:
        files.path_under(root, name)
    assert len(name) < 3 or name not in str(caught.value)


def test_a_folder_hides_no_config_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert files.find_config(Path("demo")).parts[-2:] == ("configs", "demo.yaml")
    (tmp_path / "demo").rmdir()
    (tmp_path / "demo").write_text("work: here\n")
    assert files.find_config(Path("demo")) == Path("demo")


@pytest.mark.parametrize("name", ["nowhere/file", "file/below", "."])
def test_a_file_is_written_in_a_folder_that_is_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArtifactUnwritable, match="a folder that exists"):
        files.write_text(tmp_path / name, "text")
