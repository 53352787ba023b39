"""Files are there whole or not at all, paths stay under a root, tables have declared columns."""

import os
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from medclip_dcl.core import files, tables
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactUnwritable, StudyError
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
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(ArtifactUnwritable, match="/a could not be written: No space"):
        files.write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    fault = OSError(5, "Input/output error")  # what failed first is named
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=fault))
    refused = pytest.raises(ArtifactUnwritable, match="model could not be written: No space")
    with refused, files.disk_faults_named(tmp_path / "model"):
        files.write_bytes(tmp_path / "a", b"new")


def test_a_disk_that_refuses_a_library_s_own_write_is_named(tmp_path: Path) -> None:
    """Tokenizers and safetensors are written in Rust and raise errors of their own."""
    tokenizer, file = Tokenizer(models.WordPiece({"a": 0}, unk_token="a")), tmp_path / "words"
    words = "words could not be written"
    refused = pytest.raises(ArtifactUnwritable, match=f"{words}: No space")
    with refused, files.disk_faults_named(file):
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


# --- Tables

ID, VALUE = tables.Column("id", pa.string(), "name"), tables.Column("value", pa.float64(), "metres")
FORM = tables.TableFormat("numbers.parquet", (ID, VALUE))
ROWS = [{"id": f"row{number}", "value": float(number)} for number in range(50)]


def test_rows_come_back_in_order_and_other_columns_are_refused(tmp_path):
    tables.write_table(tmp_path, FORM, ROWS)
    assert tables.read_table(tmp_path, FORM).to_pylist() == ROWS
    assert tables.read_table(tmp_path, FORM, ["value"]).column_names == ["value"]
    tables.write_table(tmp_path, tables.TableFormat(FORM.file, (ID,)), [{"id": "a"}])
    with pytest.raises(ArtifactCorrupt, match="other columns"):
        tables.read_table(tmp_path, FORM)


@pytest.mark.parametrize("row", [{"id": "a"}, {"id": "a", "value": 1.0, "more": 2}])
def test_row_with_other_columns_is_refused(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="exactly the columns"):
        tables.write_table(tmp_path, FORM, [row])


def test_no_flipped_byte_passes_in_silence(tmp_path: Path) -> None:
    path = tables.write_table(tmp_path, FORM, ROWS)
    good = path.read_bytes()
    silent = 0
    for position in range(4, len(good), 7):
        data = bytearray(good)
        data[position] ^= 0x20
        path.write_bytes(bytes(data))
        try:
            silent += tables.read_table(tmp_path, FORM).to_pylist() != ROWS
        except ArtifactCorrupt:
            continue
    assert silent == 0


def test_parts_give_the_bytes_of_the_whole_and_cut_no_study(tmp_path, monkeypatch):
    form = tables.TableFormat("said.parquet", (tables.Column("study", pa.string(), ""),))
    whole = pa.table({"study": [f"s{row // 3}" for row in range(20)]})
    monkeypatch.setattr(tables, "_GROUP_ROWS", 4)
    digests = []
    for size in (1, 7, 20):
        with tables.TableWriter(tmp_path, form) as writer:
            for start in range(0, 20, size):
                writer.add(whole.slice(start, size))
        digests.append(files.sha256_file(tmp_path / form.file))
    assert len(set(digests)) == 1
    parts = list(tables.read_in_parts(tmp_path, form, ["study"], whole="study"))
    assert pa.concat_tables(parts).equals(whole)
    ends = [(len(part), part["study"][-1].as_py()) for part in parts]
    assert ends == [(3, "s0"), (3, "s1"), (3, "s2"), (6, "s4"), (3, "s5"), (2, "s6")]
