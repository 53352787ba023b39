"""Sentences of a corpus as batches of masked word pieces, the same for the same seed and step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from medclip_dcl.likelihood.encoding import Encoding

NOT_ASKED = -100
"""Label of a position that is not predicted."""

_BUCKETS = 8


@dataclass(frozen=True)
class MaskedBatch:
    """One training batch; (rows, length) each."""

    ids: Int[Tensor, "rows length"]
    attended: Bool[Tensor, "rows length"]
    labels: Int[Tensor, "rows length"]


class Corpus:
    """Encoded sentences, sorted by length so that a batch has little padding.

    Args:
        encodings: the sentences, repeats included.
        vocabulary: number of word pieces.
        mask_id: id of the mask token.
        pad_id: id of the padding token.
    """

    def __init__(
        self, encodings: Sequence[Encoding], vocabulary: int, mask_id: int, pad_id: int
    ) -> None:
        self._vocabulary, self._mask_id, self._pad_id = vocabulary, mask_id, pad_id
        ordered = sorted(encodings, key=lambda item: (len(item.ids), item.ids))
        self.lengths = torch.tensor([len(item.ids) for item in ordered])
        width = int(self.lengths.max())
        self._ids = torch.full((len(ordered), width), pad_id)
        self._scored = torch.zeros((len(ordered), width), dtype=torch.bool)
        for row, item in enumerate(ordered):
            self._ids[row, : len(item.ids)] = torch.tensor(item.ids)
            self._scored[row, : len(item.ids)] = torch.tensor(item.words) >= 0

    def __len__(self) -> int:
        return len(self._ids)

    def draw(self, rows: int, mask_share: float, generator: torch.Generator) -> list[MaskedBatch]:
        """Draw sentences uniformly, mask them, and cut the draw into batches of like length.

        Args:
            rows: sentences in all.
            mask_share: share of word pieces that are predicted.
            generator: source of everything that is drawn.

        Returns:
            A few batches that together hold `rows` sentences.
        """
        drawn = torch.randint(len(self), (rows,), generator=generator).sort().values
        return [self.mask(part, mask_share, generator) for part in drawn.chunk(_BUCKETS)]

    def mask(
        self, rows: Int[Tensor, " rows"], mask_share: float, generator: torch.Generator
    ) -> MaskedBatch:
        """Mask sentences as BERT's training does: 80 % masks, 10 % random pieces, 10 % as is.

        Args:
            rows: numbers of the sentences, in order of length.
            mask_share: share of word pieces that are predicted, at least one per sentence.
            generator: source of everything that is drawn.

        Returns:
            The batch, padded to its longest sentence.

        Source: Devlin et al. 2019, Section 3.1; the piece that every sentence gives is ours.
        """
        width = int(self.lengths[rows].max())
        ids, scored = self._ids[rows, :width], self._scored[rows, :width]
        chance = torch.rand(ids.shape, generator=generator).masked_fill(~scored, 2.0)
        asked = chance < chance.min(1, keepdim=True).values.clamp(min=mask_share).nextafter(
            torch.tensor(torch.inf)
        )
        labels = ids.masked_fill(~asked, NOT_ASKED)
        kind = torch.rand(ids.shape, generator=generator)
        random_ids = torch.randint(self._vocabulary, ids.shape, generator=generator)
        hidden = ids.masked_fill(asked & (kind < 0.8), self._mask_id)
        hidden = torch.where(asked & (kind >= 0.9), random_ids, hidden)
        return MaskedBatch(hidden, ids != self._pad_id, labels)
