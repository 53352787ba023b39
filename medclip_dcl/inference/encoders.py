"""Both encoders of a published model, with the weights that it was published with."""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.inference.model_package import SavedModel
from medclip_dcl.models.architectures import hub_closed
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.encoder_files import packaged_text_config, read_tokenizer
from medclip_dcl.models.image_encoder import preprocessing_facts

LOGGER = logging.getLogger("medclip.inference")

_LARGEST_BUFFERS = 1 << 26  # bytes
_LARGEST_LAYER = 1 << 29  # bytes that a layer reads and writes for one image, in float32
_LARGEST_GRID = 1 << 14  # regions


def load_encoders(published: SavedModel) -> tuple[DualEncoder, PreTrainedTokenizerBase]:
    """Load the encoders of a published model onto the CPU, and its tokenizer; nothing is fetched.

    Raises:
        CheckpointError: weights and configuration do not fit each other, or images were
            prepared otherwise than this version prepares them.
    """
    _check_preprocessing(published)
    with hub_closed(), published.text_folder() as folder:
        text_config = packaged_text_config(folder)
        return _build_model(published, text_config), read_tokenizer(folder, text_config)


def warn_of_cut_texts(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int) -> bool:
    """Log how many texts have more than `limit` word pieces; return whether any has."""
    # None has more than bytes, so most need not be cut into pieces here.
    long = [text for text in texts if len(text.encode()) > limit - 2]
    pieces = tokenizer(long, split_special_tokens=True, verbose=False)["input_ids"] if long else []
    if cut := sum(len(item) > limit for item in pieces):
        LOGGER.warning(
            "%d of %d texts are longer than the %d word pieces that the model reads: what is "
            "beyond is not read; give sentences (this is logged once)",
            *(cut, len(texts), limit),
        )
    return cut > 0


def _build_model(published: SavedModel, text_config: PreTrainedConfig) -> DualEncoder:
    weights, settings = published.weights(), published.config.model
    try:
        with torch.device("meta"):  # shapes alone: sizes may be anything, and take no memory here
            shadow = DualEncoder(settings, text_config)
    except ConfigError as error:
        raise CheckpointError(f"model {published.digest[:12]}: {error}") from error
    shapes = {name: value.shape for name, value in shadow.state_dict().items()}
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise CheckpointError(
            f"weights of model {published.digest[:12]} do not fit its configuration; rerun train"
        )
    _check_memory(shadow, settings.image.input_px, sum(map(_bytes, weights.values())))
    model = build_dual_encoder(settings, text_config, seed=0)
    model.load_state_dict(weights)
    return model


@torch.no_grad()
def _check_memory(shadow: DualEncoder, input_px: int, weight_bytes: int) -> None:
    # What no weight bounds: buffers that are not stored, and the maps of an image of any size.
    stored = shadow.state_dict().keys()
    buffers = sum(_bytes(item) for name, item in shadow.named_buffers() if name not in stored)
    if buffers > _LARGEST_BUFFERS + weight_bytes:
        raise CheckpointError(
            f"the encoders hold {buffers:,} bytes besides their {weight_bytes:,} of weights, above "
            f"{_LARGEST_BUFFERS:,} more; the model is damaged, or not one of train"
        )
    most, grid = 0, 0

    def measure(_module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal most
        tensors = [item for item in (*inputs, output) if isinstance(item, Tensor)]
        most = max(most, sum(map(_bytes, tensors)))

    hooks = [module.register_forward_hook(measure) for module in shadow.image.modules()]
    try:
        pixels = torch.zeros(1, 1, input_px, input_px, device="meta")
        rows, columns = shadow.eval().encode_images(pixels).shape[1:3]
        grid = rows * columns
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the image encoder takes no input of {input_px} pixels, its input_px; rerun train"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if most > _LARGEST_LAYER or grid > _LARGEST_GRID:
        raise CheckpointError(
            f"model.image.input_px {input_px} makes {grid:,} regions of an image, of at most "
            f"{_LARGEST_GRID:,}, and takes {most:,} bytes in a layer, of at most "
            f"{_LARGEST_LAYER:,}; train with a smaller one"
        )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _check_preprocessing(published: SavedModel) -> None:
    trained_on = published.card.get("preprocessing", {})
    here = preprocessing_facts(published.config.images, published.config.model)
    differing = sorted(name for name in here if trained_on.get(name) != here[name])
    if differing:
        name = differing[0]
        raise CheckpointError(
            f"model {published.digest[:12]} was trained with preprocessing {name} = "
            f"{trained_on.get(name)}, this version uses {here[name]}; use the version that "
            "published it, or train again"
        )
