"""The cut points are those that were promised, and what differs is counted."""

import json
from pathlib import Path

import torch

from benchmarks.reliability.exactness import (
    CUTS,
    EPOCH,
    LOOP,
    end_of,
    must_end,
    newest,
    start,
    unreadable,
)
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot
from testing.corpus import write_corpus


def test_a_cut_comes_at_its_step_and_every_step_is_noted(tmp_path: Path) -> None:
    work = write_corpus(tmp_path / "work")
    cut = CUTS[0]
    assert end_of(start(work, 1, cut)) == [-9]
    notes = [json.loads(line) for line in (work / "seen-0.jsonl").read_text().splitlines()]
    assert [line["step"] for line in notes] == list(range(1, cut.step + 1))
    assert all(len(set(line["items"])) == LOOP["global_batch"] for line in notes)
    assert len({line["bytes"] for line in notes}) == cut.step
    assert newest(work) == 5
    must_end(work, 1)
    notes = [json.loads(line) for line in (work / "seen-0.jsonl").read_text().splitlines()]
    again = [line["step"] for line in notes[cut.step :]]
    assert again == list(range(6, LOOP["steps"] + 1))
    assert notes[cut.step : cut.step + 3] == notes[5:8]
    assert EPOCH * LOOP["global_batch"] == 48


def test_checkpoints_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    store = CheckpointStore(folder, {"fingerprint": 1}, 20)
    for step in (4, 8):
        store.save(Snapshot(step, {"w": torch.ones(3)}, {}), keep=2)
    assert unreadable(tmp_path) == []
    (folder / "step-00000004" / "artifact.json").unlink()
    assert unreadable(tmp_path) == ["step-00000004"]
