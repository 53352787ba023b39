import os
from pathlib import Path
from typing import Any

import pytest
import torch

from medclip_dcl.core.artifact import HEADER, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import ArtifactError, ArtifactStale, CheckpointError
from medclip_dcl.training.checkpoint import ARTIFACT, WEIGHTS, CheckpointStore, Snapshot

STEPS = 100


def fingerprint(rate: float = 0.1) -> dict[str, Any]:
    return make_fingerprint(ARTIFACT, {"rate": rate}, {"data": "d1"})


def store(folder: Path, rate: float = 0.1) -> CheckpointStore:
    return CheckpointStore(folder, fingerprint(rate), STEPS)


def snapshot(step: int) -> Snapshot:
    weights = {"w": torch.arange(6).float().reshape(2, -1).T + step, "n": torch.tensor(step)}
    moments = {"exp_avg/w": torch.full((3,), float(step)), "step/w": torch.tensor(float(step))}
    return Snapshot(step, weights, moments, {"skipped": 2})


def names(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir() if item.name != ".lock")


def test_a_checkpoint_comes_back_bit_by_bit(tmp_path: Path) -> None:
    saved = snapshot(10)
    store(tmp_path).save(saved)
    found, _ = store(tmp_path).find()
    assert found.step == 10
    assert found.state == {"skipped": 2}
    for read, written in (found.weights, saved.weights), (found.optimizer, saved.optimizer):
        torch.testing.assert_close(read, written, rtol=0, atol=0)


def test_the_newest_are_kept_and_nothing_that_a_kill_left_of_a_removal(tmp_path):
    for step in (1, 2, 3):
        store(tmp_path).save(snapshot(step))
    assert names(tmp_path) == ["step-00000002", "step-00000003"]
    kept = store(tmp_path)
    (tmp_path / ".going").mkdir()
    (tmp_path / ".going" / WEIGHTS).touch()
    kept.save(snapshot(4), keep=1)
    assert names(tmp_path) == ["step-00000004"]
    (tmp_path / ".going").mkdir()
    kept.clear()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (WEIGHTS, lambda file: os.truncate(file, file.stat().st_size // 2)),
        (WEIGHTS, lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\1")),
        (WEIGHTS, Path.unlink),
        (HEADER, lambda file: os.truncate(file, file.stat().st_size // 2)),
    ],
    ids=["cut", "changed", "lost", "header"],
)
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path, name: str, damage) -> None:
    kept = store(tmp_path)
    kept.save(snapshot(10))
    damage(kept.save(snapshot(20)) / name)
    found, damaged = store(tmp_path).find()
    assert damaged == ("step-00000020",)
    assert found.step == 10


@pytest.mark.parametrize(
    ("change", "summary"),
    [({WEIGHTS: b"no tensors"}, {"step": 2}), ({"state.json": b"{"}, {"step": 2}), ({}, {})],
)
def test_whole_bytes_that_are_no_checkpoint_stop_the_run(tmp_path, change, summary):
    sound = store(tmp_path).save(snapshot(1))
    parts = {file.name: file.read_bytes() for file in sound.iterdir() if file.name != HEADER}
    with write_artifact(tmp_path / "step-00000002", ARTIFACT, fingerprint()) as writer:
        for name, content in (parts | change).items():
            (writer.directory / name).write_bytes(content)
        writer.commit(summary)
    with pytest.raises(CheckpointError, match="step-00000002 cannot be read; remove it"):
        store(tmp_path).find()


def test_another_recipe_is_refused_with_the_difference_unless_the_run_is_finished(tmp_path):
    store(tmp_path).save(snapshot(10))
    with pytest.raises(ArtifactStale, match=r"step 10 of 100 .* settings\.rate: 0\.1 -> 0\.2"):
        store(tmp_path, rate=0.2).find()
    for step in (STEPS - 10, STEPS):
        store(tmp_path).save(snapshot(step))
    other = store(tmp_path, rate=0.2)
    assert other.find()[0] is None
    other.save(snapshot(10))
    assert names(tmp_path) == ["step-00000010"]
    assert other.find()[0].step == 10


def test_the_best_checkpoint_outlives_newer_ones(tmp_path: Path) -> None:
    kept = store(tmp_path)
    for step in (10, 20, 30):
        kept.save(snapshot(step), keep=1, pinned=10)
    assert names(tmp_path) == ["step-00000010", "step-00000030"]
    best = kept.weights(10)
    assert all(torch.equal(best[name], value) for name, value in snapshot(10).weights.items())
    assert kept.weights(20) is None
    assert store(tmp_path, rate=0.2).weights(10) is None  # another run's
    kept.save(snapshot(40), keep=1, pinned=30)
    assert names(tmp_path) == ["step-00000030", "step-00000040"]


def test_two_trainers_in_one_folder_are_refused(tmp_path: Path) -> None:
    first, second = (CheckpointStore(tmp_path / "runs" / "one", {}) for _ in range(2))
    with first.locked(), pytest.raises(ArtifactError, match="another process trains"):
        second.locked().__enter__()
    with second.locked():  # the first has ended
        pass
