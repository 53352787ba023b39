"""Folders of public checkpoints, written by their makers' classes with random weights."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from medclip_dcl.models.settings import ImageEncoderConfig
from tests.support.bert import tiny_bert, tiny_tokenizer, write_cxr_bert
from tests.support.resnet import torchvision_weights

WORDS = ("[PAD]", "[UNK]", "no", "effusion", "left", "right", "heart", "large", "<s>", "</s>")
"""A vocabulary that ends as CLIP's does: its last word ends a sentence."""
SENTENCES = ["no effusion", "heart large", "left effusion no right effusion"]
PX, PATCH = 32, 8
TOWER = {
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
TEXT = {
    **TOWER,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "bos_token_id": 8,
    "eos_token_id": 9,
}
PROCESSORS = {
    "clip": CLIPImageProcessorPil(
        size={"shortest_edge": PX + 4}, crop_size={"height": PX, "width": PX}
    ),
    "siglip": SiglipImageProcessorPil(size={"height": PX, "width": PX}),
}
README = "---\nlicense: mit\ntags: [x]\n---\n# A model\n"


def close(found: Tensor, expected: Tensor) -> None:
    """Compare what is computed here with what the maker's own class computes."""
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def unit(vectors: Tensor) -> Tensor:
    return functional.normalize(vectors, dim=-1)


def words_tokenizer() -> hf.PreTrainedTokenizerFast:
    """<s> words </s>, as CLIP has it."""
    tokenizer = Tokenizer(models.WordLevel({word: row for row, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 8), ("</s>", 9)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="</s>", model_max_length=12
    )


def pair(name: str, hidden_act: str = "quick_gelu", heads: int = 2) -> Any:
    """A CLIP or a SigLIP, none of whose weights is at its start."""
    act: dict[str, Any] = {"num_attention_heads": heads}
    if name == "clip" or hidden_act == "gelu":
        act["hidden_act"] = hidden_act
    sides: dict[str, Any] = {
        "vision_config": {**TOWER, **act, "image_size": PX, "patch_size": PATCH}
    }
    sides["text_config"] = {**TEXT, **act}
    torch.manual_seed(0)
    if name == "clip":
        model: Any = hf.CLIPModel(hf.CLIPConfig(**sides, projection_dim=24))
    else:
        model = hf.SiglipModel(hf.SiglipConfig(**sides))
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


def renamed(state: dict[str, Tensor], names: dict[str, str], fused: str) -> dict[str, Tensor]:
    """Name weights otherwise; queries, keys and values of a layer become one, named `fused`."""
    named = {}
    for key, value in state.items():
        for theirs, own in names.items():
            key = key.replace(theirs, own)
        named[key] = value
    for key in [key for key in named if "self_attn.q_proj" in key]:
        three = [named.pop(key.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        named[key.replace("self_attn.q_proj.", fused)] = torch.cat(three)
    return named


_TEXT_KEYS = {
    "text_model.encoder.layers": "transformer.resblocks",
    "text_model.embeddings.token_embedding": "token_embedding",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm": "ln_final",
    "layer_norm": "ln_",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
_OPENAI_KEYS = {
    "vision_model.encoder.layers": "visual.transformer.resblocks",
    "vision_model.embeddings.patch_embedding": "visual.conv1",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm": "visual.ln_pre",
    "vision_model.post_layernorm": "visual.ln_post",
}
_TIMM_KEYS = {
    "vision_model.encoder.layers": "visual.trunk.blocks",
    "vision_model.embeddings.patch_embedding": "visual.trunk.patch_embed.proj",
    "vision_model.embeddings.position_embedding.weight": "visual.trunk.pos_embed",
    "vision_model.post_layernorm": "visual.trunk.norm",
    "vision_model.head.probe": "visual.trunk.attn_pool.latent",
    "vision_model.head.layernorm": "visual.trunk.attn_pool.norm",
    "vision_model.head.mlp": "visual.trunk.attn_pool.mlp",
    "vision_model.head.attention.out_proj": "visual.trunk.attn_pool.proj",
    "layer_norm": "norm",
    "self_attn.out_proj": "attn.proj",
}


def openai_keys(model: hf.CLIPModel, prefix: str = "") -> dict[str, Tensor]:
    """Name a CLIP's weights as OpenAI does, its text's behind a `prefix`."""
    state = model.state_dict()
    named = {"visual.proj": state.pop("visual_projection.weight").T}
    named[f"{prefix}text_projection"] = state.pop("text_projection.weight").T
    for key, value in renamed(state, _OPENAI_KEYS | _TEXT_KEYS, "attn.in_proj_").items():
        is_text = not key.startswith(("visual.", "logit_scale"))
        named[f"{prefix * is_text}{key}"] = value
    return named


def siglip_keys(model: hf.SiglipModel) -> dict[str, Tensor]:
    """Name a SigLIP's weights as open_clip does: timm's of the image, its own of the text."""
    state = model.state_dict()
    named = {name: state.pop(name)[0] for name in ("logit_scale", "logit_bias")}
    pool = "visual.trunk.attn_pool"
    for part in ("weight", "bias"):
        rows = state.pop(f"vision_model.head.attention.in_proj_{part}")
        named[f"{pool}.q.{part}"] = rows[: len(rows) // 3]
        named[f"{pool}.kv.{part}"] = rows[len(rows) // 3 :]
        named[f"text.text_projection.{part}"] = state.pop(f"text_model.head.{part}")
    text = {key: state.pop(key) for key in [*state] if key.startswith("text_model.")}
    own = renamed(text, _TEXT_KEYS, "attn.in_proj_")
    named |= {f"text.{key}": value for key, value in own.items()}
    named |= renamed(state, _TIMM_KEYS, "attn.qkv.")
    named["visual.trunk.pos_embed"] = named["visual.trunk.pos_embed"][None]
    return named


SIGLIP_ASKS: dict[str, Any] = {
    "vision_cfg": {"timm_model_name": "vit_base_patch16_siglip_224", "timm_pool": "map",
                   "timm_proj": "none"},
    "text_cfg": {"heads": 2, "no_causal_mask": True, "proj_bias": True, "pool_type": "last",
                 "norm_kwargs": {"eps": 1e-6}, "tokenizer_kwargs": {"clean": "canonicalize"}},
}  # fmt: skip
"""What open_clip's configuration asks of a SigLIP."""


def write_open_clip(folder: Path, state: dict[str, Tensor], **model_cfg: Any) -> None:
    folder.mkdir()
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    tree = {
        "model_cfg": model_cfg,
        "preprocess_cfg": {"mean": [0.48, 0.45, 0.4], "std": [0.26] * 3},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(tree))
    words_tokenizer().save_pretrained(folder)


RESNET = ImageEncoderConfig(depths=(1, 1), widths=(32, 64), layer="bottleneck")
DIM, BRIDGE = 16, 12


def write_biovil(folder: Path, *, temporal: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Write BioViL's release, or BioViL-T's: weights of its image model and of CXR-BERT's head."""
    write_cxr_bert(folder, tiny_bert())
    file = folder / "model.safetensors"
    text, drawn = load_file(file), torch.Generator().manual_seed(2)
    head = {
        name: torch.randn(value.shape, generator=drawn)
        for name, value in text.items()
        if name.startswith("cls_projection_head.")
    }
    save_file(text | head, file, metadata={"format": "pt"})
    width = 2 * BRIDGE if temporal else RESNET.widths[-1]
    shapes = {"0.weight": (DIM, width, 1, 1), "1.bias": (DIM,), "1.running_mean": (DIM,)}
    shapes |= {"3.weight": (DIM, DIM, 1, 1), "3.bias": (DIM,)}
    projector = {name: torch.randn(shape, generator=drawn) for name, shape in shapes.items()}
    for name in ("1.weight", "1.running_var"):
        projector[name] = torch.rand(DIM, generator=drawn) + 0.5
    image = {
        f"encoder.encoder.{name}": value for name, value in torchvision_weights(RESNET).items()
    }
    image |= {f"projector.model.{name}": value for name, value in projector.items()}
    image["projector.model.1.num_batches_tracked"] = torch.tensor(3)
    if temporal:
        bridge = torch.randn((BRIDGE, RESNET.widths[-1], 1, 1), generator=drawn)
        image["encoder.backbone_to_vit.weight"] = bridge
        image["encoder.missing_previous_emb"] = torch.randn((1, BRIDGE, 1, 1), generator=drawn)
        image["encoder.vit_pooler.pos_drop.weight"] = torch.zeros(2)
    name = "t_image_model" if temporal else "image_resnet50"
    torch.save(image, folder / f"biovil_{name}_proj_size_128.pt")
    return image, head


SWIN = hf.SwinConfig(
    image_size=PX, embed_dim=16, depths=[1, 2], num_heads=[2, 4], window_size=4, mlp_ratio=2.0
)
_OF_TRANSFORMERS_4 = {
    ".q_proj.": ".self.query.",
    ".k_proj.": ".self.key.",
    ".v_proj.": ".self.value.",
    "attention.o_proj.": "attention.output.dense.",
    "attention.relative_position_bias.": "attention.self.",
    "mlp.fc1.": "intermediate.dense.",
    "mlp.fc2.": "output.dense.",
}


def cxr_clip_tree(kind: str, head: str) -> tuple[dict[str, Any], hf.SwinModel]:
    """What CXR-CLIP's training writes, with random weights; also its Swin transformer."""
    drawn = torch.Generator().manual_seed(4)
    swin = hf.SwinModel(SWIN, add_pooling_layer=False).eval()
    for parameter in swin.parameters():
        parameter.data = torch.randn(parameter.shape, generator=drawn) * 0.2
    state, width = {"logit_scale": torch.tensor(2.6)}, RESNET.widths[-1]
    if kind == "resnet":
        weights = torchvision_weights(RESNET).items()
        own = {key: value for key, value in weights if not key.startswith("fc.")}
        state |= {f"image_encoder.resnet.{key}": value for key, value in own.items()}
    else:
        width = SWIN.hidden_size
        for key, value in swin.state_dict().items():
            for new, old in _OF_TRANSFORMERS_4.items():
                key = key.replace(new, old)
            state[f"image_encoder.image_encoder.{key}"] = value
        block = "image_encoder.image_encoder.encoder.layers.0.blocks.0.attention.self"
        state[f"{block}.relative_position_index"] = torch.zeros(16, 16, dtype=torch.long)
    for key, value in tiny_bert().bert.state_dict().items():
        state[f"text_encoder.text_encoder.{key}"] = value
    state["text_encoder.text_encoder.embeddings.position_ids"] = torch.arange(64)[None]
    state["text_encoder.text_encoder.pooler.dense.weight"] = torch.zeros(32, 32)
    for side, inputs in (("image", width), ("text", 32)):
        shapes = {"projection.weight": (DIM, inputs), "projection.bias": (DIM,)}
        if head == "mlp":
            shapes |= {"fc.weight": (DIM, DIM), "fc.bias": (DIM,)}
            shapes |= {"layer_norm.weight": (DIM,), "layer_norm.bias": (DIM,)}
        for key, shape in shapes.items():
            state[f"{side}_projection.{key}"] = torch.randn(shape, generator=drawn)
    sides = {"image_encoder": {"name": kind}, "text_encoder": {"pooling": "eos"}}
    steps = {"Resize": {"size": PX + 3}, "CenterCrop": {"size": PX}}
    config = {"model": sides, "base": {"text_max_length": 20}, "transform": {"test": steps}}
    rest = {"optimizer": {"state": {0: torch.zeros(2)}}, "epoch": 3, "train_loss": 0.5}
    return {"model": state, "config": config, **rest}, swin


def write_cxr_clip(folder: Path, tree: dict[str, Any]) -> Path:
    """Write CXR-CLIP's file, and next to it the tokenizer and the sizes of its BERT."""
    folder.mkdir()
    torch.save(tree, folder / "r50_m.tar")
    tiny_tokenizer().save_pretrained(folder)
    tiny_bert().config.save_pretrained(folder)  # its heads are of other units than 64
    return folder
