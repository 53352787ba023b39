"""A tiny published model with random weights as `train` commits it, and heads of `fit_head`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from transformers import PreTrainedTokenizerBase

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.data.grayscale import square
from medclip_dcl.data.images import open_image
from medclip_dcl.evaluation.classification import CORRELATION_LIMIT
from medclip_dcl.evaluation.decisions import add_calibration
from medclip_dcl.inference import model_package
from medclip_dcl.inference.heads import Head, HeadCard, HeadFigure, write_heads
from medclip_dcl.inference.input_range import fit_input_range
from medclip_dcl.inference.predictor import build_predictor
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.models.image_encoder import preprocessing_facts
from medclip_dcl.models.settings import ProbabilitiesConfig
from medclip_dcl.models.text_encoder import TextEncoder
from medclip_dcl.training.config import TrainingConfig
from medclip_dcl.training.publishing import fit_offsets
from pipelines.config import Config
from tests.support.dicom import raster_bytes
from tests.support.tiny_models import (
    random_images,
    tiny_dual_encoder,
    tiny_model_config,
    tiny_text_config,
)

SENTENCES = (
    "There is a left pleural effusion.",
    "There is a right pleural effusion.",
    "No pleural effusion.",
    "The heart is enlarged.",
    "Heart size is normal.",
    "There is right lower lobe pneumonia.",
    "No signs of pneumonia.",
)
_SIDES = {
    "effusion": ("Pleural Effusion", "Pleural effusion", "No pleural effusion"),
    "pneumonia": (
        "Pneumonia",
        ["Pneumonia", "Right lower lobe pneumonia"],
        "No signs of pneumonia",
    ),
}
PROMPTS = [
    {"name": name, "label": label, "positive": positive, "negative": negative}
    for name, (label, positive, negative) in _SIDES.items()
]

CARD = {
    "prompts": PROMPTS,
    "training": {"steps": 12, "global_batch": 8},
    "data": {"studies": 24, "patients": 24},
}


def publish(
    folder: Path,
    subjects: Iterable[str] = ("trained",),
    seed: int = 0,
    preprocessing: Mapping[str, object] | None = None,
    known: model_package.InputRange | None = None,
    config: Config | None = None,
    bank: UInt8[np.ndarray, "images size size"] | None = None,
    centred: bool = False,
) -> Artifact:
    """Commit a model into `folder`; by default a tiny one for 64-pixel images.

    `preprocessing` changes its card, `config` is that of another model; with a `bank` of
    images it has offsets. Random weights make almost one vector of all sentences, so that no
    prompt pair decides; `centred` takes their mean away.
    """
    if config is None:
        tree = {"model": tiny_model_config().model_dump(), "images": {"size_px": 64}}
        config = Config.model_validate({"work": "unused", **tree})
    facts = preprocessing_facts(config.images, config.model) | dict(preprocessing or {})
    card = CARD | {"preprocessing": facts}
    tokenizer = train_tokenizer(SENTENCES, vocabulary=200, max_tokens=32)
    model = tiny_dual_encoder(config.model, len(tokenizer), seed)
    if centred:
        _centre(model.text, tokenizer)

    def write_text_files(text: Path) -> None:
        tokenizer.save_pretrained(str(text))
        tree = tiny_text_config(len(tokenizer)).to_dict()
        (text / "config.json").write_text(json.dumps(tree))

    with write_artifact(
        folder, model_package.ARTIFACT, make_fingerprint(model_package.ARTIFACT, {"seed": seed}, {})
    ) as writer:
        model_package.write_model_package(
            writer.directory, model.state_dict(), config, card, subjects, write_text_files
        )
        if known is not None:
            model_package.write_input_range(writer.directory, known)
        if bank is not None:
            packaged = TrainingConfig.of(config)
            saved = model_package.SavedModel(writer.directory, "draft", packaged, card, None)
            predictor = build_predictor(saved, torch.device("cpu"))
            image_ids = [f"image-{number}" for number in range(len(bank))]
            offsets, regions = fit_offsets(predictor, [bank], image_ids, "validate")
            model_package.write_offsets(writer.directory, offsets, regions)
        return writer.commit({})


def fitted(finding: str, reason: str, **more: Any) -> model_package.FindingCalibration:
    """What a calibration by ten patients made of one finding."""
    counts = {"images_with": 5, "images_without": 5, "patients": 10}
    errors = {"score_error": None, "fitted_error": None}
    facts = {"finding": finding, "curve": None, "reason": reason, **counts, **errors, **more}
    return model_package.FindingCalibration.model_validate(facts)


def refuse(model: Artifact, finding: str, reason: str) -> Artifact:
    """Calibrate a model as if one finding had been refused, and the others had too few images."""
    reasons = {str(item["name"]): "too few images" for item in PROMPTS} | {finding: reason}
    known = {"correlation": 0.99, "auc": 0.9}
    calibration = model_package.ScoreCalibration(
        truth="labels",
        settings=ProbabilitiesConfig(),
        inputs={},
        correlation_limit=CORRELATION_LIMIT,
        findings=tuple(
            fitted(name, why, is_refused=name == finding, **known) for name, why in reasons.items()
        ),
    )
    return add_calibration(model, calibration)


@torch.no_grad()
def _centre(text: TextEncoder, tokenizer: PreTrainedTokenizerBase) -> None:
    tokens = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    text.eval()
    text.projection.bias -= text(tokens["input_ids"], tokens["attention_mask"]).mean(dim=0)


def random_range() -> model_package.InputRange:
    """The range of `random_images`, of a patient each, as the gate gives them to a tiny model."""
    files = [raster_bytes(image, "png") for image in random_images(60)]
    images = [square(open_image(data), 64, equalize=False) for data in files]
    return fit_input_range(images, [str(number) for number in range(60)])


def head_card(
    name: str, *, is_refused: bool = False, curve: model_package.Curve | None = None
) -> HeadCard:
    """Make the card of a head whose threshold is a margin of 0."""
    reason = "upside down" if is_refused else "too few images"
    return HeadCard(
        name=name,
        kind="linear",
        features="space",
        chosen=None,
        threshold=0.0,
        calibration=fitted(name, "" if curve else reason, curve=curve, is_refused=is_refused),
        images_with=10,
        images_without=20,
        patients=30,
        figures={"auc": HeadFigure(value=0.75, low=0.5, high=0.9, n=8, subjects=8)},
        inputs={},
        settings={},
    )


def add_heads(model: Artifact, width: int) -> Artifact:
    """Put a calibrated head and a refused one into a model; the margin of both is 0.5."""
    arrays = {"weight": np.zeros(width), "bias": np.array([0.5])}
    cards = (
        head_card("tuberculosis", curve=model_package.Curve(slope=1.0)),
        head_card("tube", is_refused=True),
    )
    heads = [Head(card, arrays) for card in cards]
    names = (model_package.HEADS_FILE, model_package.HEAD_ARRAYS_FILE)
    return model_package.rewrite_package(
        model, model.path, names, lambda folder: write_heads(folder, heads)
    )
