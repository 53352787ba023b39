"""Tiny random images, token batches and models, for tests that need some that run."""

import numpy as np
import torch
from transformers import BertConfig

from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.settings import (
    ImageEncoderConfig,
    ModelConfig,
    SimilarityConfig,
    TextEncoderConfig,
)

VOCABULARY = 60


def random_images(count: int, size_px: int = 64, seed: int = 0) -> np.ndarray:
    """Images uint8 (count, size_px, size_px): a bright disc somewhere on grey noise."""
    rng = np.random.default_rng(seed)
    images = rng.integers(60, 120, (count, size_px, size_px))
    rows, columns = np.mgrid[:size_px, :size_px]
    for image in images:
        row, column = rng.uniform(0.2, 0.8, 2) * size_px
        image[(rows - row) ** 2 + (columns - column) ** 2 < (size_px / 8) ** 2] += 100
    return images.astype(np.uint8)


def random_tokens(texts: int, tokens: int = 9, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Word pieces and attention mask; sentence i has i padded pieces at most."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (texts, tokens), generator=generator)
    ids[:, 0] = 2
    lengths = torch.randint(3, tokens + 1, (texts, 1), generator=generator)
    mask = (torch.arange(tokens) < lengths).long()
    return ids * mask, mask


def tiny_text_config(vocabulary: int = VOCABULARY) -> BertConfig:
    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def tiny_model_config(input_px: int = 64, dim: int = 16, **similarity: object) -> ModelConfig:
    """Three stages of one block: a 4 x 4 grid at 64 px."""
    return ModelConfig(
        image=ImageEncoderConfig(depths=(1, 1, 1), widths=(8, 8, 16), input_px=input_px),
        text=TextEncoderConfig(max_tokens=32),
        similarity=SimilarityConfig.model_validate({"dim": dim, **similarity}),
    )


def tiny_dual_encoder(
    settings: ModelConfig | None = None, vocabulary: int = VOCABULARY, seed: int = 0
) -> DualEncoder:
    return build_dual_encoder(settings or tiny_model_config(), tiny_text_config(vocabulary), seed)
