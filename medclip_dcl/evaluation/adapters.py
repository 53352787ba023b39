"""Adapters: other people's models, evaluated as ours are.

BioViL is read as Microsoft publishes it: a folder holds CXR-BERT's config.json, vocabulary and
weights, and next to them the image model, `biovil_image_resnet50_proj_size_128.pt`, which the same
release has. Weights are read as plain tensors, and none of the release's code is run.

Source: Boecking et al. 2022; layout and preprocessing as in microsoft/hi-ml, hi-ml-multimodal
    (`ImageModel`, `MLP`, `create_chest_xray_transform_for_inference`). Ours: its crop is cut from
    the prepared image, not from the original.
"""

import hashlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import AutoConfig

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.files import sha256_file
from medclip_dcl.core.settings import resolve_path
from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.settings import EvaluationConfig
from medclip_dcl.models.dual_encoder import build_dual_encoder
from medclip_dcl.models.image_encoder import (
    MEAN,
    SPREAD,
    ImageEncoder,
    load_image_weights,
    to_input,
)
from medclip_dcl.models.pretrained import fetch_weights, fill, read_tensors
from medclip_dcl.models.settings import (
    ImageEncoderConfig,
    ModelConfig,
    SimilarityConfig,
    TextEncoderConfig,
)
from medclip_dcl.models.text_encoder import (
    load_trained_projection,
    read_bert_config,
    read_bert_tokenizer,
)
from medclip_dcl.models.towers import read_start

# Scale of an adapted model's scores: CLIP's largest logit scale. It moves no metric, only the
# `score` that stands next to each margin.
_ADAPTED_GAMMA_SQUARED = 100.0
PAIR = "transformers"
"""`evaluate.adapter.model` of a folder with a pair of encoders."""
BIOVIL = "biovil"
"""`evaluate.adapter.model` of a folder with BioViL's."""


def adapter_digest(config: EvaluationConfig) -> str:
    """Name the model of `evaluate.adapter`: SHA-256 of the callable's name and its weights."""
    digest = hashlib.sha256(config.evaluate.adapter.model.encode())
    weights = _adapter_weights(config)
    if weights is not None:
        for file in sorted(weights.rglob("*")) if weights.is_dir() else [weights]:
            if file.is_file():
                digest.update(f"{file.name} {sha256_file(file)}".encode())
    return digest.hexdigest()


def load_adapter(config: EvaluationConfig) -> EvaluatedModel:
    """Build the model that `evaluate.adapter` names; ConfigError where that is impossible."""
    settings = config.evaluate.adapter
    weights = _adapter_weights(config)
    similarity = SimilarityConfig(kind=settings.similarity)
    if settings.model in {PAIR, BIOVIL}:
        if weights is None:
            raise ConfigError(
                f"evaluate.adapter.model {settings.model} needs evaluate.adapter.weights"
            )
        digest = adapter_digest(config)
        if settings.model == PAIR:
            pair = PairEncoders(weights, pooled=settings.similarity == "global")
            return EvaluatedModel(digest, pair, similarity, pair.gamma_squared)
        # Its vector of an image is the mean of projected patches as they are, not of unit ones.
        keeps_lengths = settings.similarity == "global"
        encoders = BioVil(weights)
        return EvaluatedModel(
            digest, encoders, similarity, _ADAPTED_GAMMA_SQUARED, "biovil", keeps_lengths
        )
    encoders = _callable(settings.model)(*([] if weights is None else [str(weights)]))
    for name in ("embed_images", "embed_sentences"):
        if not callable(getattr(encoders, name, None)):
            raise ConfigError(
                f"what {settings.model} builds has no {name}; it needs embed_images and "
                "embed_sentences"
            )
    return EvaluatedModel(adapter_digest(config), encoders, similarity, _ADAPTED_GAMMA_SQUARED)


class PairEncoders:
    """CLIP, SigLIP, MedSigLIP or BiomedCLIP as it is, at its own input size.

    Scored globally, an image has the one vector that the model gives it; else its patches.
    """

    def __init__(self, folder: Path, *, pooled: bool) -> None:
        image = ImageEncoderConfig(
            kind="vit", pretrained=str(folder), regions="pooled" if pooled else "patches"
        )
        asked = ModelConfig(image=image, text=TextEncoderConfig(max_tokens=512))
        begun = read_start(asked, None, folder, whole=True)
        sizes: dict[str, Any] = dict(begun.settings.image.backbone)
        self._px: int = AutoConfig.for_model(**sizes).image_size
        sized = begun.settings.image.model_copy(update={"input_px": self._px})
        settings = begun.settings.model_copy(update={"image": sized})
        model = build_dual_encoder(settings, begun.text_config, seed=0)
        begun.fill(model)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device).eval()
        self._tokenizer: Any = begun.tokenizer
        self._max_tokens = begun.settings.text.max_tokens
        self.gamma_squared = float(model.gamma.detach() ** 2)

    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the region vectors of prepared images."""
        return self._model.encode_images(to_input(images, self._px).to(self._device))

    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Return the image encoder's features, averaged over the regions."""
        maps: Tensor = self._model.image(to_input(images, self._px).to(self._device))
        return maps.mean(dim=(2, 3))

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return the vectors of sentences."""
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
            split_special_tokens=True,
            return_tensors="pt",
        ).to(self._device)
        return self._model.encode_sentences(tokens["input_ids"], tokens["attention_mask"])


def _callable(name: str) -> Callable[..., Any]:
    if not all(name.partition(":")):
        raise ConfigError(
            f"evaluate.adapter.model is {name!r}; it must read module:callable, {PAIR} or {BIOVIL}"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as `python -m` finds it
    try:
        found = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(
            f"evaluate.adapter.model {name!r} cannot be imported ({error}); put its module on "
            "the path"
        ) from error
    if not callable(found):
        raise ConfigError(f"evaluate.adapter.model {name!r} is not callable; name a function")
    built: Callable[..., Any] = found
    return built


def _adapter_weights(config: EvaluationConfig) -> Path | None:
    if not config.evaluate.adapter.weights:
        return None
    path = fetch_weights(resolve_path(config.evaluate.adapter.weights, config.work))
    if not path.exists():
        raise ConfigError(f"evaluate.adapter.weights names {path}, which does not exist")
    return path


IMAGE_WEIGHTS = "biovil_image_resnet50_proj_size_128.pt"
"""Its image model, as the release names it."""

RESNET = ImageEncoderConfig(kind="resnet50", input_px=480)
"""Its image encoder: the central 480 pixels of an image whose shorter side is resized to 512."""

_PROJECTOR = "projector.model."


class BioVil:
    """BioViL behind the functions that an evaluation asks for.

    Region vectors keep the lengths that the projector gives them: BioViL's vector of an image is
    their mean, and of unit vectors it would be another.
    """

    def __init__(self, folder: Path, image: ImageEncoderConfig = RESNET) -> None:
        """Read both encoders; CheckpointError where a file is missing or of another layout."""
        file = folder / IMAGE_WEIGHTS
        encoder = ImageEncoder(image)
        load_image_weights(encoder, file)
        projector = _projector(file)
        text = load_trained_projection(folder, read_bert_config(folder))
        if text is None:
            raise CheckpointError(
                f"{folder} has CXR-BERT without its projection head; give CXR-BERT-specialized"
            )
        self._tokenizer = read_bert_tokenizer(folder)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._px = image.input_px
        self._encoder, self._projector, self._text = (
            part.eval().requires_grad_(False).to(self._device)
            for part in (encoder, projector, text)
        )
        self._longest = text.backbone.config.max_position_embeddings

    def embed_images(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images rows columns dim"]:
        """Return the projected vector of every patch, of any length."""
        projected: Tensor = self._projector(self._maps(images))
        return projected.permute(0, 2, 3, 1)

    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Return the ResNet's features, averaged over the image."""
        return self._maps(images).mean(dim=(2, 3))

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Return the projected [CLS] states of CXR-BERT."""
        tokens = self._tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=self._longest,
            return_tensors="pt",
        ).to(self._device)
        vectors: Tensor = self._text(tokens["input_ids"], tokens["attention_mask"])
        return vectors

    def _maps(self, images: UInt8[np.ndarray, "images size size"]) -> Tensor:
        # Grey levels of 0 to 1, as hi-ml gives them; three equal channels are folded into one.
        pixels = to_input(images, self._px).mul(SPREAD).add(MEAN)
        maps: Tensor = self._encoder(pixels.to(self._device))
        return maps


def _projector(file: Path) -> nn.Module:
    # Two convolutions of 1 x 1, a batch norm and a ReLU between them; the first has no bias.
    state = {
        key.removeprefix(_PROJECTOR): value
        for key, value in read_tensors(file).items()
        if key.startswith(_PROJECTOR)
    }
    inner, outer = state.get("0.weight"), state.get("3.weight")
    if inner is None or outer is None:
        raise CheckpointError(
            f"{file} has no image projector; give Microsoft's {IMAGE_WEIGHTS} (BioViL-T's, which "
            "compares two images, is not read)"
        )
    projector = nn.Sequential(
        nn.Conv2d(inner.shape[1], len(inner), 1, bias=False),
        nn.BatchNorm2d(len(inner)),
        nn.ReLU(),
        nn.Conv2d(len(inner), len(outer), 1),
    )
    fill(projector, state, heads=())
    return projector
