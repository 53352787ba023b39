"""Masked language models: the artifact, BERT checkpoints on disk, and one masked position a row.

Files of the artifact:

    config.json, model.safetensors           a BertForMaskedLM
    tokenizer.json, tokenizer_config.json    its word pieces, learned or given
    README.md                                its card

A checkpoint directory, BERT's or CXR-BERT's, is read without code of its own: its config
passes an allow-list, so that `auto_map` and `model_type` of the CXR-BERT releases play no
part, and nothing asks whether remote code may run. Weights come from safetensors, or from a
release's `pytorch_model.bin` as `models.pretrained` reads it.

Scoring and fitting ask for a few positions only. BERT's last layer and its vocabulary head
therefore run on those alone; keys and values still come from the whole row.

Axes
    sentences   distinct inputs of one length
    rows        masked copies of them
    length      word pieces of a row
    vocab       the vocabulary
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional as F
from transformers import BertForMaskedLM, BertTokenizer, PreTrainedModel

from medclip_dcl.artifact import Artifact, ArtifactType, json_digest
from medclip_dcl.errors import CheckpointError
from medclip_dcl.files import sha256_file, write_bytes, write_text
from medclip_dcl.models.pretrained import modern_key, read_tensors, weights_file
from medclip_dcl.models.text_encoder import (
    BERT_FIELDS,
    TOKENIZER,
    VOCABULARY,
    read_bert_config,
    read_bert_tokenizer,
)

ARTIFACT = ArtifactType("language_model", 2, "fit_language_model")

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"


def model_digest(artifact: Artifact) -> str:
    """Name the weights and sizes of a language model by a digest, whatever its card says."""
    for name in (CONFIG, WEIGHTS):
        artifact.file(name)  # ArtifactCorrupt where it holds none
    return json_digest({name: artifact.files[name]["sha256"] for name in (CONFIG, WEIGHTS)})


def tokenizer_digest(artifact: Artifact) -> str:
    """Name the tokenizer of a language model by the digest of its tokenizer.json."""
    artifact.file(TOKENIZER)
    digest: str = artifact.files[TOKENIZER]["sha256"]
    return digest


HEAD_KEYS = tuple(
    f"cls_projection_head.{layer}.{part}"
    for layer in ("dense_to_hidden", "LayerNorm", "dense_to_output")
    for part in ("weight", "bias")
)
"""CXR-BERT's own projection head: may be in a checkpoint, and is not part of the model."""

_OTHER_HEADS = ("bert.pooler.", "cls.seq_relationship.")
_COUNTED = "bert.embeddings.position_ids"  # 0, 1, 2, ...: older transformers wrote them out
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


@dataclass(frozen=True)
class LanguageModel:
    """A masked language model in eval mode, and its tokenizer."""

    model: BertForMaskedLM
    tokenizer: BertTokenizer
    ignored: tuple[str, ...]
    """Keys of the checkpoint that belong to heads that the model does not have."""


def load_language_model(folder: Path) -> LanguageModel:
    """Read a BERT masked language model, offline and without its code: on the CPU, in eval mode.

    The folder has config.json, model.safetensors or pytorch_model.bin, and tokenizer.json or
    vocab.txt. Weights become float32.

    Raises:
        CheckpointError: a file is missing or damaged, weights are missing or
            unexpected, or the tokenizer does not fit the model.
    """
    if not folder.is_dir():
        raise CheckpointError("the language model is not a directory; give one with config.json")
    model = BertForMaskedLM(read_bert_config(folder))
    ignored = _fill(model, _read_weights(folder))
    tokenizer = read_bert_tokenizer(folder)
    if len(tokenizer) > model.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} word pieces, the model "
            f"{model.config.vocab_size}; use the tokenizer of the same checkpoint"
        )
    model.train(False)
    return LanguageModel(model, tokenizer, ignored)


def save_language_model(model: BertForMaskedLM, tokenizer: BertTokenizer, folder: Path) -> None:
    """Write a masked language model, all but its card, in the one layout that is read later."""
    fields = {name: getattr(model.config, name) for name in BERT_FIELDS}
    tree = {"architectures": ["BertForMaskedLM"], "model_type": "bert", **fields}
    write_text(folder / CONFIG, json.dumps(tree, indent=1, sort_keys=True) + "\n")
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in _TIED
    }
    write_bytes(folder / WEIGHTS, save(weights, metadata={"format": "pt"}))
    tokenizer.save_pretrained(str(folder))


def checkpoint_digests(folder: Path) -> dict[str, str]:
    """Give the SHA-256 of each file of a checkpoint that `load_language_model` would read.

    Raises:
        CheckpointError: there is no config.json.
    """
    names = [CONFIG, TOKENIZER, "tokenizer_config.json", VOCABULARY]
    names.append(weights_file(folder).name)
    found = {name: sha256_file(folder / name) for name in names if (folder / name).is_file()}
    if CONFIG not in found:
        raise CheckpointError(f"the language model has no {CONFIG}; give a BERT directory")
    return found


def _read_weights(folder: Path) -> dict[str, Tensor]:
    return {modern_key(name): tensor.float() for name, tensor in read_tensors(folder).items()}


def _fill(model: BertForMaskedLM, state: dict[str, Tensor]) -> tuple[str, ...]:
    for name, source in _TIED.items():
        if name in state and source in state and not torch.equal(state[name], state[source]):
            raise CheckpointError(f"{name} differs from {source}; BERT ties them")
    state.pop(_COUNTED, None)
    ignored = {name for name in state if name in HEAD_KEYS or name.startswith(_OTHER_HEADS)}
    used = {name: tensor for name, tensor in state.items() if name not in ignored | set(_TIED)}
    try:
        missing, unexpected = model.load_state_dict(used, strict=False)
    except RuntimeError as error:
        raise CheckpointError("weights have other shapes than config.json says") from error
    missing = [name for name in missing if name not in _TIED]
    if missing or unexpected:
        raise CheckpointError(
            f"the checkpoint lacks {sorted(missing)[:4]} and has unknown {sorted(unexpected)[:4]}; "
            "give a BERT masked language model"
        )
    model.tie_weights()
    return tuple(sorted(ignored))


@dataclass(frozen=True)
class MaskedCopies:
    """Masked copies of sentences of one length; each asks for one word piece."""

    ids: Int[Tensor, "sentences length"]
    """Token ids of the sentences, nothing masked."""
    sentence: Int[Tensor, " rows"]
    """Sentence that each row is a copy of, from 0."""
    position: Int[Tensor, " rows"]
    """Position that is asked, from 0."""
    hidden: Bool[Tensor, "rows length"]
    """What is masked in each row; the asked position is."""
    mask_id: int

    def masked(self) -> Int[Tensor, "rows length"]:
        """Token ids of the copies, masks in place."""
        return self.ids[self.sentence].masked_fill(self.hidden, self.mask_id)

    def targets(self) -> Int[Tensor, " rows"]:
        """Token ids of the word pieces that are asked."""
        return self.ids[self.sentence, self.position]


@runtime_checkable
class Engine(Protocol):
    """A way to run a masked language model."""

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Give the log-probability of each row's asked piece, nats, float32.

        The copies are on the model's device.
        """
        ...


class PlainEngine:
    """Runs any masked language model as transformers does; in eval mode whenever it scores."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Score as `Engine` says, in float32 whatever the model's dtype."""
        ids, model = copies.masked(), self._model
        if is_bert(model):
            logits = asked_logits(cast(BertForMaskedLM, model), ids, copies.position)
        else:
            row = torch.arange(len(ids), device=ids.device)
            whole = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            logits = whole[row, copies.position]
        logits = logits.float()
        return logits.log_softmax(-1).gather(1, copies.targets()[:, None])[:, 0]


def is_bert(model: PreTrainedModel) -> bool:
    """Whether a model is BERT's masked language model itself, not its kin or a decoder."""
    return type(model) is BertForMaskedLM and not model.config.is_decoder


def asked_logits(
    model: BertForMaskedLM,
    ids: Int[Tensor, "rows length"],
    position: Int[Tensor, " asked"],
    row: Int[Tensor, " asked"] | None = None,
) -> Float[Tensor, "asked vocab"]:
    """Compute logits of the vocabulary at some positions only, of rows without padding.

    `row` has the rows of the positions; None: one of every row in order, of a model that is in
    eval mode.
    """
    bert: Any = model.bert
    states = bert.embeddings(input_ids=ids)  # (rows, length, width)
    layers: list[Any] = list(bert.encoder.layer)
    for layer in layers[:-1]:
        states = layer(states)
    # Nothing reads the last layer at positions that are not asked: only keys and values see all.
    last = layers[-1]
    if row is None:
        asked = states[torch.arange(len(ids), device=ids.device), position]
        context = _attend_from(last.attention.self, asked, states)
    else:  # several a row: one pass over all queries costs less than keys copied for each
        context = last.attention.self(states)[0][row, position]
        asked = states[row, position]
    attended = last.attention.output(context, asked)
    logits: Tensor = model.cls(last.feed_forward_chunk(attended))
    return logits


def _attend_from(
    attention: Any, asked: Float[Tensor, "rows width"], states: Float[Tensor, "rows length width"]
) -> Float[Tensor, "rows width"]:
    # One query a row: the matrix of queries meets one state instead of all.
    shape = (len(asked), -1, attention.num_attention_heads, attention.attention_head_size)
    context = F.scaled_dot_product_attention(
        attention.query(asked).view(shape).transpose(1, 2),
        attention.key(states).view(shape).transpose(1, 2),
        attention.value(states).view(shape).transpose(1, 2),
        scale=attention.scaling,
    )  # (rows, heads, 1, head width)
    return context.reshape(asked.shape)
