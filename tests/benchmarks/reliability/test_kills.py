"""What a kill lost or doubled is counted."""

import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from benchmarks.reliability.kills import (
    CRASH_TARGETS,
    KILLS,
    Count,
    IndexSwap,
    arm,
    vectors,
    write_start,
)
from medclip_dcl.artifact import ArtifactType, make_fingerprint
from medclip_dcl.artifact_writer import write_artifact
from medclip_dcl.files import write_text
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


BUILD = CRASH_TARGETS[-1]


def test_an_index_that_is_gone_damaged_or_answers_otherwise_is_counted(tmp_path: Path) -> None:
    base = write_start(BUILD, tmp_path / "base")
    new = Path(shutil.copytree(base, tmp_path / "new"))
    assert BUILD.writer.run(new, tmp_path / "log") == 0
    index_swap = IndexSwap.between(base, new)
    for work in (base, new):
        index_swap.ask(work)
    (base / "index").rename(base / ".index.retired")
    index_swap.ask(base)
    assert index_swap.counts() == {"asked": 3, "unserved": 0, "replacing": 1}

    for part in ("pooled-00003.npy", "artifact.json"):
        path = new / "index" / part
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + b"00")
        index_swap.ask(new)
        path.write_bytes(whole)
    assert index_swap.unserved == 2
    shutil.rmtree(base / "index")
    index_swap.ask(base)
    assert index_swap.unserved == 3
    otherwise = IndexSwap(index_swap.digest, old=index_swap.new, new=index_swap.old)
    otherwise.ask(new)
    assert otherwise.unserved == 1


def test_an_old_index_that_answers_as_the_new_one_proves_nothing(tmp_path: Path) -> None:
    work = write_start(BUILD, tmp_path / "base")
    shutil.rmtree(work / "model")
    shutil.copytree(work / "old_model", work / "model")
    with pytest.raises(ValueError, match="give them other models"):
        IndexSwap.between(work, work)


def write(work: Path, text: str) -> None:
    kind = ArtifactType("index", 1, "build_index")
    with write_artifact(kind.at(work), kind, make_fingerprint(kind, {"text": text}, {})) as writer:
        write_text(writer.directory / "text", text)
        writer.commit({})


def armed(work: Path, name: str) -> None:
    arm(name)
    write(work, "new")


@pytest.mark.parametrize(("name", "left"), [("index", None), (".index.draft", "new")])
def test_a_writer_is_killed_after_the_first_rename_or_the_second(
    tmp_path: Path, name: str, left: str | None
) -> None:
    write(tmp_path, "old")
    process = multiprocessing.get_context("fork").Process(target=armed, args=(tmp_path, name))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (tmp_path / ".index.retired/text").read_text() == "old"
    folder = tmp_path / "index/text"
    assert (folder.read_text() if folder.exists() else None) == left
