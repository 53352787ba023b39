"""Encoders of other people: the same numbers as transformers' own classes give."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch.nn import functional

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.models.public.encoders import Start, read_start, read_tokenizer
from medclip_dcl.models.public.weights import fetch_weights
from medclip_dcl.models.settings import ModelConfig
from tests.support import public_checkpoints as public
from tests.support.public_checkpoints import PATCH, PX, SENTENCES, TEXT, TOWER, close, unit

CHANNEL_MEAN, CHANNEL_STD = (0.48, 0.45, 0.40), (0.27, 0.26, 0.28)
VISION = {**TOWER, "image_size": PX, "patch_size": PATCH}
RESNET = {"image": {"depths": [1], "widths": [8], "input_px": PX}}


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.eval().save_pretrained(folder)
    facts = {"image_mean": CHANNEL_MEAN, "image_std": CHANNEL_STD}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A tiny random model of each kind, saved, and its folder."""
    root = tmp_path_factory.mktemp("towers")
    torch.manual_seed(0)
    made = {
        "dinov2": hf.Dinov2Model(hf.Dinov2Config(**VISION)),
        "dinov3": hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**VISION, num_register_tokens=2)),
        "vit": hf.ViTModel(hf.ViTConfig(**VISION)),
        "clip": public.pair("clip"),
        "siglip": public.pair("siglip"),
        "roberta": hf.RobertaModel(hf.RobertaConfig(**TEXT)),
        # A window of two words on each side, so that layers with and without one differ.
        "modernbert": hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(
                **{**TEXT, "cls_token_id": 8, "sep_token_id": 9, "local_attention": 4},
                global_attn_every_n_layers=2,
                classifier_pooling="mean",
            )
        ),
    }
    for parameter in made["dinov2"].parameters():  # position embeddings start as zeros
        parameter.data.normal_(std=0.3)
    tokenizer = public.words_tokenizer()
    return {name: (saved(root / name, model, tokenizer), model) for name, model in made.items()}


def write_bert(folder: Path, **sizes: Any) -> hf.BertModel:
    tokenizer = train_tokenizer(SENTENCES, vocabulary=60, max_tokens=12)
    model = hf.BertModel(hf.BertConfig(**{**TEXT, **sizes, "vocab_size": len(tokenizer)}))
    saved(folder, model, tokenizer)
    return model


def vit(px: int = PX, **more: Any) -> dict[str, Any]:
    return {"image": {"kind": "vit", "input_px": px, "pretrained": "given", **more}}


def start(
    image: Path | None, text: Path, model: dict[str, Any], whole: bool = False
) -> tuple[Start, DualEncoder]:
    begun = read_start(ModelConfig.model_validate(model), image, text, whole=whole)
    encoder = build_dual_encoder(begun.settings, begun.text_config, seed=0)
    begun.fill(encoder)
    return begun, encoder.eval()


def images(px: int = PX, std: Any = CHANNEL_STD) -> tuple[torch.Tensor, torch.Tensor]:
    """Our input, and the same as transformers' processor makes it of three equal channels."""
    grey = torch.randint(256, (2, px, px), dtype=torch.uint8)
    level = grey.unsqueeze(1).float() / 255
    mean, spread = (torch.tensor(item).view(3, 1, 1) for item in (CHANNEL_MEAN, std))
    return to_input(grey, px), (level - mean) / spread


def tokens(begun: Start) -> tuple[torch.Tensor, torch.Tensor]:
    made = begun.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return made["input_ids"], made["attention_mask"]


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "vit"])
@pytest.mark.parametrize("px", [PX, 48], ids=["own size", "interpolated"])
@torch.no_grad()
def test_patches_and_the_pooled_state_are_transformers_own(folders, name, px) -> None:
    (folder, model), (text, _) = folders[name], folders["roberta"]
    begun, encoder = start(folder, text, vit(px))
    ours, theirs = images(px)
    more = {"interpolate_pos_encoding": True} if name == "vit" else {}
    states, side = model(theirs, **more).last_hidden_state, px // PATCH
    patches = states[:, -side * side :].transpose(1, 2)
    close(encoder.image(ours), patches.unflatten(2, (side, side)))
    assert (encoder.image.grid(px), encoder.image.width) == (side, 64)
    assert [mean for mean, _ in begun.settings.image.normalisation] == pytest.approx(CHANNEL_MEAN)
    _, pooled = start(folder, text, vit(px, regions="pooled"))
    close(pooled.image(ours)[:, :, 0, 0], states[:, 0])


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "vit", "clip", "siglip"])
@torch.no_grad()
def test_a_bright_patch_is_the_peak_of_its_heatmap(folders, name) -> None:
    (folder, _), (text, _) = folders[name], folders["roberta"]
    _, encoder = start(folder, text, vit(48))  # 4 x 4 positions become 6 x 6
    shades = torch.tensor([-2.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 48, 48)
    black, white = encoder.encode_images(shades)
    sentence = (white - black).mean(dim=(0, 1))  # brightness, wherever it is
    for row, column in ((0, 0), (1, 4), (5, 2)):
        pixels = shades[:1].clone()
        pixels[0, 0, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = 2.0
        heat = (encoder.encode_images(pixels)[0] - black) @ sentence
        assert divmod(int(heat.argmax()), 6) == (row, column)


@torch.no_grad()
def test_patches_of_a_siglip_are_pooled_one_by_one_into_the_space_of_its_texts(folders) -> None:
    """Those of a CLIP, and vectors of images and texts, are compared where both are adopted."""
    folder, model = folders["siglip"]
    _, encoder = start(None, folder, {"image": {"input_px": PX}}, whole=True)
    assert float(encoder.gamma**2) == pytest.approx(100, rel=1e-5)  # exp(4.7), and no more is kept
    ours, theirs = images()
    states = model.vision_model(theirs).last_hidden_state
    each = [model.vision_model.head(states[:, [cell]]) for cell in range(16)]
    close(encoder.encode_images(ours), unit(torch.stack(each, dim=1)).unflatten(1, (4, 4)))


def pooled(states: torch.Tensor, mask: torch.Tensor, pooling: str) -> torch.Tensor:
    said = [row[: int(count)] for row, count in zip(states, mask.sum(dim=1), strict=True)]
    parts = {"cls": lambda row: row[0], "mean": lambda row: row.mean(0), "eos": lambda row: row[-1]}
    return torch.stack([parts[pooling](row) for row in said])


@pytest.mark.parametrize(
    ("name", "asked", "pooling"),
    [
        ("roberta", "cls", "cls"),
        ("roberta", "mean", "mean"),
        ("roberta", "eos", "eos"),
        ("modernbert", "auto", "mean"),  # as its config says
        ("modernbert", "cls", "cls"),
    ],
)
@torch.no_grad()
def test_text_is_pooled_as_asked_and_cut_at_what_the_encoder_reads(folders, name, asked, pooling):
    folder, model = folders[name]
    text = {"pretrained": "given", "pooling": asked}
    begun, encoder = start(None, folder, {**RESNET, "text": text})
    # Positions of RoBERTa start behind its padding's.
    assert begun.settings.text.max_tokens == {"roberta": 11, "modernbert": 12}[name]
    if name == "modernbert":  # is read without its head
        head = ("decoder.bias", "head.dense.weight", "head.norm.weight")
        assert begun.fill(encoder)["text"].unexpected == head
    ids, mask = tokens(begun)
    expected = pooled(model.base_model(ids, mask).last_hidden_state, mask, pooling)
    close(encoder.text.pooled(ids, mask), expected)


@torch.no_grad()
def test_a_sentence_encoder_says_how_it_pools_and_how_much_it_reads(tmp_path) -> None:
    folder = tmp_path / "sentences"
    model = write_bert(folder)
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    begun, encoder = start(None, folder, {**RESNET, "text": {"pretrained": "given"}})
    assert (begun.settings.text.pooling, begun.settings.text.max_tokens) == ("mean", 9)
    ids, mask = tokens(begun)
    expected = pooled(model(ids, mask).last_hidden_state, mask, "mean")
    close(encoder.text.pooled(ids, mask), expected)


TIMM = {
    "embeddings.cls_token": "visual.trunk.cls_token",
    "embeddings.position_embeddings": "visual.trunk.pos_embed",
    "embeddings.patch_embeddings.projection": "visual.trunk.patch_embed.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.": "self_attn.",
    "self_attn.o_proj": "attn.proj",
    "layers.": "visual.trunk.blocks.",
    "layernorm.": "visual.trunk.norm.",
}


@torch.no_grad()
def test_biomedclips_layout_gives_what_its_parts_give(tmp_path) -> None:
    torch.manual_seed(1)
    one = {"num_attention_heads": 1}
    sizes = hf.ViTConfig(**{**VISION, **one}, layer_norm_eps=1e-6)
    vision = hf.ViTModel(sizes, add_pooling_layer=False).eval()
    text = write_bert(tmp_path / "bert", **one)
    maps = {
        "visual.head.proj.weight": torch.randn(24, 64),
        "text.proj.0.weight": torch.randn(40, 64),
        "text.proj.2.weight": torch.randn(24, 40),
        "logit_scale": torch.tensor(4.4),
    }
    state = public.renamed(vision.state_dict(), TIMM, "attn.qkv.") | maps
    state |= {f"text.transformer.{key}": value for key, value in text.state_dict().items()}
    asks = {"context_length": 10, "hf_pooler_type": "cls_last_hidden_state_pooler"}
    folder = tmp_path / "biomedclip"
    public.write_open_clip(folder, state, text_cfg=asks)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "bert" / name, folder)
    begun, encoder = start(None, folder, vit(regions="pooled"), whole=True)
    assert begun.settings.text.max_tokens == 10
    assert begun.settings.image.backbone["num_hidden_layers"] == 2
    ours, theirs = images(std=(0.26, 0.26, 0.26))
    image = vision(theirs).last_hidden_state[:, 0] @ maps["visual.head.proj.weight"].T
    close(encoder.encode_images(ours)[:, 0, 0], unit(image))
    ids, mask = tokens(begun)
    states = text(ids, mask).last_hidden_state[:, 0]
    inner = functional.gelu(states @ maps["text.proj.0.weight"].T)
    close(encoder.encode_sentences(ids, mask), unit(inner @ maps["text.proj.2.weight"].T))
    assert float(encoder.gamma**2) == pytest.approx(math.exp(4.4), rel=1e-5)


def test_folders_that_do_not_suffice_are_named_and_heads_left_aside(folders, tmp_path) -> None:
    (dinov2, _), (text, _) = folders["dinov2"], folders["roberta"]
    folder = shutil.copytree(dinov2, tmp_path / "bare")
    state = load_file(folder / "model.safetensors") | {"classifier.weight": torch.zeros(2)}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    begun, encoder = start(folder, text, vit())
    assert begun.fill(encoder)["image"].unexpected == ("classifier.weight", "embeddings.mask_token")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config.json; set model.image.norm"):
        start(folder, text, vit())
    begun, _ = start(folder, text, vit(normalisation=[[0.5, 0.5]]))
    assert begun.settings.image.normalisation == ((0.5, 0.5),)
    with pytest.raises(ConfigError, match=r"36 is not a multiple of the 8 .* set 32 or 40"):
        start(dinov2, text, vit(36))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model.safetensors"):
        start(folder, text, vit(normalisation=[[0.5, 0.5]]))
    with pytest.raises(CheckpointError, match="model_type dinov2, which is not a model of"):
        start(None, dinov2, {"pretrained": "given"}, whole=True)


def test_a_hub_name_needs_the_commit_and_a_tokenizer_word_pieces(tmp_path, monkeypatch):
    assert fetch_weights(tmp_path) == tmp_path
    with pytest.raises(ConfigError, match=r"owner/name@main names a branch .* 40 hexadecimal"):
        fetch_weights(Path("owner/name@main"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="cannot be fetched"):
        fetch_weights(Path(f"owner/name@{'0' * 40}"))
    (tmp_path / "vocab.txt").write_text("")
    with pytest.raises(CheckpointError, match="has no word pieces; copy whole files"):
        read_tokenizer(tmp_path, hf.BertConfig(vocab_size=30))
