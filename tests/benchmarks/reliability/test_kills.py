"""A trial counts what a kill broke, knows a clear error from a trace, and forgets no command."""

from pathlib import Path

import pytest

from benchmarks.reliability import kills
from pipelines.stages import STAGES, TOOLS
from tests.support.headers import make

SILENT = {"adopt", "plan"}
"""Commands that write no file, or one page by one rename; adopt writes an artifact as others do."""


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
def test_an_error_is_clear_when_one_line_says_it(tmp_path, code, text, expected):
    (tmp_path / "log").write_text(text)
    assert kills.is_clear("train", code, tmp_path / "log") is expected


def test_every_command_is_tried_and_the_long_tier_fails_each_write() -> None:
    assert {item.module for item in kills.commands()} | SILENT == {*STAGES, *TOOLS}
    assert kills.EVERY["long"] == 1
    assert set(kills.QUICK) <= {item.name for item in kills.commands()}


def test_a_broken_artifact_is_neither_old_nor_new(tmp_path: Path) -> None:
    old = kills.snapshot(make(tmp_path / "old" / "numbers").path.parent)
    work = make(tmp_path / "work" / "numbers", "456", rate=2).path.parent
    new = kills.snapshot(work)
    scene = kills.Scene(kills.commands()[0], tmp_path, old, new, varies=frozenset({"page"}))
    assert scene.broken(old) == scene.broken(new) == []
    scene.old = {**old, "checkpoint": "d" * 64}  # goes, but not before the new is whole
    assert scene.broken(old) == ["checkpoint"]
    assert scene.broken(new) == []
    assert scene.differing({**new, "page": "f" * 64}) == []
    (work / "numbers").rename(work / ".numbers.retired")  # its writer ended between two renames
    assert kills.snapshot(work) == new  # who opened it gave it its name back
    (work / "numbers/data.txt").write_text("7")
    assert scene.broken(kills.snapshot(work)) == ["checkpoint", "numbers"]


def test_an_acknowledged_file_is_the_same_in_a_draft_and_after_its_commit(tmp_path: Path) -> None:
    draft = tmp_path / ".prepared.draft"
    for folder in (tmp_path / "prepared", draft):  # an old one is there
        folder.mkdir()
        (folder / "shard-1").write_text(folder.name)
    (draft / ".staged.shard-2").touch()
    before = kills.units(tmp_path, drafts=True)
    assert [*before] == ["/prepared/shard-1"]
    assert kills.units(tmp_path) == before
    (tmp_path / "prepared").rename(tmp_path / "away")
    draft.rename(tmp_path / "prepared")
    assert kills.units(tmp_path)["/prepared/shard-1"] == before["/prepared/shard-1"]
    assert kills.units(tmp_path, drafts=True) == {}
