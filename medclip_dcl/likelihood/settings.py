"""Settings of sentences, claims, the masked language model, likelihoods and eta."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.section import Section


class LanguageModelConfig(Section):
    """The masked language model (`fit_language_model`)."""

    pretrained: str = ""
    """Directory of a CXR-BERT or other BERT checkpoint; empty: a small BERT is trained."""
    fit: bool = True
    """Whether the model is trained on the corpus; False: `pretrained` is used as it is."""
    vocabulary: Annotated[int, Field(ge=100)] = 4000
    """Word pieces of a tokenizer trained here."""
    hidden_size: Annotated[int, Field(gt=0)] = 128
    """Width of a BERT trained here; its feed-forward layers are four times as wide."""
    layers: Annotated[int, Field(gt=0)] = 2
    """Layers of a BERT trained here."""
    heads: Annotated[int, Field(gt=0)] = 4
    """Attention heads of a BERT trained here."""
    max_tokens: Annotated[int, Field(ge=8, le=512)] = 128
    """Longest input, word pieces with [CLS] and [SEP]; longer sentences are dropped and counted."""
    steps: Annotated[int, Field(ge=0)] = 1000
    """Training steps."""
    batch: Annotated[int, Field(gt=0)] = 128
    """Sentences in a step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak AdamW learning rate; 5e-5 suits the fine-tuning of a pretrained model."""
    warmup_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the steps in which the learning rate rises, before it falls linearly to 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """AdamW weight decay of matrices; none for biases and norms."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout of a BERT trained here; a pretrained one keeps its own."""
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of word pieces that are masked."""
    held_out_share: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of training reports kept back to measure masked-token accuracy."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the fit on a CPU; 0: one per core. Other counts may differ in the last bits."""
    save_every_s: Annotated[float, Field(gt=0)] = 60
    """Seconds between saved states of the fit: what a kill can lose."""


class LikelihoodConfig(Section):
    """Pseudo-log-likelihoods (`score_sentences`)."""

    variant: Literal["original", "within_word_l2r"] = "original"
    """`original`: Salazar et al. 2020; `within_word_l2r`: Kauf and Ivanova 2023."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model while scoring; bfloat16 drifts."""
    engine: Literal["auto", "onnxruntime", "plain"] = "auto"
    """How the model is run: `onnxruntime`, the fast way on a CPU; `plain`, as transformers does;
    `auto`: the fast way where it can be had. They agree within 2e-4 nats."""
    token_budget: Annotated[int, Field(ge=0)] = 0
    """Word pieces in one forward pass; 0: what suits the device, by its free memory on a GPU."""
    unit_pieces: Annotated[int, Field(ge=0)] = 0
    """Word pieces that pass through the model in one unit of work; 0: some seconds' worth."""
    flush_every_s: Annotated[float, Field(ge=0, le=30)] = 15
    """Seconds between writes of finished scores: what a kill can lose beside the unit at work."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Scoring processes of each launched process; 0: one per core on a CPU, one on a GPU."""
