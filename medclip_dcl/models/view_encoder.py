"""Image encoder, head and fixed scale: what contrasts two views of one image.

Probes read the features below the head, `features`; the loss compares what lies above it.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from medclip_dcl.image_only.settings import ViewsConfig
from medclip_dcl.models.image_encoder import ImageEncoder
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.text_encoder import initialise_linear


class ViewEncoder(nn.Module):
    """The model of the image-only experiment: views of images on one unit sphere.

    Attributes:
        image: view -> feature map.
        head: mean of the map -> shared space; two layers.
        gamma: root of the score's scale, fixed.

    Source: Chen et al. 2020 (SimCLR); the head's width and norm follow the code of
        Chuang et al. 2020.
    """

    def __init__(self, image: ImageEncoderConfig, views: ViewsConfig) -> None:
        super().__init__()
        self.image = ImageEncoder(image)
        self.head = nn.Sequential(
            nn.Linear(self.image.width, views.head_width),
            nn.BatchNorm1d(views.head_width),
            nn.ReLU(inplace=True),
            nn.Linear(views.head_width, views.dim),
        )
        self.gamma = nn.Parameter(torch.tensor(math.sqrt(views.gamma_squared)), requires_grad=False)

    def forward(
        self, pixels: Float[Tensor, "views channels height width"]
    ) -> Float[Tensor, "views dim"]:
        """Map views onto the unit sphere.

        Args:
            pixels: normalised views.

        Returns:
            Unit vectors, float32 at least, whatever autocast does elsewhere.
        """
        vectors: Tensor = self.head(self.features(pixels))
        if vectors.dtype != torch.float64:
            vectors = vectors.float()
        return functional.normalize(vectors, dim=-1)

    def features(
        self, pixels: Float[Tensor, "images channels height width"]
    ) -> Float[Tensor, "images features"]:
        """Give the features that a probe reads.

        Args:
            pixels: normalised images.

        Returns:
            Mean of each feature map over its cells.
        """
        maps: Tensor = self.image(pixels)
        return maps.mean(dim=(2, 3))

    def clamp_gamma(self) -> None:
        """Leave gamma as it is: it is fixed."""

    def initialise(self, generator: torch.Generator) -> None:
        """Draw fresh weights; gamma stays.

        Args:
            generator: CPU generator; the only source of randomness.
        """
        self.image.initialise(generator)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                initialise_linear(layer, generator)


def build_view_encoder(image: ImageEncoderConfig, views: ViewsConfig, seed: int) -> ViewEncoder:
    """Build the model with random weights.

    Args:
        image: the image encoder.
        views: head and scale.
        seed: the same seed gives the same weights; the global generator is left alone.

    Returns:
        The model, in training mode, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):  # layers draw once while they are built
        model = ViewEncoder(image, views)
    model.initialise(torch.Generator().manual_seed(seed))
    return model
