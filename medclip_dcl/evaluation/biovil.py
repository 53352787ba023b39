"""BioViL as Microsoft publishes it: ResNet-50 with an image projector, and CXR-BERT-specialized.

A folder holds CXR-BERT's config.json, vocabulary and weights, and next to them the image model,
`biovil_image_resnet50_proj_size_128.pt`, which the same release has. Weights are read as plain
tensors, and none of the release's code is run.

Source: Boecking et al. 2022; layout and preprocessing as in microsoft/hi-ml, hi-ml-multimodal
    (`ImageModel`, `MLP`, `create_chest_xray_transform_for_inference`). Ours: its crop is cut from
    the prepared image, not from the original.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from medclip_dcl.errors import CheckpointError
from medclip_dcl.models.image_encoder import (
    MEAN,
    SPREAD,
    ImageEncoder,
    load_image_weights,
    to_input,
)
from medclip_dcl.models.pretrained import fill, read_tensors
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.text_encoder import (
    load_trained_projection,
    read_bert_config,
    read_bert_tokenizer,
)

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
        """Give the projected vector of every patch, of any length."""
        projected: Tensor = self._projector(self._maps(images))
        return projected.permute(0, 2, 3, 1)

    def embed_features(
        self, images: UInt8[np.ndarray, "images size size"]
    ) -> Float[Tensor, "images features"]:
        """Give the ResNet's features, averaged over the image."""
        return self._maps(images).mean(dim=(2, 3))

    def embed_sentences(self, texts: Sequence[str]) -> Float[Tensor, "texts dim"]:
        """Give the projected [CLS] states of CXR-BERT."""
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
