"""Published model: what evaluation, index and service load, and nothing that can run code.

    model.safetensors   weights of both encoders and gamma
    config.json         the whole configuration, `work` left out
    model.json          the card: what it is, was made from, is for and is not for
    calibration.json    how a score becomes a probability; there once calibrate_scores has run
    subjects.json       hashes of the training patients' ids, to refuse contaminated tests
    input_range.json    range of the training films, where there were two patients or more
    text/               BERT configuration and tokenizer: config.json, tokenizer.json,
                        tokenizer_config.json

The artifact's digest names the model everywhere.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from medclip_dcl.artifacts.files import write_bytes, write_text
from medclip_dcl.artifacts.frame import Artifact, Kind, drafting, open_artifact
from medclip_dcl.artifacts.probabilities import (
    FILE,
    ScoreCalibration,
    read_calibration,
    write_calibration,
)
from medclip_dcl.config import Config
from medclip_dcl.errors import CheckpointError

KIND = Kind("model", 1, "train")

WEIGHTS, CONFIG, CARD, SUBJECTS, TEXT = (
    "model.safetensors",
    "config.json",
    "model.json",
    "subjects.json",
    "text",
)
TEXT_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")
"""Files of `text/`, as transformers reads them."""


@dataclass(frozen=True)
class Published:
    """A published model whose bytes have been checked."""

    path: Path
    """Its folder."""
    digest: str
    """Digest of all its files."""
    config: Config
    """The configuration that it was trained with; `work` is the model's own folder."""
    card: Mapping[str, Any]
    """Facts about it."""
    subject_hashes: frozenset[str] | None
    """`subject_hash` of every training patient; None in a copy that left the house."""
    calibration: ScoreCalibration | None = None
    """How its scores become probabilities; None where nobody has fitted that."""

    @property
    def text_folder(self) -> Path:
        """Folder with the text encoder's configuration and tokenizer."""
        return self.path / TEXT

    def weights(self) -> dict[str, Tensor]:
        """Read the weights.

        Returns:
            Parameters and buffers by name, on the CPU.

        Raises:
            CheckpointError: they cannot be read, or one is not finite.
        """
        return finite_weights(self.path)


def finite_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a model.

    Args:
        folder: folder of the model.

    Returns:
        Parameters and buffers by name, on the CPU.

    Raises:
        CheckpointError: they cannot be read, or one is not finite.
    """
    try:
        tensors: dict[str, Tensor] = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"weights of {folder} cannot be read; rerun train") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise CheckpointError(f"weight {name} of {folder} is not finite; rerun train")
    return tensors


def subject_hash(subject_id: str) -> str:
    """Hash a patient's id, so that a model names no patient in clear.

    Args:
        subject_id: the id, as the manifest has it.

    Returns:
        32 hexadecimal digits. Ids are few, so this hides them from readers, not from
        someone who tries them all.
    """
    return hashlib.sha256(f"medclip-dcl subject {subject_id}".encode()).hexdigest()[:32]


def write_published(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: Config,
    card: Mapping[str, Any],
    subject_ids: Iterable[str],
    write_text_files: Callable[[Path], None],
) -> None:
    """Write the files of a published model.

    Args:
        folder: the draft's directory.
        weights: parameters and buffers by name.
        config: the configuration.
        card: facts about the model, JSON-serialisable.
        subject_ids: patients whose studies were trained on.
        write_text_files: fills a folder with `TEXT_FILES`.
    """
    write_weights(folder, weights)
    write_config_and_card(folder, config, card)
    _write_json(folder / SUBJECTS, sorted(map(subject_hash, subject_ids)))
    (folder / TEXT).mkdir(exist_ok=True)
    write_text_files(folder / TEXT)


def write_weights(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the weights of a model.

    Args:
        folder: the draft's directory.
        weights: parameters and buffers by name.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    write_bytes(folder / WEIGHTS, save(plain))


def write_config_and_card(folder: Path, config: Config, card: Mapping[str, Any]) -> None:
    """Write what a model was trained with and what it is.

    Args:
        folder: the draft's directory.
        config: the configuration; where the recipe worked is no property of the model, and
            may name people: it is left out.
        card: facts about the model, JSON-serialisable.
    """
    _write_json(folder / CONFIG, config.model_copy(update={"work": "."}).model_dump(mode="json"))
    _write_json(folder / CARD, card)


def read_published(path: Path) -> Published:
    """Open a published model after checking every byte.

    Args:
        path: its folder.

    Returns:
        The model's facts; `weights()` reads the rest.

    Raises:
        ArtifactError: it is missing, damaged or of another version.
        CheckpointError: its configuration or card cannot be read by this version.
    """
    artifact = open_artifact(path, KIND)
    config, (card, hashes) = read_facts(artifact, CARD, SUBJECTS)
    calibration = read_calibration(artifact)
    return Published(path, artifact.digest, config, card, _set(hashes), calibration)


def seal_calibration(model: Artifact, calibration: ScoreCalibration) -> Artifact:
    """Put a calibration into a model, in place of the one that it has.

    Args:
        model: the model.
        calibration: the calibration.

    Returns:
        The model, made from the same recipe and with a digest of its own.

    Raises:
        ArtifactError: another process is writing it, or the disk refuses.
    """
    with drafting(model.path, KIND, model.recipe) as draft:
        for name in model.files:
            if name != FILE:
                _link(model.path / name, draft.directory / name)
        write_calibration(draft.directory, calibration)
        draft.started = time.monotonic() - model.origin["seconds"]  # those of its training
        return draft.seal(model.summary)


def read_facts(artifact: Artifact, *names: str) -> tuple[Config, list[Any]]:
    """Read what a model was trained with and what it is.

    Args:
        artifact: an opened model.
        names: JSON files of it.

    Returns:
        Configuration, and the content of these files.

    Raises:
        ArtifactCorrupt: the header lists no such file.
        CheckpointError: this version cannot read one of them.
    """
    try:
        config = Config.model_validate_json(artifact.file(CONFIG).read_text(encoding="utf-8"))
        trees = [json.loads(artifact.file(name).read_text(encoding="utf-8")) for name in names]
    except (OSError, ValidationError, ValueError) as error:
        raise CheckpointError(
            f"model in {artifact.path} has a configuration that this version cannot read; rerun "
            "train"
        ) from error
    return config, trees


def _set(hashes: list[str] | None) -> frozenset[str] | None:
    return None if hashes is None else frozenset(hashes)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


def _write_json(path: Path, tree: Any) -> None:
    write_text(path, json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
