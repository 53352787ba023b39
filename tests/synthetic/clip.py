"""Other people's model: transformers' CLIP, small and random, behind the two functions.

A real one differs in `build` alone: `CLIPModel.from_pretrained(weights)` and its tokenizer.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BertTokenizer, CLIPConfig, CLIPModel

from medclip_dcl.likelihood.fitting import train_tokenizer

SENTENCES = ("There is an effusion.", "The lungs are clear.", "Pneumonia is seen.", "No edema.")
INPUT_PX, PATCH_PX = 32, 8
MEAN, SPREAD = (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)


class Clip:
    """Patches and sentences in CLIP's common space."""

    def __init__(self, model: CLIPModel, tokenizer: BertTokenizer) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer

    def embed_images(self, images: np.ndarray) -> Tensor:
        grey = torch.from_numpy(images).float().div(255).unsqueeze(1)
        size = (INPUT_PX, INPUT_PX)
        grey = functional.interpolate(grey, size=size, mode="bilinear", antialias=True)
        colours = zip(MEAN, SPREAD, strict=True)
        pixels = torch.cat([(grey - mean) / spread for mean, spread in colours], dim=1)
        vision = self.model.vision_model
        patches = vision(pixels).last_hidden_state[:, 1:]  # the first is the class token
        vectors = self.model.visual_projection(vision.post_layernorm(patches))
        return vectors.unflatten(1, (INPUT_PX // PATCH_PX, INPUT_PX // PATCH_PX))

    def embed_sentences(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=32, return_tensors="pt"
        )
        states = self.model.text_model(tokens["input_ids"], tokens["attention_mask"])
        return self.model.text_projection(states.pooler_output)


def build(weights: str = "") -> Clip:
    """Draw a small CLIP; `weights` may name a file whose first byte is the seed."""
    seed = 0
    if weights:
        seed = Path(weights).read_bytes()[0]
    tokenizer = train_tokenizer(SENTENCES, vocabulary=120, max_tokens=32)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    tower["num_attention_heads"] = 2
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
    text |= {"eos_token_id": tokenizer.sep_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = CLIPConfig(
        text_config=tower | text,
        vision_config=tower | {"image_size": INPUT_PX, "patch_size": PATCH_PX},
        projection_dim=12,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CLIPModel(config)
    return Clip(model, tokenizer)


def broken() -> object:
    """Lacks both functions."""
    return object()
