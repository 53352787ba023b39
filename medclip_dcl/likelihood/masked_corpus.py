"""Sentences that a masked language model is fitted to: their word pieces, and masked batches.

The tokenizer reads text as bert-base-uncased does. A batch holds sentences of one length, so
nothing is padded and no attention mask is needed. The length is that of a sentence drawn
uniformly, and the others are drawn uniformly among those of its length: every sentence is as
likely as any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer
from torch import Tensor
from transformers import BertTokenizer

from medclip_dcl.likelihood.pll import Encoding

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(sentences: Sequence[str], vocabulary: int, max_tokens: int) -> BertTokenizer:
    """Learn word pieces, lower-cased, from a corpus with its repeats; the same one each time.

    `vocabulary` is the most word pieces, the five special ones included; the corpus's characters
    are always among them. The model will read `max_tokens` of them.

    Source: Schuster and Nakajima 2012; Devlin et al. 2019.
    """
    normalizer = BertNormalizer(lowercase=True)
    tokenizer = Tokenizer(WordPiece())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    characters = sorted({c for text in set(sentences) for c in normalizer.normalize_str(text)})
    # The trainer numbers "##x" pieces in the order of a randomly seeded hash table and
    # breaks ties by number; announced up front, their numbers are the same in every run.
    pieces = [prefix + c for c in characters if not c.isspace() for prefix in ("", "##")]
    trainer = WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=[*SPECIAL_TOKENS, *pieces], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return BertTokenizer(vocab=tokenizer.get_vocab(), model_max_length=max_tokens)


NOT_ASKED = -100
"""Label of a position that is not predicted."""


@dataclass(frozen=True)
class MaskedBatch:
    """One training batch of sentences of one length."""

    ids: Int[Tensor, "rows length"]
    labels: Int[Tensor, "rows length"]


class EncodedCorpus:
    """Encoded sentences, repeats included, at least one, grouped by length."""

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
        """Draw `rows` sentences of one length and mask them."""
        pivot = torch.randint(len(self), (1,), generator=generator)
        group = int(torch.searchsorted(self._ends, pivot, right=True))
        drawn = torch.randint(len(self._groups[group]), (rows,), generator=generator)
        return self._mask(group, drawn, mask_share, generator)

    def all_once(
        self, rows: int, mask_share: float, generator: torch.Generator
    ) -> Iterator[MaskedBatch]:
        """Go through all sentences once, short ones first, at most `rows` in a batch."""
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
        # 80 % masks, 10 % random pieces, 10 % as they are (Devlin et al. 2019, Section 3.1). At
        # least one piece of every sentence is asked, so that short ones are learned too: ours.
        ids = self._ids[group][rows]
        scored = self._words[group][rows] >= 0
        chance = torch.rand(ids.shape, generator=generator).masked_fill(~scored, 2.0)
        asked = (chance < mask_share) | (chance == chance.min(1, keepdim=True).values)
        labels = ids.masked_fill(~asked, NOT_ASKED)
        kind = torch.rand(ids.shape, generator=generator)
        random_ids = torch.randint(self._vocabulary, ids.shape, generator=generator)
        hidden = ids.masked_fill(asked & (kind < 0.8), self._mask_id)
        return MaskedBatch(torch.where(asked & (kind >= 0.9), random_ids, hidden), labels)
