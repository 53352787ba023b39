"""Sentences -> word pieces, with the positions that are scored and the words they belong to."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from medclip_dcl.errors import ScoreError


@dataclass(frozen=True)
class Encoding:
    """One sentence as a masked language model reads it; equal encodings score equally."""

    ids: tuple[int, ...]
    """Token ids, the tokenizer's own tokens at both ends included."""
    words: tuple[int, ...]
    """Word of every token, from 0; -1 at the tokenizer's own tokens, which are not scored."""

    @property
    def tokens(self) -> int:
        """Number of word pieces that are scored."""
        return sum(word >= 0 for word in self.words)


def encode_sentences(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_tokens: int | None = None
) -> list[Encoding]:
    """Cut sentences into word pieces.

    Args:
        tokenizer: a fast tokenizer, one that knows the word of each piece.
        sentences: the sentences.
        max_tokens: longest encoding, own tokens included; longer sentences are
            truncated. None: nothing is truncated.

    Returns:
        One encoding per sentence, in order.

    Raises:
        ScoreError: the tokenizer is not a fast one, or a sentence has no word piece.
    """
    if not tokenizer.is_fast:
        raise ScoreError("a tokenizer that knows no words cannot be scored with; use a fast one")
    if not sentences:
        return []
    batch = tokenizer(
        list(sentences),
        truncation=max_tokens is not None,
        max_length=max_tokens,
        return_special_tokens_mask=True,
    )
    encodings = []
    for place, (ids, own) in enumerate(
        zip(batch["input_ids"], batch["special_tokens_mask"], strict=True)
    ):
        words = batch.word_ids(place)
        encoding = Encoding(
            tuple(ids),
            tuple(-1 if mark else word for mark, word in zip(own, words, strict=True)),
        )
        if not encoding.tokens:
            raise ScoreError(f"sentence {place} has no word piece; leave empty sentences out")
        encodings.append(encoding)
    return encodings
