"""Sentences to pseudo-log-likelihoods, and likelihoods to eta.

Here are the settings, which every job reads: the modules import torch and transformers.
"""

from typing import Annotated, Literal

from pydantic import Field

from medclip_dcl.core.settings import LOCAL, Section
from medclip_dcl.models.settings import EngineName

HEADS = 4  # attention heads of a BERT trained here


class LanguageModelConfig(Section):
    """The masked language model (`fit_language_model`)."""

    pretrained: Annotated[str, LOCAL] = ""
    """Directory of a CXR-BERT or other BERT checkpoint; empty: a small BERT is trained."""
    vocabulary: Annotated[int, Field(ge=100)] = 4000
    """Word pieces of a tokenizer trained here."""
    hidden_size: Annotated[int, Field(gt=0, multiple_of=4)] = 128
    """Width of a BERT trained here; its feed-forward layers are four times as wide."""
    layers: Annotated[int, Field(gt=0)] = 2
    """Layers of a BERT trained here."""
    steps: Annotated[int, Field(ge=0)] = 1000
    """Training steps; 0: `pretrained` is used as it is."""
    batch: Annotated[int, Field(gt=0)] = 128
    """Sentences in a step."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak AdamW learning rate; 5e-5 suits the fine-tuning of a pretrained model."""
    threads: Annotated[int, Field(ge=0)] = 0
    """Threads of the fit on a CPU; 0: one per core. Other counts may differ in the last bits."""


class LikelihoodConfig(Section):
    """Pseudo-log-likelihoods (`score_sentences`)."""

    variant: Literal["original", "within_word_l2r"] = "original"
    """`original`: Salazar et al. 2020; `within_word_l2r`: Kauf and Ivanova 2023."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the model while scoring; bfloat16 drifts, and is the faster where a processor
    multiplies in it."""
    engine: EngineName = "auto"
    """How the model is run: `openvino`, the fast way on a CPU; `torch`, on any device; `auto`:
    openvino where it is installed and answers like PyTorch. In float32 they agree within 1e-3 nats
    a word piece."""


class EtaConfig(Section):
    """Class probability of a sentence (`build_eta_cache`)."""

    source: Literal["pll", "constant", "table"] = "pll"
    """Where eta comes from: the likelihood, as in the paper, one value, or a table of your own."""
    a: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Scale of eta = a * p**k; no unit; paper, Section 3.2. The paper's a and k are for CXR-BERT: a
    language model that is fitted here has likelihoods of another scale, so search both."""
    k: Annotated[float, Field(ge=0)] = 0.35
    """Exponent of eta = a * p**k; no unit; paper, Section 3.2."""
    eta_max: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Cap on eta; ours: an uncapped negation destroys training."""
    constant: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Value of eta where `source` is `constant`."""
    table: Annotated[str, LOCAL] = ""
    """CSV with columns `text` and `eta` or `rho` where `source` is `table`; it lists every
    sentence."""
