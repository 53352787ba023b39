"""Kills are counted, and come where a file is half written when they are aimed."""

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability import kills
from benchmarks.reliability.faults import Bench, Scene
from benchmarks.reliability.kills import JOBS, half_written, killed_jobs, reach_end
from benchmarks.reliability.writers import Writer, snapshot

KILLED = -9


class Job(Writer):
    """A job that is killed twice: in its first shard, and with a whole one that it makes again."""

    def run(self, work: Path, *_: Any, **__: Any) -> int:
        self.step(work, 3)
        return 0

    @staticmethod
    def step(work: Path, number: int) -> int:
        draft = work / ".prepared.draft"
        draft.mkdir(exist_ok=True)
        (draft / ".staged.x").unlink(missing_ok=True)
        if number == 1:
            (draft / ".staged.x").touch()
        if number in {1, 2}:
            (draft / "shard-1").write_text(str(number))
            return KILLED
        (work / "page").write_text("new")
        for path in draft.iterdir():
            path.unlink()
        draft.rmdir()
        return 0


def test_units_made_again_and_a_different_end_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (start / "page").write_text("old")
    scene = Scene(Job("job", "studies"), start, snapshot(start), {"page": "f" * 64})
    steps = iter((1, 2))
    monkeypatch.setattr(kills, "kill_once", lambda _, work, *__, **___: Job.step(work, next(steps)))
    found = reach_end(Bench(tmp_path, ()), scene, 2, 1, random.Random(0))
    assert found == {
        "ends": 1,
        "kills": 2,
        "in_flush": 1,
        "acknowledged": 2,
        "lost": 1,
        "broken": 0,
        "different": 1,
    }


def test_a_half_written_file_is_seen_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / ".model.draft/text").mkdir(parents=True)
    assert not half_written(tmp_path)
    (tmp_path / ".model.draft/text/.staged.vocab").touch()
    assert half_written(tmp_path)
    assert not half_written(tmp_path / "gone")


def test_every_job_to_kill_is_in_the_table() -> None:
    assert {item.name for item in killed_jobs()} >= set(JOBS)
