"""Settings of the two encoders and of the similarity between them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from medclip_dcl.config.section import Section


class ImageEncoderConfig(Section):
    """Film -> region vectors."""

    kind: Literal["resnet"] = "resnet"
    """Family of the backbone (transformers' ResNet)."""
    depths: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks per stage; (2, 2, 2, 2) is ResNet-18. Three stages double the grid."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    """Channels per stage."""
    layer: Literal["basic", "bottleneck"] = "basic"
    """Residual block: basic for ResNet-18 and -34, bottleneck above."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """`imagenet`: 7x7 stride 2 and max pooling; `cifar`: 3x3 stride 1, no pooling."""
    pretrained: str = ""
    """Directory or safetensors file of ResNet weights; empty: random."""
    channels: Literal[1, 3] = 1
    """Channels of the input: 1 for films; 3 for colour, which only an image set has."""
    input_px: Annotated[int, Field(ge=8)] = 480
    """Height and width of the input: the random crop of a prepared image; paper: 480."""

    @model_validator(mode="after")
    def _one_width_a_stage(self) -> Self:
        if not self.depths or len(self.depths) != len(self.widths):
            raise ValueError("depths and widths must name the same stages, one at least")
        if min(self.depths + self.widths) < 1:
            raise ValueError("depths and widths must be positive")
        return self


class TextEncoderConfig(Section):
    """Sentence -> vector: the fitted language model, [CLS] and a linear map."""

    pretrained: str = ""
    """Directory of BERT weights; empty: the model of `fit_language_model`."""
    pooling: Literal["cls", "mean"] = "cls"
    """Which state is projected; the paper reads [CLS]."""
    max_tokens: Annotated[int, Field(ge=8, le=512)] = 128
    """Longest input, word pieces; longer sentences are truncated."""


class SimilarityConfig(Section):
    """Regions and sentence -> image-sentence score."""

    kind: Literal["lse", "nl", "lse_nl", "mean", "global"] = "lse_nl"
    """Aggregator: log-sum-exp, non-local, the paper's mean of both, mean score, or the mean
    region's score."""
    tau_lse: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of log-mean-exp over regions."""
    tau_nl: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of the attention of the best region to all regions."""
    dim: Annotated[int, Field(gt=0)] = 128
    """Width of the shared space; paper: 128."""
    gamma_squared: Annotated[float, Field(ge=1, le=100)] = 14.0
    """Initial scale of the score; paper: gamma = sqrt(14), learned."""
    learn_gamma: bool = True
    """Whether gamma is learned, within gamma**2 in [1, 100]."""


class ModelConfig(Section):
    """Both encoders and the similarity."""

    image: ImageEncoderConfig = ImageEncoderConfig()
    """Image encoder."""
    text: TextEncoderConfig = TextEncoderConfig()
    """Text encoder."""
    similarity: SimilarityConfig = SimilarityConfig()
    """Similarity."""
