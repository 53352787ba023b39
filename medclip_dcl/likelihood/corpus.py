"""Sentences of a corpus as batches of masked word pieces, the same for the same seed and step.

A batch holds sentences of one length, so nothing is padded and no attention mask is
needed. The length is that of a sentence drawn uniformly, and the others are drawn
uniformly among those of its length: every sentence is as likely as any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from medclip_dcl.likelihood.encoding import Encoding

NOT_ASKED = -100
"""Label of a position that is not predicted."""


@dataclass(frozen=True)
class MaskedBatch:
    """One training batch of sentences of one length."""

    ids: Int[Tensor, "rows length"]
    labels: Int[Tensor, "rows length"]


class Corpus:
    """Encoded sentences, grouped by length.

    Args:
        encodings: the sentences, repeats included; at least one.
        vocabulary: number of word pieces.
        mask_id: id of the mask token.
    """

    def __init__(self, encodings: Sequence[Encoding], vocabulary: int, mask_id: int) -> None:
        self._vocabulary, self._mask_id = vocabulary, mask_id
        groups: dict[int, list[Encoding]] = {}
        for item in encodings:
            groups.setdefault(len(item.ids), []).append(item)
        self._groups = [groups[length] for length in sorted(groups)]
        self._ends = torch.tensor([len(group) for group in self._groups]).cumsum(0)
        self._ids = [torch.tensor([item.ids for item in group]) for group in self._groups]
        self._words = [torch.tensor([item.words for item in group]) for group in self._groups]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def draw(self, rows: int, mask_share: float, generator: torch.Generator) -> MaskedBatch:
        """Draw sentences of one length and mask them.

        Args:
            rows: sentences.
            mask_share: share of word pieces that are predicted.
            generator: source of everything that is drawn.

        Returns:
            The batch.
        """
        pivot = torch.randint(len(self), (1,), generator=generator)
        group = int(torch.searchsorted(self._ends, pivot, right=True))
        drawn = torch.randint(len(self._groups[group]), (rows,), generator=generator)
        return self._mask(group, drawn, mask_share, generator)

    def all_once(
        self, rows: int, mask_share: float, generator: torch.Generator
    ) -> Iterator[MaskedBatch]:
        """Go through all sentences once.

        Args:
            rows: most sentences in a batch.
            mask_share: share of word pieces that are predicted.
            generator: source of the masks.

        Yields:
            Batches, short sentences first.
        """
        for number, group in enumerate(self._groups):
            for start in range(0, len(group), rows):
                part = torch.arange(start, min(start + rows, len(group)))
                yield self._mask(number, part, mask_share, generator)

    def _mask(
        self,
        group: int,
        rows: Int[Tensor, " rows"],
        mask_share: float,
        generator: torch.Generator,
    ) -> MaskedBatch:
        """Mask as BERT's training does: 80 % masks, 10 % random pieces, 10 % as they are.

        At least one piece of every sentence is asked, so that short ones are learned too.

        Source: Devlin et al. 2019, Section 3.1; the piece that every sentence gives is ours.
        """
        ids = self._ids[group][rows]
        scored = self._words[group][rows] >= 0
        chance = torch.rand(ids.shape, generator=generator).masked_fill(~scored, 2.0)
        asked = (chance < mask_share) | (chance == chance.min(1, keepdim=True).values)
        labels = ids.masked_fill(~asked, NOT_ASKED)
        kind = torch.rand(ids.shape, generator=generator)
        random_ids = torch.randint(self._vocabulary, ids.shape, generator=generator)
        hidden = ids.masked_fill(asked & (kind < 0.8), self._mask_id)
        return MaskedBatch(torch.where(asked & (kind >= 0.9), random_ids, hidden), labels)
