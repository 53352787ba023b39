"""Checkpoints: weights, optimiser state and place of a run that is not finished.

Each is a committed folder `checkpoints/step-00001000`, staged, flushed, hashed and renamed
like every artifact; nothing in it is pickled. Its fingerprint is that of the model to be
published, so a run cannot go on with other settings or data than it began with.
"""

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from medclip_dcl.core import errors
from medclip_dcl.core.artifact import (
    Artifact,
    ArtifactType,
    fingerprint_changes,
    open_artifact,
    read_artifact_header,
)
from medclip_dcl.core.artifact_writer import remove_if_code_changed, write_artifact
from medclip_dcl.core.files import disk_faults_named, write_bytes, write_text

ARTIFACT = ArtifactType("checkpoints", 2, "train")

WEIGHTS, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_PREFIX = "step-"
_GOING = ".going"

KEEP_CHECKPOINTS = 2  # one to continue from, one should the newest be damaged


@dataclass(frozen=True)
class Snapshot:
    """A run after `step` steps."""

    step: int
    weights: Mapping[str, Tensor]  # parameters and buffers of the model, by name
    optimizer: Mapping[str, Tensor]  # optimiser state, `<state>/<parameter>` -> tensor
    state: Mapping[str, Any] = field(default_factory=dict)  # plain counters of the loop


class CheckpointStore:
    """The checkpoints of one run, by the fingerprint of the model it makes.

    `steps` are those that the run will do; the trainer sets them before it saves.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], steps: int = 0) -> None:
        self.folder, self._fingerprint, self.steps = folder, fingerprint, steps

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainers out of the folder; ArtifactError where one is there."""
        with disk_faults_named(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".lock").open("a")
        with lock as stream:
            # The kernel lets go of it when its holder ends, killed or not: no stale lock.
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise errors.ArtifactError(
                    f"another process trains in {self.folder}; wait for it or stop it"
                ) from error
            yield

    def find(self) -> tuple[Snapshot | None, tuple[str, ...]]:
        """Find the newest whole checkpoint of this run, and the names of damaged newer ones.

        Raises:
            ArtifactStale: it belongs to an unfinished run of another fingerprint.
            CheckpointError: its bytes are those that were committed, and yet cannot be read.
        """
        skipped = []
        for path in reversed(self._paths()):
            try:
                artifact = open_artifact(path, ARTIFACT)
            except errors.ArtifactError:
                skipped.append(path.name)
                continue
            if artifact.fingerprint == self._fingerprint:
                return _read(artifact), tuple(skipped)
            # One of a finished run gives way to a run with other settings; an unfinished one never.
            step, steps = artifact.summary["step"], artifact.summary["steps"]
            if step < steps:
                differences = fingerprint_changes(artifact.fingerprint, self._fingerprint)
                raise errors.ArtifactStale(
                    f"the run in {self.folder} stopped at step {step} of {steps} and had other "
                    f"settings or inputs: {'; '.join(differences)}; set these back to go on, or "
                    "remove that folder to start again"
                )
            break
        return None, tuple(skipped)

    def save(self, snapshot: Snapshot, pinned: int = 0, *, keep: int = KEEP_CHECKPOINTS) -> Path:
        """Write a checkpoint and give its folder; of others, `keep` - 1 and the pinned step stay.

        Raises:
            ArtifactUnwritable: the disk refuses; earlier checkpoints are untouched, and nothing
                half written stays.
        """
        path = self._path(snapshot.step)
        try:
            with write_artifact(path, ARTIFACT, self._fingerprint) as writer:
                folder = writer.directory
                for file in folder.iterdir():  # a killed save may have left a part
                    file.unlink()
                write_bytes(folder / WEIGHTS, save(_plain(snapshot.weights)))
                write_bytes(folder / _OPTIMIZER, save(_plain(snapshot.optimizer)))
                write_text(folder / _STATE, json.dumps(dict(snapshot.state), sort_keys=True))
                writer.commit({"step": snapshot.step, "steps": self.steps})
        finally:  # what a save leaves next to its checkpoint; harmless where the disk keeps it
            shutil.rmtree(path.with_name(f".{path.name}.draft"), ignore_errors=True)
            with suppress(OSError):
                path.with_name(f".{path.name}.lock").unlink()
        older = [old for old in self._paths() if old.name < path.name]
        newest = {path, self._path(pinned), *older[::-1][: keep - 1]}
        # A run that started from the beginning may find newer ones by name: these go first.
        for old in reversed(self._paths()):
            if old not in newest:
                self._remove(old)
        return path

    def weights(self, step: int) -> dict[str, Tensor] | None:
        """Read parameters and buffers after a step; None where they are not there or not whole."""
        try:
            artifact = open_artifact(self._path(step), ARTIFACT)
        except errors.ArtifactError:
            return None
        return dict(_read(artifact).weights) if artifact.fingerprint == self._fingerprint else None

    def newest(self) -> Artifact | None:
        """Return the checkpoint that `find` would look at first, its files unread."""
        for path in reversed(self._paths()):
            with suppress(errors.ArtifactError):  # as `find` passes a damaged one over
                return read_artifact_header(path)
        return None

    def remove_of_other_code(self) -> None:
        """Remove the checkpoints that other code than today's has written."""
        for path in self._paths():
            remove_if_code_changed(path)

    def clear(self) -> None:
        """Remove every checkpoint: the model is published."""
        for path in self._paths():
            self._remove(path)
        shutil.rmtree(self.folder / _GOING, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        # Renamed first: a checkpoint that is seen is whole, whenever a kill comes.
        going = self.folder / _GOING
        with disk_faults_named(path):
            shutil.rmtree(going, ignore_errors=True)
            path.replace(going)
            shutil.rmtree(going)

    def _path(self, step: int) -> Path:
        return self.folder / f"{_PREFIX}{step:08d}"

    def _paths(self) -> list[Path]:
        # Steps have leading zeros: the order of names is that of steps.
        return sorted(path for path in self.folder.glob(f"{_PREFIX}*") if path.is_dir())


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors keeps no memory layout, so channels-last weights are copied.
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _read(artifact: Artifact) -> Snapshot:
    try:
        return Snapshot(
            step=artifact.summary["step"],
            weights=load_file(artifact.file(WEIGHTS)),
            optimizer=load_file(artifact.file(_OPTIMIZER)),
            state=json.loads(artifact.file(_STATE).read_text(encoding="utf-8")),
        )
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise errors.CheckpointError(
            f"checkpoint {artifact.path.name} cannot be read; remove it to use an earlier one"
        ) from error
