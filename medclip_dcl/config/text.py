"""Settings of sentences, claims, the masked language model, likelihoods and eta."""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.config.section import Section


class SentencesConfig(Section):
    """Reports to sentences (`split_sentences`)."""

    sections: tuple[str, ...] = ("findings", "impression")
    """Sections used; `last_paragraph` stands in where a report has neither."""
    min_words: Annotated[int, Field(ge=1)] = 2
    """Fewest words with a letter outside `___` and `XXXX` that a sentence needs; 2 keeps
    "No pneumothorax.", which is what this method is about."""
    strip_numbers: bool = True
    """Whether the number of a list item is cut off ("1. No effusion is seen."), so that equal
    statements are one sentence."""
    max_characters: Annotated[int, Field(gt=0)] = 1000
    """Longest sentence kept, characters; longer ones are truncated and counted."""
    max_section_characters: Annotated[int, Field(gt=0)] = 20_000
    """Longest section split, characters; longer ones are truncated and counted."""
    deadline_s: Annotated[float, Field(gt=0)] = 3
    """CPU seconds that one section may take to split; one that takes longer is cut at its full
    stops instead, and counted. A report of usual length takes a thousandth of it."""


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


class EtaConfig(Section):
    """Class probability of a sentence (`build_eta_cache`)."""

    source: Literal["pll", "frequency", "constant", "labels", "table", "oracle"] = "pll"
    """Where eta comes from; `pll` is the paper's."""
    a: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Scale of eta = a * p**k; no unit; paper, Section 3.2."""
    k: Annotated[float, Field(ge=0)] = 0.35
    """Exponent of eta = a * p**k; no unit; paper, Section 3.2."""
    eta_max: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Cap on eta; ours: an uncapped negation destroys training."""
    constant: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Value of eta where `source` is `constant`."""
    table: str = ""
    """CSV with columns `text` and `eta` or `rho` where `source` is `table` or `oracle`."""
    on_missing: Literal["error", "zero"] = "error"
    """What a sentence gets that `table` lacks: the job fails, or eta is 0 (no correction)."""


class CalibrateConfig(Section):
    """a and k of eta, fitted to the corpus (`calibrate_eta`)."""

    evidence: Literal["claims", "labels", "frequency", "table"] = "claims"
    """How a class probability is measured: share of the other training studies whose report's
    claims, or whose labels, stand `same` or `unclear` to the sentence; that say the very same
    words; or as `eta.table` gives it."""
    method: Literal["capped", "censored"] = "capped"
    """`capped`: least squares after the cap, as training uses eta; `censored`: Tobin's regression,
    the line itself with both ends censored."""
    min_studies: Annotated[int, Field(ge=1)] = 5
    """Other studies that a share must rest on; a smaller one is known to lie below, no more."""
    resamples: Annotated[int, Field(ge=0)] = 200
    """Bootstrap samples of patients for 95 % intervals; 0: none."""
