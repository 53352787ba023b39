"""Checkpoints that cannot be opened are named."""

from pathlib import Path

import torch

from benchmarks.reliability.exactness import unreadable
from medclip_dcl.training.checkpoint import CheckpointStore, Snapshot


def test_checkpoints_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    store = CheckpointStore(folder, {"fingerprint": 1}, 20)
    for step in (4, 8):
        store.save(Snapshot(step, {"w": torch.ones(3)}, {}), keep=2)
    assert unreadable(tmp_path) == []
    (folder / "step-00000004" / "artifact.json").unlink()
    assert unreadable(tmp_path) == ["step-00000004"]
