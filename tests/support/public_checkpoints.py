"""Folders of public checkpoints, written by their makers' classes with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    CLIPConfig,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipModel,
)

WORDS = ("[PAD]", "[UNK]", "no", "effusion", "left", "right", "heart", "large", "<s>", "</s>")
"""A vocabulary that ends as CLIP's does: its last word ends a sentence."""
SENTENCES = ["no effusion", "heart large", "left effusion no right effusion"]
PX, PATCH = 32, 8
_TOWER = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_TEXT = {
    **_TOWER,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "bos_token_id": 8,
    "eos_token_id": 9,
}
README = "---\nlicense: mit\ntags: [x]\n---\n# A model\n"


def words_tokenizer() -> PreTrainedTokenizerFast:
    """<s> words </s>, as CLIP has it."""
    tokenizer = Tokenizer(models.WordLevel({word: row for row, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 8), ("</s>", 9)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="</s>", model_max_length=12
    )


def pair(name: str) -> Any:
    """A CLIP or a SigLIP, none of whose weights is at its start."""
    sides = {"vision_config": {**_TOWER, "image_size": PX, "patch_size": PATCH}}
    sides["text_config"] = _TEXT
    torch.manual_seed(0)
    if name == "clip":
        model: Any = CLIPModel(CLIPConfig(**sides, projection_dim=24))
    else:
        model = SiglipModel(SiglipConfig(**sides))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.2)
    model.logit_scale.data.fill_(4.7)
    return model.eval()


def write_pair(folder: Path, name: str, processor: Any, **changes: Any) -> Any:
    """Write a CLIP or a SigLIP as transformers does, `changes` in its processor's file."""
    model = pair(name)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    words_tokenizer().save_pretrained(folder)
    (folder / "README.md").write_text(README)
    if changes:
        file = folder / "preprocessor_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return model
