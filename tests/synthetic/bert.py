"""Tiny masked language models with random weights, and the layouts that releases come in."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

SENTENCES = (
    "No pleural effusion or pneumothorax.",
    "The lungs are clear.",
    "Stable cardiomegaly with mild vascular congestion.",
    "No focal consolidation.",
    "Small left pleural effusion.",
    "The heart is enlarged.",
)

_PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . , no the heart lungs are is clear pleural effusion or "
    "pneumothorax stable mild left small focal consolidation enlarged with vascular congestion "
    "cardio ##mega ##ly ##s right lung"
)
_WORDS = _PIECES.split()


def tiny_tokenizer() -> BertTokenizer:
    """A lower-casing WordPiece tokenizer of 34 pieces, in which `cardiomegaly` is three."""
    return BertTokenizer(vocab={word: number for number, word in enumerate(_WORDS)})


def tiny_bert(*, layers: int = 2, scale: float = 4.0, dropout: float = 0.25) -> BertForMaskedLM:
    """A random BERT of width 32; `scale` makes its predictions far from uniform."""
    config = BertConfig(
        vocab_size=len(_WORDS),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = BertForMaskedLM(config)
        for parameter in model.parameters():
            parameter.data.add_(scale * 0.02 * torch.randn_like(parameter))
    return model.train(False)


def head_weights(width: int = 32, dim: int = 16) -> dict[str, torch.Tensor]:
    """The six tensors of CXR-BERT's projection head."""
    head = "cls_projection_head"
    return {
        f"{head}.dense_to_hidden.weight": torch.zeros(dim, width),
        f"{head}.dense_to_hidden.bias": torch.zeros(dim),
        f"{head}.LayerNorm.weight": torch.ones(dim),
        f"{head}.LayerNorm.bias": torch.zeros(dim),
        f"{head}.dense_to_output.weight": torch.zeros(dim, dim),
        f"{head}.dense_to_output.bias": torch.zeros(dim),
    }


_RELEASED = {
    "attention_probs_dropout_prob": 0.25,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.25,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.18.0",
    "type_vocab_size": 2,
    "use_cache": True,
}
_REMOTE = {
    "architectures": ["CXRBertModel"],
    "auto_map": {
        "AutoConfig": "configuration_cxrbert.CXRBertConfig",
        "AutoModel": "modeling_cxrbert.CXRBertModel",
    },
    "projection_size": 16,
}
LAYOUTS = {
    "specialized": {**_REMOTE, "model_type": "cxr-bert"},
    "biovil-t": _REMOTE,
    "general": {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
}
"""How the releases of CXR-BERT and BioViL-T say what they are; BioViL-T names no model type."""


def write_cxr_bert(
    folder: Path, model: BertForMaskedLM, *, pickled: bool = False, layout: str = "specialized"
) -> None:
    """Write a model as the releases of CXR-BERT and BioViL-T are laid out.

    The code that a config names lies beside it and ends the process that runs it.
    """
    folder.mkdir(parents=True)
    sizes = (
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    )
    tree = {**_RELEASED, **{name: getattr(model.config, name) for name in sizes}, **LAYOUTS[layout]}
    (folder / "config.json").write_text(json.dumps(tree))
    (folder / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    tokenizer: dict[str, object] = {"do_lower_case": True}
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    positions = torch.arange(model.config.max_position_embeddings)[None]
    state["bert.embeddings.position_ids"] = positions
    if "auto_map" in tree:
        auto_map = {"AutoTokenizer": ["configuration_cxrbert.CXRBertTokenizer", None]}
        tokenizer |= {"tokenizer_class": "CXRBertTokenizer", "auto_map": auto_map}
        state.update(head_weights(model.config.hidden_size))
        for name in ("configuration_cxrbert.py", "modeling_cxrbert.py"):
            (folder / name).write_text("import os\nos._exit(66)\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
