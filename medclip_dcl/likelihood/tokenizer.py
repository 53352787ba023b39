"""Training of a WordPiece tokenizer that reads text as bert-base-uncased does."""

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer
from transformers import BertTokenizer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def train_tokenizer(sentences: Sequence[str], vocabulary: int, max_tokens: int) -> BertTokenizer:
    """Learn word pieces from a corpus.

    Args:
        sentences: the corpus, repeats included.
        vocabulary: most word pieces, the five special ones included; the corpus's
            characters are always among them.
        max_tokens: longest input that the model will read, word pieces.

    Returns:
        A lower-casing tokenizer; the same corpus gives the same one.

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
