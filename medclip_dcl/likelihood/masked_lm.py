"""Masked language models: the artifact, BERT checkpoints on disk, and one masked position a row.

Files of the artifact:

    config.json, model.safetensors           a BertForMaskedLM
    tokenizer.json, tokenizer_config.json    its word pieces, learned or given
    README.md                                its card

A checkpoint directory, BERT's or CXR-BERT's, is read without code of its own: its config
passes an allow-list, so that `auto_map` and `model_type` of the CXR-BERT releases play no
part, and nothing asks whether remote code may run. Weights come from safetensors, or from a
release's `pytorch_model.bin` as `models.public.weights` reads it.

Scoring and fitting ask for a few positions only, and do no more of BERT than those need.
PyTorch runs a model on any device; on a CPU, where OpenVINO is installed, it is the faster engine.

Axes
    sentences   distinct inputs of one length
    inputs      sentences, and a row of masks; or the copies, where these are fewer
    rows        masked copies of the sentences
    length      word pieces of a row
    vocab       the vocabulary
"""

import copy
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertForMaskedLM, BertTokenizer, PreTrainedModel

from medclip_dcl.core.artifact import Artifact, ArtifactType, json_digest
from medclip_dcl.core.errors import CheckpointError, ScoreError
from medclip_dcl.core.files import sha256_file, write_bytes, write_text
from medclip_dcl.models import text_encoder
from medclip_dcl.models.engines import Part, Run, has_openvino, load_openvino
from medclip_dcl.models.public.weights import read_tensors, weights_file
from medclip_dcl.models.settings import EngineName, multiplies_bfloat16

ARTIFACT = ArtifactType("language_model", 2, "fit_language_model")

LOGGER = logging.getLogger("medclip.likelihood")

TOLERANCE_NATS = {"float32": 1e-3, "bfloat16": 1.0}
"""Largest difference of one word piece's log-probability to PyTorch's in float32, by precision."""

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
    artifact.file(text_encoder.TOKENIZER)
    return str(artifact.files[text_encoder.TOKENIZER]["sha256"])


# May be in a checkpoint, and are not part of the model; the last is CXR-BERT's own.
_OTHER_HEADS = ("bert.pooler.", "cls.seq_relationship.", "cls_projection_head.")
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
    model = BertForMaskedLM(text_encoder.read_bert_config(folder))
    ignored = _fill(model, read_tensors(folder))
    tokenizer = text_encoder.read_bert_tokenizer(folder)
    if len(tokenizer) > model.config.vocab_size:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer)} word pieces, the model "
            f"{model.config.vocab_size}; use the tokenizer of the same checkpoint"
        )
    model.train(False)
    return LanguageModel(model, tokenizer, ignored)


def save_language_model(model: BertForMaskedLM, tokenizer: BertTokenizer, folder: Path) -> None:
    """Write a masked language model, all but its card, in the one layout that is read later."""
    fields = {name: getattr(model.config, name) for name in text_encoder.BERT_FIELDS}
    tree = {"architectures": ["BertForMaskedLM"], "model_type": "bert", **fields}
    write_text(folder / CONFIG, json.dumps(tree, indent=1, sort_keys=True) + "\n")
    # Tied tensors once: safetensors refuses memory that two names share.
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
        if name not in _TIED
    }
    write_bytes(folder / WEIGHTS, save(weights, metadata={"format": "pt"}))
    tokenizer.save_pretrained(str(folder))


def checkpoint_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint that `load_language_model` would read.

    Raises:
        CheckpointError: there is no config.json.
    """
    names = [CONFIG, text_encoder.TOKENIZER, "tokenizer_config.json", text_encoder.VOCABULARY]
    names.append(weights_file(folder).name)
    digests = {name: sha256_file(folder / name) for name in names if (folder / name).is_file()}
    if CONFIG not in digests:
        raise CheckpointError(f"the language model has no {CONFIG}; give a BERT directory")
    return digests


def _fill(model: BertForMaskedLM, state: dict[str, Tensor]) -> tuple[str, ...]:
    for name, source in _TIED.items():
        if name in state and source in state and not torch.equal(state[name], state[source]):
            raise CheckpointError(f"{name} differs from {source}; BERT ties them")
    state.pop(_COUNTED, None)
    ignored = {name for name in state if name.startswith(_OTHER_HEADS)}
    # Tied weights are taken from where BERT reads them, and tied again below.
    used = {name: tensor for name, tensor in state.items() if name not in ignored | set(_TIED)}
    try:
        missing, unexpected = model.load_state_dict(used, strict=False)
    except RuntimeError as error:
        raise CheckpointError("weights have other shapes than config.json says") from error
    missing = [name for name in missing if name not in _TIED]  # these have their source's
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

    ids: Int[Tensor, "sentences length"]  # token ids of the sentences, nothing masked
    sentence: Int[Tensor, " rows"]  # sentence that each row is a copy of, from 0
    position: Int[Tensor, " rows"]  # position that is asked, from 0
    hidden: Bool[Tensor, "rows length"]  # what is masked in each row; the asked position is
    mask_id: int

    def masked(self) -> Int[Tensor, "rows length"]:
        """Token ids of the copies, masks in place."""
        return self.ids[self.sentence].masked_fill(self.hidden, self.mask_id)

    def targets(self) -> Int[Tensor, " rows"]:
        """Token ids of the word pieces that are asked."""
        return self.ids[self.sentence, self.position]

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Inputs of `MaskedForward`, in its order."""
        rows, length = self.hidden.shape
        column = torch.arange(length, device=self.ids.device)
        if rows <= len(self.ids):  # fewer copies than sentences
            ids = self.masked()
            index = column.expand(rows, length) + length * torch.arange(rows)[:, None].to(column)
        else:
            masks = torch.full_like(self.ids[:1], self.mask_id)
            ids = torch.cat([self.ids, masks])
            own = self.sentence[:, None] * length + column
            index = torch.where(self.hidden, len(self.ids) * length + column, own)
        return ids, index, self.position, self.targets()


class MaskedForward(nn.Module):
    """Log-probability of one word piece a row, and no more of the model than that needs.

    Of BERT, exactly (any other model is run as transformers does):

        layer 1      queries, keys and values are computed once per sentence, and once for a
                     mask at each position; rows gather theirs from both
        last layer   queries, and all behind attention, of asked positions alone
        head         asked positions alone
        padding      none: rows are of one length, so there is no attention mask
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model: Any = model

    def forward(
        self,
        ids: Int[Tensor, "inputs length"],
        index: Int[Tensor, "rows length"],
        position: Int[Tensor, " rows"],
        target: Int[Tensor, " rows"],
    ) -> Float[Tensor, " rows"]:
        """Compute float32 nats of each row's piece `target` at its `position`.

        `index` counts, through all of `ids`, the word piece at each place of each row.
        """
        rows = torch.arange(index.shape[0], device=index.device)
        if is_bert(self.model):
            logits = self._bert_logits(ids, index, rows, position)
        else:
            copies = ids.flatten()[index]
            # Given, as models may take masks or rare pieces for padding where it is not.
            answer = self.model(input_ids=copies, attention_mask=torch.ones_like(copies))
            whole = getattr(answer, "logits", None)
            size = (*copies.shape, self.model.config.vocab_size)
            if whole is None or tuple(whole.shape) != size:
                raise ScoreError(
                    f"the model ({self.model.config.model_type}) gives no logit of every piece of "
                    f"its vocabulary of {size[-1]}; give one with a masked-language-model head"
                )
            logits = whole[rows, position]
        logits = logits.float()
        return logits.gather(1, target[:, None])[:, 0] - logits.logsumexp(-1)

    def _bert_logits(self, ids: Tensor, index: Tensor, rows: Tensor, position: Tensor) -> Tensor:
        layers: list[Any] = list(self.model.bert.encoder.layer)
        states = self.model.bert.embeddings(input_ids=ids).flatten(0, 1)  # (pieces, width)
        for layer in layers:
            own, is_last = layer.attention.self, layer is layers[-1]
            keys, values = own.key(states), own.value(states)
            queries = states if is_last else own.query(states)
            if layer is layers[0]:
                # Copies differ at their masks alone, and nothing has mixed positions yet.
                keys, values, queries, states = (
                    item[index] for item in (keys, values, queries, states)
                )
            if is_last:  # nothing reads the other positions
                states = states[rows, position].unsqueeze(1)
                queries = own.query(states)
            heads = index.shape[0], -1, own.num_attention_heads, own.attention_head_size
            queries, keys, values = (
                item.view(heads).transpose(1, 2) for item in (queries, keys, values)
            )
            context = F.scaled_dot_product_attention(queries, keys, values, scale=own.scaling)
            context = context.transpose(1, 2).reshape(states.shape)
            states = layer.feed_forward_chunk(layer.attention.output(context, states))
        return cast(Tensor, self.model.cls(states.squeeze(1)))


def is_bert(model: PreTrainedModel) -> bool:
    """Whether a model is BERT's masked language model itself, not its kin or a decoder."""
    return type(model) is BertForMaskedLM and not model.config.is_decoder


@dataclass(frozen=True)
class ScoringEngine:
    """A masked language model that is ready to score, with the weights as they were."""

    name: EngineName
    _forward: Run

    def log_probs(self, copies: MaskedCopies) -> Float[Tensor, " rows"]:
        """Compute the log-probability of each row's asked piece, nats, float32.

        The copies are on the model's device.
        """
        return self._forward(*copies.inputs())


def prepare_engine(
    model: PreTrainedModel,
    name: EngineName = "auto",
    precision: str | None = None,
    folder: Path | None = None,
) -> ScoringEngine:
    """Make a model ready to score.

    Args:
        model: the model, in eval mode whenever it scores. PyTorch runs it in its own dtype.
        name: `openvino`: BERT on a CPU, in as many threads as torch uses now; `torch`: any model
            on any device; `auto`: openvino where it can be had and answers like PyTorch, else
            torch, with a line in the log that says why.
        precision: of OpenVINO's products; None: the model's.
        folder: the language model's own, whose graph is kept in the user's cache; None: the model
            is converted each time.

    Raises:
        ScoreError: `openvino` is asked for and cannot be had.
    """
    if name == "torch":
        return ScoringEngine("torch", MaskedForward(model))
    precision = precision or ("bfloat16" if model.dtype == torch.bfloat16 else "float32")
    obstacle = _obstacle(model, precision)
    if not obstacle:
        whole = model  # in float32: OpenVINO lowers products to `precision` by itself
        if model.training or model.dtype != torch.float32:
            whole = copy.deepcopy(model).float()  # type: ignore[no-untyped-call]
        forward = MaskedForward(whole).eval()
        parts = {"masked_lm": Part(forward, _example_inputs(int(model.config.vocab_size)))}
        # A cached graph is named by the weights in it.
        digest = sha256_file(weights_file(folder)) if folder else ""
        runs = load_openvino(parts, precision, TOLERANCE_NATS[precision], digest, folder)
        if runs is not None:
            return ScoringEngine("openvino", runs["masked_lm"])
        obstacle = "it does not run this model as PyTorch does"
    if name == "openvino":
        raise ScoreError(f"the engine openvino cannot be used: {obstacle}; set auto")
    LOGGER.info("scoring by PyTorch, not by OpenVINO: %s", obstacle)
    return ScoringEngine("torch", MaskedForward(model))


def _obstacle(model: PreTrainedModel, precision: str) -> str:
    # What keeps a model from OpenVINO; empty where nothing does.
    if not has_openvino():
        return "it is not installed (run pip install '.[fast]' in the checkout)"
    if not is_bert(model) or model.device.type != "cpu":
        return "it is for BERT on a CPU"
    if model.dtype not in {torch.float32, torch.bfloat16}:
        return "the weights are neither float32 nor bfloat16"
    if precision == "bfloat16" and not multiplies_bfloat16():
        return "this processor does not multiply in bfloat16"
    return ""


def _example_inputs(vocabulary: int) -> tuple[tuple[Tensor, ...], ...]:
    # Every axis has two lengths, so that none is fixed in the graph.
    cases = []
    for count, rows, length in ((2, 5, 4), (3, 7, 6)):
        # A prime, so that the pieces are spread over the vocabulary.
        ids = torch.arange(count * length).mul(7919).remainder(vocabulary).view(count, length)
        sentence, position = torch.arange(rows) % count, torch.arange(rows) % length
        hidden = torch.arange(length) == position[:, None]
        cases.append(MaskedCopies(ids, sentence, position, hidden, vocabulary - 1).inputs())
    return tuple(cases)
