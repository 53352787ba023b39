"""How alike texts are, for negatives that are weighed by it: a unit vector of every sentence.

Texts are compared by the cosine of their vectors, once and before training. The space is one of

    projection  the checkpoint's own map of [CLS], which it was trained with, where it has one
    mean        mean of the states of a text's word pieces, less the mean of the training sentences

The cosines of raw BERT states are all close to 1, whatever the texts say; less their mean they
spread over both signs. Wang et al. 2023 name the kinds of rivals, and neither space nor threshold.
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from medclip_dcl.models.text_encoder import TextEncoder, load_trained_projection
from medclip_dcl.training.corpus import Corpus, TokenTable
from medclip_dcl.training.sampler import ImageTextSampler

_TEXTS_PER_PASS = 256
_SAMPLED_BATCHES, _SAMPLED_SLOTS = 32, 64  # some 130,000 pairs: a share of 1 % within 0.1 %
_ROUNDING = 1e-4  # two copies of a sentence count as closer than any threshold


class TextSpace:
    """Maps the texts of a split to vectors; `name` is the space that was chosen.

    `encoder` is the text encoder before its first step, `checkpoint` the folder that it may have
    come from. CheckpointError where the checkpoint's projection does not fit its encoder.
    """

    def __init__(self, encoder: TextEncoder, checkpoint: Path | None, device: torch.device) -> None:
        self.name: Literal["projection", "mean"] = "mean"
        self._encoder, self._device = encoder, device
        self._centre = torch.zeros(())
        if checkpoint is not None:
            trained = load_trained_projection(checkpoint, encoder.backbone.config)
            if trained is not None:
                self.name, self._encoder = "projection", trained

    def fit(self, corpus: Corpus, tokens: TokenTable) -> Float[Tensor, "texts dim"]:
        """Return the vectors of the training texts, whose mean becomes the centre of `mean`."""
        vectors = self._encode(tokens)
        if self.name == "mean":
            counts = torch.from_numpy(np.bincount(corpus.text_of, minlength=len(vectors))).float()
            self._centre = counts @ vectors / counts.sum()
        return functional.normalize(vectors - self._centre, dim=-1)

    def vectors(self, _corpus: Corpus, tokens: TokenTable) -> Float[Tensor, "texts dim"]:
        """Return the unit vector of every distinct text of another split, float32 on the CPU."""
        return functional.normalize(self._encode(tokens) - self._centre, dim=-1)

    @torch.no_grad()
    def _encode(self, tokens: TokenTable) -> Tensor:
        order = np.argsort(tokens.lengths, kind="stable")  # of like length: little padding
        encoder, training = self._encoder.to(self._device), self._encoder.training
        encoder.eval()
        parts = []
        for start in range(0, len(order), _TEXTS_PER_PASS):
            ids, mask = tokens.padded(order[start : start + _TEXTS_PER_PASS])
            ids, mask = ids.to(self._device), mask.to(self._device)
            if self.name == "projection":
                vectors = encoder(ids, mask)
            else:
                states = encoder.backbone(input_ids=ids, attention_mask=mask)[0]
                share = mask / mask.sum(dim=1, keepdim=True)
                vectors = (share.unsqueeze(-1) * states).sum(dim=1)
            parts.append(vectors.float().cpu())
        encoder.train(training)
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]


def closest_threshold(
    vectors: Float[Tensor, "texts dim"], corpus: Corpus, sampler: ImageTextSampler, share: float
) -> float:
    """Find the cosine above which the closest share of the pairs in a batch are.

    The pairs are those of the first batches, so each is as frequent as in training, and they are
    the same whenever the run is started again. Copies of one sentence are always above.

    Source: ours; Wang et al. 2023 choose their threshold by a grid search, and do not give it.
    """
    cosines = []
    for step in range(_SAMPLED_BATCHES):
        texts = corpus.text_of[sampler.draw(step).sentences[:_SAMPLED_SLOTS]]
        some = vectors[torch.from_numpy(texts)]
        apart = ~torch.eye(len(some), dtype=torch.bool)
        cosines.append((some @ some.T)[apart].numpy())
    return min(float(np.quantile(np.concatenate(cosines), 1 - share)), 1 - _ROUNDING)
