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


def write_cxr_bert(folder: Path, model: BertForMaskedLM, *, pickled: bool = False) -> None:
    """Write a model as CXR-BERT's releases are laid out: a config that names remote code."""
    folder.mkdir(parents=True)
    tree = {
        **model.config.to_dict(),
        "architectures": ["CXRBertModel"],
        "model_type": "cxr-bert",
        "projection_size": 16,
        "auto_map": {
            "AutoConfig": "configuration_cxrbert.CXRBertConfig",
            "AutoModel": "modeling_cxrbert.CXRBertModel",
        },
    }
    (folder / "config.json").write_text(json.dumps(tree))
    (folder / "vocab.txt").write_text("\n".join(_WORDS) + "\n")
    tokenizer = {
        "do_lower_case": True,
        "tokenizer_class": "CXRBertTokenizer",
        "auto_map": {"AutoTokenizer": ["configuration_cxrbert.CXRBertTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state.update(head_weights(model.config.hidden_size))
    if pickled:
        torch.save(state, folder / "pytorch_model.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
