"""A trial counts what a kill broke, knows a clear error from a trace, and forgets no command."""

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability import kills
from benchmarks.reliability.kills import (
    EVERY,
    QUICK,
    Bench,
    Command,
    Scene,
    commands,
    half_written,
    is_clear,
    snapshot,
    units,
)
from medclip_dcl.core.artifact import ArtifactType, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from pipelines.stages import STAGES, TOOLS

KIND = ArtifactType("numbers", 1, "count")
SILENT = {"adopt", "plan"}
"""Commands that write no file, or one page by one rename; adopt writes an artifact as others do."""


def commit(folder: Path, text: str = "123") -> Path:
    with write_artifact(folder, KIND, make_fingerprint(KIND, {"text": text}, {})) as writer:
        (writer.directory / "data").write_text(text)
        writer.commit({})
    return folder


class Killed(Command):
    """A command that is killed in its first shard, then with a whole one that it makes again."""

    @staticmethod
    def step(work: Path, number: int) -> int:
        draft = work / ".prepared.draft"
        draft.mkdir(exist_ok=True)
        (draft / ".staged.x").unlink(missing_ok=True)
        if number == 1:
            (draft / ".staged.x").touch()
        (draft / "shard-1").write_text(str(number))
        return -9

    def run(self, work: Path, *_: Any, **__: Any) -> int:
        (work / "page").write_text("new")
        (work / ".prepared.draft").rename(work / "prepared")
        return 0


def test_units_made_again_and_a_different_end_are_counted(tmp_path, monkeypatch):
    start = tmp_path / "start"
    start.mkdir()
    (start / "page").write_text("old")
    scene = Scene(Killed("job", "studies"), start, snapshot(start), {"page": "f" * 64})
    steps = iter((1, 2))
    monkeypatch.setattr(
        kills, "kill_once", lambda _, work, *__, **___: Killed.step(work, next(steps))
    )
    counts = Bench(tmp_path, ()).kill_at_moments(scene, 2, random.Random(0))
    expected = {"trials": 1, "killed": 2, "in_flush": 1, "acknowledged": 2, "again": 1}
    assert counts == expected | {"different": 1}


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
    assert is_clear("train", code, tmp_path / "log") is expected


def test_every_command_is_tried_and_the_long_tier_fails_each_write() -> None:
    assert {item.module for item in commands()} | SILENT == {*STAGES, *TOOLS}
    assert EVERY["long"] == 1
    assert set(QUICK) <= {item.name for item in commands()}


def test_a_broken_artifact_is_neither_old_nor_new(tmp_path: Path) -> None:
    old = snapshot(commit(tmp_path / "old" / "numbers").parent)
    work = commit(tmp_path / "work" / "numbers", "456").parent
    new = snapshot(work)
    scene = Scene(commands()[0], tmp_path, old, new, varies=frozenset({"page"}))
    assert scene.broken(old) == scene.broken(new) == []
    scene.old = {**old, "checkpoint": "d" * 64}  # goes, but not before the new is whole
    assert scene.broken(old) == ["checkpoint"]
    assert scene.broken(new) == []
    assert scene.differing({**new, "page": "f" * 64}) == []
    (work / "numbers").rename(work / ".numbers.retired")  # its writer ended between two renames
    assert snapshot(work) == new  # who opened it gave it its name back
    (work / "numbers/data").write_text("7")
    assert scene.broken(snapshot(work)) == ["checkpoint", "numbers"]


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
    draft.rename(tmp_path / "prepared")
    assert units(tmp_path)["/prepared/shard-1"] == before["/prepared/shard-1"]
    assert units(tmp_path, drafts=True) == {}


def test_a_half_written_file_is_seen_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / ".model.draft/text").mkdir(parents=True)
    assert not half_written(tmp_path)
    (tmp_path / ".model.draft/text/.staged.vocab").touch()
    assert half_written(tmp_path)
    assert not half_written(tmp_path / "gone")
