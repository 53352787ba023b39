"""A model package as it may leave the institution: no patient, no folder, with its cards.

What stays behind: the hashes of the training patients' ids (who knows how ids are formed can
try them all), the encoded images of the bank (the offsets of the model's own prompts go along), and
every setting but those of `TrainingConfig`, whose own places
(folders, tables, hosts) are withheld. A vocabulary that was learned from the reports consists of
pieces of them, so it is refused unless it is allowed.
"""

import json
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import read_heads, write_heads
from medclip_dcl.inference.model_package import (
    ARTIFACT,
    CARD,
    CONFIG,
    SUBJECTS,
    TEXT,
    TEXT_FILES,
    WEIGHTS,
)
from medclip_dcl.training.config import read_training_config

from .cards import DATA_CARD, MODEL_CARD

_KEPT = (WEIGHTS, *(f"{TEXT}/{name}" for name in TEXT_FILES))
_KEPT_IF_THERE = (
    model_package.CALIBRATION_FILE,
    model_package.INPUT_RANGE_FILE,
    model_package.OFFSETS_FILE,
)
_CARD = (
    *("intended_use", "limits", "prompts", "preprocessing", "grid", "objective", "eta"),
    *("data", "training"),
)


def export_model(
    model: Path, cards: Artifact, folder: Path, *, allow_vocabulary: bool = False
) -> Artifact:
    """Copy a model package without what must not leave the institution.

    Args:
        model: folder of the package; every byte of it is checked.
        cards: its cards, from `cards_of`.
        folder: receives the copy; its parent exists.
        allow_vocabulary: whether word pieces that were learned from the reports may go.

    Returns:
        A model package like any other, except that it does not say whom it was trained on.

    Raises:
        CheckpointError: the model holds a file that is not known here, or its vocabulary was
            learned from the reports and that is not allowed.
    """
    found = model_package.read_model_package(model)
    source = open_artifact(model, ARTIFACT, verify=False)
    expected = {*_KEPT, *_KEPT_IF_THERE, CONFIG, CARD, SUBJECTS, model_package.BANK_FILE}
    expected |= {model_package.HEADS_FILE, model_package.HEAD_ARRAYS_FILE}
    if strange := sorted(set(source.files) - expected):
        raise CheckpointError(
            f"the model holds {len(strange)} files that no model package has; package it again"
        )
    settings = read_training_config(found.path)
    learned = not (settings.model.text.pretrained or settings.language_model.pretrained)
    if learned and not allow_vocabulary:
        raise CheckpointError(
            "the vocabulary was learned from the training reports and consists of pieces of them, "
            "names among them where reports hold names; look through text/tokenizer.json, then "
            "give --allow-vocabulary"
        )
    kept = [*_KEPT, *(name for name in _KEPT_IF_THERE if name in source.files)]
    with write_artifact(
        folder, ARTIFACT, make_fingerprint(ARTIFACT, {}, {"model": source})
    ) as writer:
        (writer.directory / TEXT).mkdir(exist_ok=True)
        for name in kept:
            write_bytes(writer.directory / name, source.file(name).read_bytes())
        if heads := read_heads(model):
            write_heads(writer.directory, heads)
        card = {name: found.card[name] for name in _CARD if name in found.card}
        if "objective" in card:  # of an earlier version, it may name a table
            card["objective"] = settings.objective.public_settings()
        write_text(writer.directory / CONFIG, _json(settings.public_settings()))
        write_text(writer.directory / CARD, _json(card))
        write_text(writer.directory / SUBJECTS, _json(None))
        for name, output in (("README.md", MODEL_CARD), (DATA_CARD, DATA_CARD)):
            write_bytes(writer.directory / name, cards.file(output).read_bytes())
        return writer.commit({})


def _json(tree: Any) -> str:
    return json.dumps(tree, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
