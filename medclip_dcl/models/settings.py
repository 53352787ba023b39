"""Settings of the two encoders and of the similarity between them."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from medclip_dcl.core.plugins import IMAGE_ENCODERS
from medclip_dcl.core.settings import LOCAL, Section

RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"depths": (2, 2, 2, 2), "widths": (64, 128, 256, 512), "layer": "basic"},
    "resnet34": {"depths": (3, 4, 6, 3), "widths": (64, 128, 256, 512), "layer": "basic"},
    "resnet50": {"depths": (3, 4, 6, 3), "widths": (256, 512, 1024, 2048), "layer": "bottleneck"},
    "resnet101": {"depths": (3, 4, 23, 3), "widths": (256, 512, 1024, 2048), "layer": "bottleneck"},
}
"""Sizes of the ResNets that have a name. Source: He et al. 2016, Table 1."""


class ImageEncoderConfig(Section):
    """Image -> region vectors."""

    kind: Annotated[str, AfterValidator(IMAGE_ENCODERS.check)] = "resnet"
    """`resnet`: of the sizes below; `resnet18` to `resnet101`: of those of He et al.; `backbone`:
    any of transformers' backbones that gives a feature map, as `backbone` describes it; `vit`: a
    vision transformer (DINOv2, DINOv3, RAD-DINO, SigLIP, CLIP, ViT), whose patches are the
    regions, as the config.json of `pretrained` or `backbone` describes it; or an encoder of a
    plugin, which reads `backbone` as it likes."""
    backbone: dict[str, JsonValue] = Field(default_factory=dict)
    """Configuration of that backbone as in its config.json: `model_type`, such as `convnext`,
    `swin` or `dinov2`, and its sizes; the last stage's map is read."""
    regions: Literal["patches", "pooled", "first"] = "patches"
    """What a `vit` or a ResNet gives: a vector of every patch, or its own single vector of the
    whole image, which has no heatmap; `first`: that of the first patch, as CXR-CLIP reads a Swin
    transformer."""
    normalisation: tuple[tuple[float, Annotated[float, Field(gt=0)]], ...] = ()
    """Mean and spread of the grey levels of 0 to 1, a pair per channel of a `vit` or a ResNet;
    empty: those of the preprocessor_config.json next to a `vit`'s weights, else 0.5 and 0.25."""
    depths: tuple[Annotated[int, Field(le=256)], ...] = (2, 2, 2, 2)
    """Blocks per stage; (2, 2, 2, 2) is ResNet-18. Three stages double the grid."""
    widths: tuple[Annotated[int, Field(le=65536)], ...] = (64, 128, 256, 512)
    """Channels per stage."""
    layer: Literal["basic", "bottleneck"] = "basic"
    """Residual block: basic for ResNet-18 and -34, bottleneck above."""
    pretrained: Annotated[str, LOCAL] = ""
    """Directory or file (safetensors, or a torch file of tensors alone) of weights to start from,
    in the key layout of transformers, torchvision or BioViL, or OWNER/NAME@REVISION of a hub, the
    revision 40 hexadecimal digits; `${WORK}/image_weights`: learned from the training images
    before, by `pretrain_images`; empty: random."""
    input_px: Annotated[int, Field(ge=8, le=8192)] = 480
    """Height and width of the input: the random crop of a prepared image; paper: 480."""

    @model_validator(mode="before")
    @classmethod
    def _sizes_of_a_name(cls, tree: Any) -> Any:
        sizes = RESNETS.get(tree.get("kind", "")) if isinstance(tree, dict) else None
        if sizes is None:
            return tree
        for name, size in sizes.items():
            given = tree.get(name, size)
            if (tuple(given) if isinstance(given, list) else given) != size:
                raise ValueError(f"{name} {given} is not that of {tree['kind']}; leave it out")
        return {**tree, **sizes}

    @model_validator(mode="after")
    def _backbone_is_described(self) -> "ImageEncoderConfig":
        if self.kind in IMAGE_ENCODERS:
            return self
        if self.kind != "vit" and (self.kind == "backbone") != bool(self.backbone):
            raise ValueError("kind backbone and a description under backbone go together")
        if self.kind == "vit" and not (self.backbone or self.pretrained):
            raise ValueError("kind vit needs pretrained, or a description under backbone")
        if self.kind != "vit" and self.regions == "first":
            raise ValueError("first regions are those of kind vit")
        if self.kind == "backbone" and self.regions == "pooled":
            raise ValueError("pooled regions are those of a vit or a ResNet")
        if self.kind == "backbone" and self.normalisation:
            raise ValueError("normalisation is that of a vit or a ResNet")
        if self.backbone and not isinstance(self.backbone.get("model_type"), str):
            raise ValueError("backbone must name its model_type")
        return self

    @model_validator(mode="after")
    def _one_width_a_stage(self) -> "ImageEncoderConfig":
        if not self.depths or len(self.depths) != len(self.widths):
            raise ValueError("depths and widths must name the same stages, one at least")
        if min(self.depths + self.widths) < 1:
            raise ValueError("depths and widths must be positive")
        return self


class TextEncoderConfig(Section):
    """Sentence -> vector: the fitted language model, [CLS] and a linear map."""

    pretrained: Annotated[str, LOCAL] = ""
    """Directory of weights, or OWNER/NAME@REVISION of a hub: BERT, another text encoder of
    transformers, a sentence encoder, or the text side of CLIP or SigLIP; empty: the model of
    `fit_language_model`. Likelihoods stay with that of `language_model`."""
    max_tokens: Annotated[int, Field(ge=8, le=512)] = 128
    """Longest input, word pieces; longer sentences are truncated, as are those that are longer
    than the encoder reads."""
    pooling: Literal["auto", "cls", "mean", "eos", "last"] = "auto"
    """State that becomes the vector: the first, the mean, that of the last word piece, or the last
    of a window that is filled with padding, as SigLIP reads it; `auto`: the encoder's own."""
    projection_width: Annotated[int, Field(ge=0, le=65536)] = 0
    """Units of a hidden layer between the text encoder and the shared space; 0: none."""


class SimilarityConfig(Section):
    """Regions and sentence -> image-sentence score."""

    kind: Literal["lse", "nl", "lse_nl", "mean", "global", "biovil", "cxr_clip"] = "lse_nl"
    """Aggregator: log-sum-exp, non-local, the mean of both, mean score, or the mean region's score;
    `biovil` and `cxr_clip`: the last, with their maps of two layers, and BioViL's of regions that
    keep their lengths. Wang et al. name the first two; their formulas and the mean are ours."""
    tau: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of log-mean-exp over regions, and of the attention of the best region to all."""
    dim: Annotated[int, Field(gt=0, le=65536)] = 128
    """Width of the shared space; paper: 128."""
    gamma_squared: Annotated[float, Field(ge=1, le=100)] = 14.0
    """Initial scale of the score; paper: gamma = sqrt(14), learned; it stays in [1, 100]."""


class ModelConfig(Section):
    """Both encoders and the similarity."""

    pretrained: Annotated[str, LOCAL] = ""
    """Directory, or OWNER/NAME@REVISION of a hub, with a whole model to start from: CLIP or SigLIP
    (MedSigLIP) of transformers, or BiomedCLIP of open_clip; or directory of a model package, whose
    images are prepared as `images` must say. Its encoders, maps into the shared space and scale
    replace what is set below."""
    image: ImageEncoderConfig = ImageEncoderConfig()
    """Image encoder."""
    text: TextEncoderConfig = TextEncoderConfig()
    """Text encoder."""
    similarity: SimilarityConfig = SimilarityConfig()
    """Similarity."""
    lora: dict[Literal["image", "text"], Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """Encoder -> rank of low-rank adapters, scaled by 2, which every linear layer gets: they are
    trained in its place, and merged on publishing. Needs peft."""

    @model_validator(mode="after")
    def _one_start(self) -> "ModelConfig":
        if self.pretrained and (self.image.pretrained or self.text.pretrained):
            raise ValueError("pretrained is a whole model: leave out image.pretrained and text's")
        return self


EngineName = Literal["auto", "torch", "openvino"]
Precision = Literal["auto", "float32", "bfloat16", "float16"]


class InferenceConfig(Section):
    """Engine and precision of a finished model (`evaluate`, `build_index`, the service)."""

    engine: EngineName = "torch"
    """`openvino` is for CPUs; `auto`: it where it is installed and answers like PyTorch, so that
    figures depend on what is installed, in their last digits."""
    precision: Precision = "auto"
    """Of the encoders; scores are always float32. `auto`: bfloat16 on a CPU that multiplies in it,
    where that changes at most 1 % of the model's decisions, as `calibrate_scores` found; else
    float32, as always in `evaluate` and `fit_head`. `float16` is for GPUs."""


_MOST_CHANGED = 0.01  # of a model's decisions, by bfloat16


@cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor has products of bfloat16; False where that is unknown."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def settle_inference(
    settings: InferenceConfig, changed: float | None = None, device: str = "cpu"
) -> InferenceConfig:
    """Say what `auto` is where bfloat16 changes that share of the decisions; None: float32."""
    if settings.precision != "auto":
        return settings
    is_near = changed is not None and changed <= _MOST_CHANGED
    reduced = is_near and device == "cpu" and multiplies_bfloat16()
    return settings.model_copy(update={"precision": "bfloat16" if reduced else "float32"})


class ProbabilitiesConfig(Section):
    """Scores turned into probabilities (`calibrate_scores`)."""

    least_per_class: Annotated[int, Field(ge=1)] = 30
    """Validation images with a finding, and as many without it, below which it stays
    uncalibrated."""
