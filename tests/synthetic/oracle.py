"""A predictor that knows the answer: each word has an axis, each film shows words in cells."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.model.similarity import image_sentence_scores
from medclip_dcl.tasks.outcome import Films
from medclip_dcl.tasks.prompts import Finding
from medclip_dcl.tasks.zero_shot import margins, prompt_texts

WORDS = ("air", "bone", "cyst", "dust", "edge", "fluid", "normal")
GRID = 4


class OracleModel:
    """Scores as the real model does; gamma is 1."""

    gamma = torch.tensor(1.0)

    def score(self, regions: Tensor, sentences: Tensor) -> Tensor:
        return image_sentence_scores(regions.flatten(1, 2), sentences, SimilarityConfig(kind="lse"))


class Oracle:
    """Stands where a `Predictor` stands: same methods, vectors made by hand."""

    model = OracleModel()

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        return torch.stack([vector_of(text.lower().strip(".").split()) for text in texts])

    def margins(self, regions: Tensor, findings: Sequence[Finding]) -> Tensor:
        prompts = self.embed_sentences(prompt_texts(findings))
        return margins(self.model.score(regions, prompts), findings)


def vector_of(words: Sequence[str]) -> Tensor:
    total = torch.stack(
        [functional.one_hot(torch.tensor(WORDS.index(w)), len(WORDS)) for w in words]
    )
    return functional.normalize(total.sum(0).float(), dim=0)


def shown(*films: dict[tuple[int, int], str], size_px: tuple[int, int] = (40, 80)) -> Films:
    """Films of which film i shows `word` in cell (row, column), `normal` elsewhere."""
    regions = torch.stack([vector_of(["normal"]).expand(GRID, GRID, -1).clone() for _ in films])
    for number, cells in enumerate(films):
        for (row, column), word in cells.items():
            regions[number, row, column] = vector_of([word])
    names = tuple(f"film-{number}" for number in range(len(films)))
    return Films(names, tuple(f"p-{name}" for name in names), (size_px,) * len(films), regions)
