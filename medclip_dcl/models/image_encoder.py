"""Prepared image -> input -> feature map, by transformers' ResNet, another backbone or a ViT.

Every encoder takes the same grey input. A vision transformer sees the grey level in each of its
channels, with the mean and spread that it was trained with.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoBackbone, AutoModel, ResNetConfig, ResNetModel

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.plugins import IMAGE_ENCODERS
from medclip_dcl.data.limits import Fit, ImagesConfig
from medclip_dcl.models.architectures import MAP_TYPES, REFUSALS, VIT_TYPES, build_config
from medclip_dcl.models.public.weights import (
    RESNET_HEADS,
    LoadReport,
    fill,
    fold_to_grey,
    read_tensors,
    to_transformers,
)
from medclip_dcl.models.settings import ImageEncoderConfig, ModelConfig

# Heads and last norms that a classifier's checkpoint has besides its backbone.
_BACKBONE_HEADS = ("classifier.", "pooler.", "layernorm.", "norm.", "head.")
# Norms that a backbone adds to its maps, and that no classifier's file holds.
_BACKBONE_FRESH = ("hidden_states_norms.",)

CHANNELS = 1  # radiographs are gray

MEAN = 0.5  # grey level, on the scale 0 to 1, that becomes 0
SPREAD = 0.25  # grey levels, on the scale 0 to 1, that become 1

_SETTING = "model.image.backbone"
_PATCHES_LIKE_POOLED = ("clip_vision_model", "resnet", "vit")


def to_input(
    images: UInt8[np.ndarray, "images size size"] | UInt8[Tensor, "images size size"],
    input_px: int,
    fit: Fit | None = None,
) -> Float[Tensor, "images 1 input_px input_px"]:
    """Turn prepared 8-bit images into the model's input, without cropping.

    Source: ours. The whole square is stretched onto the input, so a cell of the map
        and a box on the image differ by one factor. Padded squares as CheXzero does it.
    """
    pixels = torch.as_tensor(images).unsqueeze(1).float()
    if pixels.shape[-1] != input_px:
        mode = "bilinear" if fit is None or fit.how != "pad" else "bicubic"
        pixels = functional.interpolate(
            pixels, size=(input_px, input_px), mode=mode, antialias=mode == "bilinear"
        )
    # Grey levels 0 to 255 become -2 to 2.
    return pixels.mul(1 / (255 * SPREAD)).sub(MEAN / SPREAD)


def preprocessing_facts(images: ImagesConfig, model: ModelConfig) -> dict[str, Any]:
    """Say how an image becomes an input, for the card of a published model; plain values.

    Another version of this package that gives other facts for the same config would feed the
    model other numbers than it was trained on.
    """
    own = {"channels": [list(channel) for channel in model.image.normalisation]}
    return {
        "prepared_px": images.size_px,
        "input_px": model.image.input_px,
        "mean": MEAN,
        "spread": SPREAD,
        "voi": images.voi,
        "equalize": images.equalize,
        **(own if model.image.kind == "vit" or model.image.normalisation else {}),
        **({} if images.fit is None else {"fit": asdict(images.fit)}),
    }


def _build_vit(settings: ImageEncoderConfig) -> nn.Module:
    # Random weights, from torch's own generator; position embeddings are those of the input's size.
    tree, input_px = settings.backbone, settings.input_px
    kind, patch = tree["model_type"], tree.get("patch_size")
    if isinstance(patch, int) and input_px % patch:
        least = max(patch, input_px // patch * patch)
        raise ConfigError(
            f"model.image.input_px {input_px} is not a multiple of the {patch} pixels of a patch; "
            f"set {least} or {least + patch}, or the {tree.get('image_size', 'size')} that the "
            "encoder was trained with"
        )
    if (kind == "swin") != (settings.regions == "first"):
        raise ConfigError(
            "model.image.regions first is that of a swin of kind vit, which has no other; set "
            "patches, or kind backbone"
        )
    if kind == "siglip2_vision_model":
        raise ConfigError(
            "siglip2_vision_model takes images of any shape, which this project does not make; "
            "give a SigLIP 2 of one resolution, whose model_type is siglip_vision_model"
        )
    # Dinov2 has a token for masked patches, which training never uses.
    own = {"image_size": input_px, "use_mask_token": False}
    config: Any = build_config(tree, VIT_TYPES, _SETTING, **own)
    with _refusals_named(config.model_type):
        vit: Any = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        patches = config.patch_size
    if not isinstance(patches, int):
        raise ConfigError(f"model.image.backbone: {kind} has patches of {patches}, not squares")
    if getattr(vit, "pooler", None) is not None:
        vit.pooler = None
    for module in vit.modules():  # a parameter without gradient would stop a distributed run
        if isinstance(mask := getattr(module, "mask_token", None), nn.Parameter):
            del module.mask_token
            module.register_buffer("mask_token", mask.detach())
    built: nn.Module = vit
    return built


@contextmanager
def _refusals_named(kind: str) -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise ConfigError(
            f"{_SETTING}: transformers refuses this configuration of {kind}, or it is another kind "
            "of encoder; compare it with the config.json of a released one"
        ) from error


def _build(settings: ImageEncoderConfig) -> nn.Module:
    # Random weights, from torch's own generator.
    if settings.kind == "vit":
        return _build_vit(settings)
    if settings.kind in IMAGE_ENCODERS:
        return IMAGE_ENCODERS[settings.kind](settings)
    if settings.kind == "backbone":
        config = build_config(settings.backbone, MAP_TYPES, _SETTING, num_channels=CHANNELS)
        with _refusals_named(config.model_type):
            backbone: nn.Module = AutoBackbone.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        return backbone
    first = settings.widths[0]
    sizes = ResNetConfig(
        num_channels=max(CHANNELS, len(settings.normalisation)),
        embedding_size=first if settings.layer == "basic" else first // 4,
        hidden_sizes=list(settings.widths),
        depths=list(settings.depths),
        layer_type=settings.layer,
    )
    return ResNetModel(sizes)


def _last_map(backbone: nn.Module, pixels: Tensor) -> Tensor:
    answer = backbone(pixels)
    features: Tensor = answer if isinstance(answer, Tensor) else answer.feature_maps[-1]
    return features


def _map_shape(backbone: nn.Module, input_px: int) -> tuple[int, int]:
    # Channels, and cells along one side: the meta device knows shapes without computing.
    shadow = copy.deepcopy(backbone).to("meta").eval()
    try:
        with torch.no_grad():
            shape = _last_map(shadow, torch.zeros(1, CHANNELS, input_px, input_px, device="meta"))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"this backbone takes no input of {input_px} pixels; set model.image.input_px to what "
            "its configuration names"
        ) from error
    return shape.shape[1], shape.shape[2]


def _without_prefix(state: Mapping[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    # A classifier's checkpoint puts a word before its backbone's keys: the best fit tells which.
    own = backbone.state_dict().keys()
    prefixes = ("", f"{backbone.base_model_prefix}.", "backbone.", "model.")
    named = [
        {key.removeprefix(prefix): value for key, value in state.items()} for prefix in prefixes
    ]
    return max(named, key=lambda tree: len(tree.keys() & own))


class ImageEncoder(nn.Module):
    """A network that keeps the map and leaves pooling to the similarity.

    `width` counts the map's channels; `stride` is input pixels from one cell to the next.
    """

    backbone: Any
    _scale: Tensor
    _shift: Tensor

    def __init__(self, settings: ImageEncoderConfig) -> None:
        super().__init__()
        self._settings, self.kind, self.backbone = settings, settings.kind, _build(settings)
        self._gives_map = settings.kind == "backbone" or settings.kind in IMAGE_ENCODERS
        channels = len(settings.normalisation)
        self.width = settings.widths[-1]
        stride = 4 * 2 ** (len(settings.depths) - 1)  # the stem quarters, each later stage halves
        if settings.kind == "vit":
            config: Any = self.backbone.config
            self.width, stride = config.hidden_size, config.patch_size
            channels = getattr(config, "num_channels", 3)
        elif self._gives_map:
            self.width, cells = _map_shape(self.backbone, settings.input_px)
            stride, channels = math.ceil(settings.input_px / cells), 0
        self.stride: int = settings.input_px if self.is_pooled else stride
        if channels:
            self._normalise(channels)

    def _normalise(self, channels: int) -> None:
        # Grey input -> grey level of 0 to 1 -> the encoder's channels, as one map.
        levels = self._settings.normalisation or ((MEAN, SPREAD),) * channels
        mean, std = torch.tensor(levels).T.reshape(2, -1, 1, 1)
        if len(mean) not in {1, channels}:
            raise ConfigError(
                f"model.image.normalisation has {len(mean)} channels, the encoder {channels}; "
                "give a mean and a spread of each"
            )
        self.register_buffer("_scale", (SPREAD / std).expand(channels, 1, 1), persistent=False)
        shift = ((MEAN - mean) / std).expand(channels, 1, 1)
        self.register_buffer("_shift", shift, persistent=False)

    @property
    def is_pooled(self) -> bool:
        """Whether an image has one vector, the encoder's own."""
        return self._settings.regions != "patches"

    @property
    def has_patches(self) -> bool:
        """Whether what maps a pooled vector into the common space maps patches as well.

        A pooling head, such as SigLIP's, stands between them. A ResNet's vector is their mean.
        """
        return self.is_pooled and self.backbone.config.model_type in _PATCHES_LIKE_POOLED

    def forward(
        self, pixels: Float[Tensor, "images channels_in height width"]
    ) -> Float[Tensor, "images channels rows columns"]:
        """Compute one map an image, of `grid(height)` by `grid(width)` cells.

        In memory it is channels-last where the weights are.
        """
        if self._gives_map:
            return _last_map(self.backbone, pixels)
        return self._features(pixels, is_pooled=self.is_pooled)

    def grid(self, input_px: int) -> int:
        """Count the map's cells along a side of the input; a ResNet's halvings round up."""
        if self._gives_map:
            return _map_shape(self.backbone, input_px)[1]
        if self.is_pooled:
            return 1
        return math.ceil(input_px / self.stride)

    def patches(
        self, pixels: Float[Tensor, "images channels_in height width"]
    ) -> Float[Tensor, "images channels rows columns"]:
        """Compute the map of patches of a `vit` or a ResNet, whatever it pools."""
        return self._features(pixels, is_pooled=False)

    def _features(self, pixels: Tensor, *, is_pooled: bool) -> Tensor:
        if self.kind == "vit":
            return self._of_vit(pixels, is_pooled=is_pooled)
        if self._settings.normalisation:
            pixels = pixels * self._scale + self._shift
        features: Tensor = self.backbone.embedder(pixels)
        for stage in self.backbone.encoder.stages:
            features = stage(features)
        return features.mean(dim=(2, 3), keepdim=True) if is_pooled else features

    def _of_vit(self, pixels: Tensor, *, is_pooled: bool) -> Tensor:
        side = pixels.shape[-1] // int(self.backbone.config.patch_size)
        # One channel times three scales is a product that OpenVINO folds into the patches' weights,
        # which then do not fit the one channel: its MultiplyConvolutionFusion throws.
        pixels = pixels.expand(-1, self._scale.shape[0], -1, -1)
        answer = self.backbone(pixels * self._scale + self._shift)
        states: Tensor = answer.last_hidden_state
        if is_pooled:
            pooled = getattr(answer, "pooler_output", None)
            return (states[:, 0] if pooled is None else pooled)[:, :, None, None]
        cells = states[:, states.shape[1] - side * side :]  # after a class token and registers
        head = getattr(self.backbone, "head", None)
        if head is not None:  # SigLIP's pools by attention: each patch as if it were alone
            cells = head(cells.reshape(-1, 1, self.width)).view_as(cells)
        elif self.backbone.config.model_type == "clip_vision_model":  # normalises its pooled state
            cells = self.backbone.post_layernorm(cells)
        # not `len`, which a traced graph would hold fixed
        grid: Tensor = cells.transpose(1, 2).reshape(cells.shape[0], self.width, side, side)
        return grid

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights from a CPU generator alone.

        Source: He et al. 2015, fan-out normal for convolutions; norms are identities.
            Other backbones as transformers starts them.
        """
        if self._gives_map or self.kind == "vit":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
                self.backbone = _build(self._settings)
            return
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu", generator=generator
                )
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()


def load_image_weights(encoder: ImageEncoder, path: Path) -> LoadReport:
    """Fill the backbone from a checkpoint, be it transformers', torchvision's or BioViL's.

    `path` is a safetensors or torch file, or a folder with one. A stem made for three channels
    is summed over them: a grey image is three equal ones. CheckpointError as `read_tensors` and
    `fill`.
    """
    state = read_tensors(path)
    if encoder.kind in IMAGE_ENCODERS:
        return fill(encoder.backbone, state, heads=())
    if encoder.kind == "backbone":
        named = fold_to_grey(_without_prefix(state, encoder.backbone), encoder.backbone)
        return fill(encoder.backbone, named, _BACKBONE_HEADS, _BACKBONE_FRESH, "transformers")
    layout, named = to_transformers(state)
    return fill(
        encoder.backbone, fold_to_grey(named, encoder.backbone), RESNET_HEADS, layout=layout
    )
