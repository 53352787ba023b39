"""A trained run -> a published model, with the card that says what it is."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float16, UInt8
from torch import Tensor

from medclip_dcl.core.settings import Section
from medclip_dcl.core.tables import read_table, spread_rows
from medclip_dcl.data.manifest import IMAGES
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.inference import model_package
from medclip_dcl.inference.input_range import fit_input_range
from medclip_dcl.inference.predictor import Predictor, build_predictor
from medclip_dcl.inference.zero_shot import prompt_levels, prompt_texts
from medclip_dcl.models.dual_encoder import merged
from medclip_dcl.models.image_encoder import preprocessing_facts
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.corpus import Corpus
from medclip_dcl.training.setup import TrainInputs, TrainSetup
from medclip_dcl.training.trainer import TrainResult

_INTENDED_USE = (
    "Research on image-text models of chest radiographs. Not a medical device: no output may "
    "guide the care of a patient."
)
_RANGE_IMAGES = 2048
_BANK_IMAGES = 256  # region vectors in float16: 4 MiB of 8 x 8 regions, 16 MiB of 16 x 16
_LEAST_VALIDATION = 64  # images; with fewer, a bank of training images is the steadier one
_IMAGES_PER_PASS = 32
_LIMITS = (
    "Frontal chest images alone; other views, body parts and ages outside the training data are "
    "not recognised as such.",
    "Scores compare prompts with an image; they are not probabilities of disease.",
    "Reports say what their author found worth saying; the model learns that habit as well.",
)


def package_model(
    folder: Path, config: Section, inputs: TrainInputs, setup: TrainSetup, trained: TrainResult
) -> dict[str, Any]:
    """Write the published model into a draft's folder, and give figures that people look at."""
    model, corpus = setup.config.model, setup.data.corpus
    # With the sizes and the pooling that the start had: the package is built without it.
    config = config.model_copy(update={"model": model})
    packaged = TrainingConfig.of(config)
    side = setup.encoder.image.grid(model.image.input_px)
    card = _model_card(packaged, inputs, corpus, trained, (side, side))
    # Merged: who reads the package needs no peft.
    weights = merged(trained.weights) if model.lora else trained.weights
    model_package.write_model_package(
        folder, weights, config, card, corpus.subject_ids, setup.start.write_text_files
    )
    columns = ["image_id", "subject_id", "split"]
    listed = read_table(inputs.manifest.path, IMAGES, columns).to_pylist()
    if len(corpus.subject_ids) > 1:  # one patient's images say nothing of another's
        levels = _input_range(setup.prepared, corpus, listed)
        model_package.write_input_range(folder, levels)
    draft = model_package.SavedModel(folder, "draft", packaged, card, None)
    model_package.write_offsets(folder, *_fit_offsets(draft, setup.prepared, corpus, listed))
    return {
        "steps": trained.state.step,
        "skipped": trained.state.skipped,
        **{name: trained.figures.get(name) for name in ("loss", "uncorrected_loss", "frac_floor")},
        "studies": len(corpus.study_ids),
        "patients": len(corpus.subject_ids),
        **trained.state.resumed_with(),
    }


def _input_range(
    images: PreparedImages, corpus: Corpus, listed: Sequence[Mapping[str, str]]
) -> model_package.InputRange:
    # Some of the training images stand for all where they are many.
    rows = corpus.image_rows
    taken = spread_rows(len(rows), _RANGE_IMAGES)
    patient_of = {row["image_id"]: row["subject_id"] for row in listed}
    return fit_input_range(
        [images.pixels(int(rows[index])) for index in taken],
        [patient_of[corpus.image_ids[index]] for index in taken],
    )


def _fit_offsets(
    draft: model_package.SavedModel,
    images: PreparedImages,
    corpus: Corpus,
    listed: Sequence[Mapping[str, str]],
) -> tuple[model_package.PromptOffsets, Tensor]:
    """Encode a bank of images with the model in the draft, and fit its prompts' levels to them."""
    held_out = [row["image_id"] for row in listed if row["split"] == "validate"]
    split: Literal["validate", "train"] = "validate"
    # The manifest has images that were refused when they were prepared.
    image_ids = [item for item in held_out if item in images.row_of]
    if len(image_ids) < _LEAST_VALIDATION:
        split, image_ids = "train", list(corpus.image_ids)
    image_ids = [image_ids[index] for index in spread_rows(len(image_ids), _BANK_IMAGES)]

    predictor = build_predictor(draft, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    # Activations of the whole bank would not fit: it is encoded pass by pass.
    parts = np.array_split(np.array(image_ids), math.ceil(len(image_ids) / _IMAGES_PER_PASS))
    pixels = (
        np.stack([images.pixels(images.row_of[image_id]) for image_id in part]) for part in parts
    )
    return fit_offsets(predictor, pixels, image_ids, split)


def _model_card(
    config: TrainingConfig,
    inputs: TrainInputs,
    corpus: Corpus,
    trained: TrainResult,
    grid: tuple[int, int],
) -> dict[str, Any]:
    # Counts, digests and settings; no ids, and no texts but the prompts.
    names = ("manifest", "prepared", "sentences", "eta_cache", "claims")
    artifacts = {name: getattr(inputs, name) for name in names}
    best = {"metric": config.train.best_metric, "value": trained.state.best_value}
    return {
        "intended_use": _INTENDED_USE,
        "limits": list(_LIMITS),
        "prompts": [asdict(finding) for finding in inputs.prompts],
        "preprocessing": preprocessing_facts(config.images, config.model),
        "grid": {"rows": grid[0], "columns": grid[1]},
        "objective": config.objective.public_settings(),
        "eta": {
            **config.eta.model_dump(include={"source", "eta_max"}),
            "summary": inputs.eta_cache.summary,
        },
        "data": {
            "digests": {name: item.digest for name, item in artifacts.items() if item is not None},
            "studies": len(corpus.study_ids),
            "patients": len(corpus.subject_ids),
            "texts": len(corpus.texts),
        },
        "training": {
            "steps": trained.state.step,
            "skipped": trained.state.skipped,
            "published_step": trained.published_step,
            "best": best if config.train.best_metric else None,
            "global_batch": config.train.global_batch,
            "processes": config.train.processes,
            **trained.state.resumed_with(),
            "last_figures": {
                name: value
                for name, value in trained.figures.items()
                if name not in {"step", "skipped", "images_per_s"}
            },
        },
    }


@torch.inference_mode()
def fit_offsets(
    predictor: Predictor,
    images: Iterable[UInt8[np.ndarray, "_ size size"]],
    image_ids: Sequence[str],
    split: Literal["validate", "train"],
) -> tuple[model_package.PromptOffsets, Float16[Tensor, "images rows columns dim"]]:
    """Encode a bank of prepared images, and fit the levels of the predictor's own prompts to it.

    The images come some at a time, their ids all together in the same order.
    """
    bank = torch.cat([predictor.embed_images(part).half() for part in images])
    prompts = predictor.embed_sentences(prompt_texts(predictor.findings))
    levels = prompt_levels(predictor.model, bank.float(), prompts, predictor.findings).tolist()
    named = "".join(f"{image_id}\n" for image_id in image_ids)
    return model_package.PromptOffsets(
        split=split,
        images=len(bank),
        digest=hashlib.sha256(named.encode()).hexdigest(),
        findings=tuple(
            model_package.PromptOffset(finding=finding.name, positive=positive, negative=negative)
            for finding, (positive, negative) in zip(predictor.findings, levels, strict=True)
        ),
    ), bank
