"""The trials harm what they say, know a clear error from a trace, and forget no command or type."""

import random
from pathlib import Path

import pytest

from benchmarks.reliability import faults
from benchmarks.reliability.faults import (
    CORRUPTIONS,
    EVERY,
    Scene,
    corrupt,
    harmed,
    is_clear,
    is_new,
    is_old_or_new,
)
from benchmarks.reliability.writers import litter, snapshot, units, writers
from medclip_dcl.artifact import ArtifactType, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact
from pipelines.stages import STAGES, TOOLS

KIND = ArtifactType("numbers", 1, "count")
SILENT = {"plan", "schema"}
"""Commands that write no file, one page by one rename, or notes that are made again."""


def commit(folder: Path, text: str = "123") -> Path:
    with write_artifact(folder, KIND, make_fingerprint(KIND, {"text": text}, {})) as writer:
        (writer.directory / "data").write_text(text)
        writer.commit({})
    return folder


@pytest.mark.parametrize("harm", ["bits", "cut", "longer", "other"])
def test_harmed_bytes_are_other_bytes(harm: str) -> None:
    whole, rng = bytes(range(200)), random.Random(0)
    found = [harmed(whole, harm, rng) for _ in range(100)]
    assert whole not in found
    if harm == "bits":
        bits = [
            sum((a ^ b).bit_count() for a, b in zip(data, whole, strict=True)) for data in found
        ]
        assert set(bits) == {1}
    if harm == "cut":
        assert all(whole.startswith(data) for data in found)
    assert harmed(b"", harm, rng)


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (4, "train: x could not be written: No space left\n", True),
        (4, 2 * "train: x could not be written: No space left\n", False),
        (1, "train: x could not be written: No space left\n", False),
        (4, "Traceback (most recent call last)\ntrain: x could not be written: y\n", False),
        (4, "train: something else\n", False),
    ],
)
def test_an_error_is_clear_when_one_line_says_it(
    tmp_path: Path, code: int, text: str, expected: bool
) -> None:
    (tmp_path / "log").write_text(text)
    assert is_clear("train", code, tmp_path / "log") is expected


def test_every_command_is_tried_and_the_long_tier_fails_each_write() -> None:
    assert {item.command for item in writers()} | SILENT == {*STAGES, *TOOLS}
    assert EVERY["long"] == 1
    assert CORRUPTIONS["long"] == 100_000
    assert set(faults.QUICK) <= {item.name for item in writers()}


def test_corruptions_are_counted_and_undone(tmp_path: Path) -> None:
    folder = commit(tmp_path / "numbers")
    before = snapshot(tmp_path)
    found = corrupt([folder], range(60))
    assert (found["corruptions"], found["detected"], found["odd"]) == (60, 60, [])
    assert snapshot(tmp_path) == before


def test_a_broken_artifact_is_neither_old_nor_new(tmp_path: Path) -> None:
    old = snapshot(commit(tmp_path / "old" / "numbers").parent)
    new = snapshot(commit(tmp_path / "work" / "numbers", "456").parent)
    scene = Scene(writers()[0], tmp_path, old, new, varies=frozenset({"page"}))
    work = tmp_path / "work"
    assert is_old_or_new(scene, old, "numbers")
    scene.old = {**old, "checkpoint": "d" * 64}  # goes, but not before the new is whole
    assert not is_old_or_new(scene, old, "checkpoint")
    assert is_old_or_new(scene, new, "checkpoint")
    assert is_new(scene, {**snapshot(work), "page": "f" * 64})
    (work / "numbers").rename(work / ".numbers.retired")  # its writer ended between two renames
    assert litter(work) == [".numbers.retired"]
    assert snapshot(work) == new
    assert not litter(work)  # who opened it gave it its name back
    (work / "numbers/data").write_text("7")
    assert snapshot(work) == {"numbers": "ArtifactCorrupt"}
    assert not is_old_or_new(scene, snapshot(work), "numbers")


def test_an_acknowledged_file_is_the_same_in_a_draft_and_after_its_commit(tmp_path: Path) -> None:
    draft = tmp_path / ".prepared.draft"
    for folder in (tmp_path / "prepared", draft):  # an old one is there
        folder.mkdir()
        (folder / "shard-1").write_text(folder.name)
    (draft / ".staged.shard-2").touch()
    before = units(tmp_path, drafts=True)
    assert [*before] == ["/prepared/shard-1"]
    assert units(tmp_path) == before
    (tmp_path / "prepared").rename(tmp_path / "away")
    assert (
        units(draft.rename(tmp_path / "prepared").parent)["/prepared/shard-1"]
        == before["/prepared/shard-1"]
    )
    assert units(tmp_path, drafts=True) == {}
