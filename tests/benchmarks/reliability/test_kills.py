"""What a kill lost or doubled is counted."""

import os
from pathlib import Path

import torch

from benchmarks.reliability.crash_targets import CRASH_TARGETS, KILLS, vectors
from benchmarks.reliability.kills import Count
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot


def test_lost_changed_and_doubled_scores_are_counted() -> None:
    count = Count()
    before = count.compare({}, [("a", "1"), ("b", "2"), ("c", "3")])
    assert (count.lost, count.duplicates, count.acknowledged) == (0, 0, 3)
    after = count.compare(before, [("a", "1"), ("c", "4"), ("d", "5"), ("d", "5")])
    assert after == {"a": "1", "c": "4", "d": "5"}
    assert (count.lost, count.duplicates, count.acknowledged) == (2, 1, 3)


def test_kills_suffice_when_enough_of_them_hit_a_flush() -> None:
    assert not Count(kills=60, in_flush=19).suffices(60, 20)
    assert not Count(kills=59, in_flush=30).suffices(60, 20)
    assert Count(kills=60, in_flush=20).suffices(60, 20)


def test_the_long_count_kills_every_job_sixty_times() -> None:
    assert {target.kills("long") for target in CRASH_TARGETS} == {KILLS["long"]} == {60}
    assert all(target.kills("quick") >= 1 for target in CRASH_TARGETS)
    assert {target.job: target.flushes("long") for target in CRASH_TARGETS} == {
        "prepare_images": 20,
        "score_sentences": 20,
        "train": 30,
        "build_index": 20,
    }


def test_a_shard_of_images_is_acknowledged_once_it_is_whole_and_not_when_made_anew(
    tmp_path: Path,
) -> None:
    names = ["pictures-00000.arrow", "pooled-00000.npy", "regions-00000.npy", "texts-00000.npy"]
    for name in (*names, "regions-00001.npy", ".staged.pooled-00001.npy.x", "images.parquet"):
        (tmp_path / name).write_bytes(b"1")
    found = vectors(tmp_path)
    assert [name for name, _ in found] == names
    os.utime(tmp_path / names[0], ns=(0, 1))
    count = Count()
    count.compare(dict(found), vectors(tmp_path))
    assert (count.lost, count.duplicates) == (1, 0)


def test_a_checkpoint_that_cannot_be_opened_and_steps_lost_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    store = CheckpointStore(folder, {"fingerprint": 1}, 20)
    count = Count()
    count.inspect(tmp_path)
    assert (count.unreadable, count.steps_lost) == (0, 0)
    for step in (4, 8):
        store.save(Snapshot(step, {"w": torch.ones(3)}, {}), keep=2)
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {n}}}\n' for n in range(1, 11)))
    count.inspect(tmp_path)
    assert (count.unreadable, count.steps_lost) == (0, 2)
    (folder / "step-00000008" / "model.safetensors").write_bytes(b"")
    count.inspect(tmp_path)
    assert count.unreadable == 1
