"""A model that knows the answer: each word has an axis, each image shows words in cells."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.evaluation.evaluated_model import EvaluatedModel
from medclip_dcl.evaluation.inputs import EncodedImages
from medclip_dcl.models.settings import SimilarityConfig

WORDS = ("air", "bone", "cyst", "dust", "edge", "fluid", "normal")
GRID = 4


class Words:
    """Two functions that know the answer; no images are encoded, their vectors are given."""

    def embed_images(self, images: np.ndarray) -> Tensor:
        raise NotImplementedError("images come with their vectors")

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([vector_of(text.lower().strip(".").split()) for text in texts])


def oracle() -> EvaluatedModel:
    """A model that knows the answer, at scale 1."""
    return EvaluatedModel("oracle", Words(), SimilarityConfig(kind="lse"), 1.0)


def vector_of(words: Sequence[str]) -> Tensor:
    total = torch.stack(
        [functional.one_hot(torch.tensor(WORDS.index(w)), len(WORDS)) for w in words]
    )
    return functional.normalize(total.sum(0).float(), dim=0)


def shown(
    *images: dict[tuple[int, int], str], size_px: tuple[int, int] = (40, 80)
) -> EncodedImages:
    """Images of which image i shows `word` in cell (row, column), `normal` elsewhere."""
    regions = torch.stack([vector_of(["normal"]).expand(GRID, GRID, -1).clone() for _ in images])
    for number, cells in enumerate(images):
        for (row, column), word in cells.items():
            regions[number, row, column] = vector_of([word])
    names = tuple(f"image-{number}" for number in range(len(images)))
    return EncodedImages(
        names, tuple(f"p-{name}" for name in names), (size_px,) * len(images), regions
    )
