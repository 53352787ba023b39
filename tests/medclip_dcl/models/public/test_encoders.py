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
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.nn import functional

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.likelihood.fitting import train_tokenizer
from medclip_dcl.models.dual_encoder import DualEncoder, build_dual_encoder
from medclip_dcl.models.image_encoder import to_input
from medclip_dcl.models.public.encoders import Start, read_start, read_tokenizer
from medclip_dcl.models.public.weights import fetch_weights
from medclip_dcl.models.settings import ModelConfig

WORDS = ("[PAD]", "[UNK]", "<s>", "</s>", "no", "effusion", "left", "right", "heart", "large")
SENTENCES = ["no effusion", "heart large", "left effusion no right effusion"]
PX, PATCH = 32, 8
CHANNEL_MEAN, CHANNEL_STD = (0.48, 0.45, 0.40), (0.27, 0.26, 0.28)
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
VISION = {**TOWER, "image_size": PX, "patch_size": PATCH}
TEXT = {
    **TOWER,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
RESNET = {"image": {"depths": [1], "widths": [8], "input_px": PX}}
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def saved(folder: Path, model: Any, tokenizer: Any = None, **processor: Any) -> Path:
    model.eval().save_pretrained(folder)
    facts = {"image_mean": CHANNEL_MEAN, "image_std": CHANNEL_STD, **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def words_tokenizer() -> hf.PreTrainedTokenizerFast:
    """<s> words </s>, as CLIP and RoBERTa have it."""
    tokenizer = Tokenizer(models.WordLevel(dict(zip(WORDS, range(10), strict=True)), "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", eos_token="</s>", model_max_length=12
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A tiny random model of each kind, saved, and its folder."""
    root = tmp_path_factory.mktemp("towers")
    torch.manual_seed(0)
    sides = {"vision_config": VISION, "text_config": TEXT}
    made = {
        "dinov2": hf.Dinov2Model(hf.Dinov2Config(**VISION)),
        "dinov3": hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**VISION, num_register_tokens=2)),
        "vit": hf.ViTModel(hf.ViTConfig(**VISION)),
        "clip": hf.CLIPModel(hf.CLIPConfig(**sides, projection_dim=24)),
        "siglip": hf.SiglipModel(hf.SiglipConfig(**sides)),
        "roberta": hf.RobertaModel(hf.RobertaConfig(**TEXT)),
        # A window of two words on each side, so that layers with and without one differ.
        "modernbert": hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(
                **{**TEXT, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 4},
                global_attn_every_n_layers=2,
                classifier_pooling="mean",
            )
        ),
    }
    for parameter in made["dinov2"].parameters():  # position embeddings start as zeros
        parameter.data.normal_(std=0.3)
    tokenizer = words_tokenizer()
    return {name: (saved(root / name, model, tokenizer), model) for name, model in made.items()}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = train_tokenizer(SENTENCES, vocabulary=60, max_tokens=12)
    config = hf.BertConfig(**{**TEXT, "vocab_size": len(tokenizer)})
    return saved(folder, hf.BertModel(config), tokenizer)


def vit(px: int = PX, **more: Any) -> dict[str, Any]:
    return {"image": {"kind": "vit", "input_px": px, "pretrained": "given", **more}}


def start(
    image: Path | None, text: Path, model: dict[str, Any], whole: bool = False
) -> tuple[Start, DualEncoder]:
    begun = read_start(ModelConfig.model_validate(model), image, text, whole=whole)
    encoder = build_dual_encoder(begun.settings, begun.text_config, seed=0)
    begun.fill(encoder)
    return begun, encoder.eval()


def images(px: int = PX) -> tuple[torch.Tensor, torch.Tensor]:
    """Our input, and the same as transformers' processor makes it of three equal channels."""
    grey = torch.randint(256, (2, px, px), dtype=torch.uint8)
    level = grey.unsqueeze(1).float() / 255
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (CHANNEL_MEAN, CHANNEL_STD))
    return to_input(grey, px), (level - mean) / std


def tokens(begun: Start) -> tuple[torch.Tensor, torch.Tensor]:
    made = begun.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    return made["input_ids"], made["attention_mask"]


def cells(states: torch.Tensor, side: int) -> torch.Tensor:
    return states[:, -side * side :].transpose(1, 2).unflatten(2, (side, side))


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "vit"])
@torch.no_grad()
def test_patches_and_the_pooled_state_are_transformers_own(folders, bert, name) -> None:
    folder, model = folders[name]
    begun, encoder = start(folder, bert, vit())
    ours, theirs = images()
    states = model(theirs).last_hidden_state
    torch.testing.assert_close(encoder.image(ours), cells(states, 4), **TOLERANCE)
    assert (encoder.image.grid(PX), encoder.image.width) == (4, 16)
    assert [mean for mean, _ in begun.settings.image.normalisation] == pytest.approx(CHANNEL_MEAN)
    _, pooled = start(folder, bert, vit(regions="pooled"))
    torch.testing.assert_close(pooled.image(ours)[:, :, 0, 0], states[:, 0], **TOLERANCE)


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "vit"])
@torch.no_grad()
def test_another_size_interpolates_positions_as_transformers_does(folders, bert, name) -> None:
    folder, model = folders[name]
    _, encoder = start(folder, bert, vit(48))
    ours, theirs = images(48)
    more = {"interpolate_pos_encoding": True} if name == "vit" else {}
    expected = cells(model(theirs, **more).last_hidden_state, 6)
    torch.testing.assert_close(encoder.image(ours), expected, **TOLERANCE)


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "vit", "clip", "siglip"])
@torch.no_grad()
def test_a_bright_patch_is_the_peak_of_its_heatmap(folders, bert, name) -> None:
    _, encoder = start(folders[name][0], bert, vit(48))  # 4 x 4 positions become 6 x 6
    shades = torch.tensor([-2.0, 2.0]).view(2, 1, 1, 1).expand(2, 1, 48, 48)
    black, white = encoder.encode_images(shades)
    sentence = (white - black).mean(dim=(0, 1))  # brightness, wherever it is
    for row, column in ((0, 0), (1, 4), (5, 2)):
        pixels = shades[:1].clone()
        pixels[0, 0, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] = 2.0
        heat = (encoder.encode_images(pixels)[0] - black) @ sentence
        assert divmod(int(heat.argmax()), 6) == (row, column)


@pytest.mark.parametrize("name", ["clip", "siglip"])
@torch.no_grad()
def test_a_whole_model_gives_its_own_vectors_and_scale(folders, name) -> None:
    folder, model = folders[name]
    begun, encoder = start(None, folder, {"image": {"input_px": PX}}, whole=True)
    ours, theirs = images()
    ids, mask = tokens(begun)
    padded = functional.pad(ids, (0, 12 - ids.shape[1])) if name == "siglip" else ids
    more = {} if name == "siglip" else {"attention_mask": mask}
    answer = model(input_ids=padded, pixel_values=theirs, **more)
    expected = functional.normalize(answer.text_embeds, dim=-1)
    torch.testing.assert_close(encoder.encode_sentences(ids, mask), expected, **TOLERANCE)
    scale = min(max(float(model.logit_scale.exp()), 1.0), 100.0)
    assert float(encoder.gamma**2) == pytest.approx(scale, rel=1e-5)
    # The patches lie in the same space: of CLIP as its class token, of SigLIP pooled one by one.
    regions = encoder.encode_images(ours)
    states = model.vision_model(theirs).last_hidden_state
    if name == "clip":
        states = model.visual_projection(model.vision_model.post_layernorm(states[:, 1:]))
    else:
        each = [model.vision_model.head(states[:, [cell]]) for cell in range(16)]
        states = torch.stack(each, dim=1)
    expected = functional.normalize(states, dim=-1).unflatten(1, (4, 4))
    torch.testing.assert_close(regions, expected, **TOLERANCE)


@pytest.mark.parametrize("pooling", ["cls", "mean", "eos"])
@torch.no_grad()
def test_text_is_pooled_as_asked_and_cut_at_what_the_encoder_reads(folders, pooling) -> None:
    folder, model = folders["roberta"]
    text = {"pretrained": "given", "pooling": pooling}
    begun, encoder = start(None, folder, {**RESNET, "text": text})
    assert begun.settings.text.max_tokens == 12 - (0 + 1)  # positions start behind padding's
    ids, mask = tokens(begun)
    states = model(ids, mask).last_hidden_state
    lengths = mask.sum(dim=1)
    expected = {
        "cls": states[:, 0],
        "mean": torch.stack(
            [row[:length].mean(dim=0) for row, length in zip(states, lengths, strict=True)]
        ),
        "eos": torch.stack([row[length - 1] for row, length in zip(states, lengths, strict=True)]),
    }[pooling]
    torch.testing.assert_close(encoder.text.pooled(ids, mask), expected, **TOLERANCE)


@pytest.mark.parametrize("pooling", ["auto", "cls", "eos"])
@torch.no_grad()
def test_modernbert_is_read_without_its_head(folders, pooling) -> None:
    folder, model = folders["modernbert"]
    text = {"pretrained": "given", "pooling": pooling}
    begun, encoder = start(None, folder, {**RESNET, "text": text})
    assert begun.settings.text.max_tokens == 12
    assert begun.fill(encoder)["text"].unexpected == (
        *("decoder.bias", "head.dense.weight", "head.norm.weight"),
    )
    ids, mask = tokens(begun)
    states = model.model(ids, mask).last_hidden_state
    lengths = mask.sum(dim=1)
    last = torch.stack([row[length - 1] for row, length in zip(states, lengths, strict=True)])
    mean = (states * mask.unsqueeze(-1)).sum(dim=1) / lengths.unsqueeze(-1)
    expected = {"auto": mean, "cls": states[:, 0], "eos": last}[pooling]  # its config says mean
    torch.testing.assert_close(encoder.text.pooled(ids, mask), expected, **TOLERANCE)


@torch.no_grad()
def test_a_sentence_encoder_says_how_it_pools_and_how_much_it_reads(bert, tmp_path) -> None:
    folder = shutil.copytree(bert, tmp_path / "sentences")
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    begun, encoder = start(None, folder, {**RESNET, "text": {"pretrained": "given"}})
    assert (begun.settings.text.pooling, begun.settings.text.max_tokens) == ("mean", 9)
    ids, mask = tokens(begun)
    states = hf.BertModel.from_pretrained(folder).eval()(ids, mask).last_hidden_state
    expected = (states * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    torch.testing.assert_close(encoder.text.pooled(ids, mask), expected, **TOLERANCE)


def open_clip_folder(folder: Path, bert: Path, vit_model: hf.ViTModel) -> dict[str, torch.Tensor]:
    """A file of BiomedCLIP's layout: timm's names and fused projections, BERT, two maps."""
    state = {}
    for key, value in vit_model.state_dict().items():
        for ours, timms in (
            ("embeddings.cls_token", "cls_token"),
            ("embeddings.position_embeddings", "pos_embed"),
            ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
            ("layernorm_before", "norm1"),
            ("layernorm_after", "norm2"),
            ("attention.o_proj", "attn.proj"),
            ("layers.", "blocks."),
            ("layernorm.", "norm."),
        ):
            key = key.replace(ours, timms)
        if "q_proj" in key:
            names = (f"layers.{key.split('.')[1]}.attention.{name}_proj" for name in "qkv")
            part = key.rsplit(".", 1)[1]
            value = torch.cat([vit_model.state_dict()[f"{name}.{part}"] for name in names])
            key = key.replace("attention.q_proj", "attn.qkv")
        elif "_proj" in key or key.startswith("pooler"):
            continue
        state[f"visual.trunk.{key}"] = value
    for key, value in load_file(bert / "model.safetensors").items():
        state[f"text.transformer.{key}"] = value
    maps = {
        "visual.head.proj.weight": torch.randn(24, 64),
        "text.proj.0.weight": torch.randn(40, 64),
        "text.proj.2.weight": torch.randn(24, 40),
        "logit_scale": torch.tensor(4.4),
    }
    folder.mkdir()
    torch.save(state | maps, folder / "open_clip_pytorch_model.bin")
    tree = {
        "model_cfg": {
            "text_cfg": {"context_length": 10, "hf_pooler_type": "cls_last_hidden_state_pooler"}
        },
        "preprocess_cfg": {"mean": CHANNEL_MEAN, "std": CHANNEL_STD},
    }
    (folder / "open_clip_config.json").write_text(json.dumps(tree))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bert / name, folder)
    return maps


@torch.no_grad()
def test_biomedclips_layout_gives_what_its_parts_give(tmp_path) -> None:
    wide = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 1}
    torch.manual_seed(1)
    vision = hf.ViTModel(hf.ViTConfig(**{**VISION, **wide}, layer_norm_eps=1e-6)).eval()
    tokenizer = train_tokenizer(SENTENCES, vocabulary=60, max_tokens=12)
    text = hf.BertModel(hf.BertConfig(**{**TEXT, **wide, "vocab_size": len(tokenizer)})).eval()
    bert_folder = saved(tmp_path / "bert", text, tokenizer)
    folder = tmp_path / "biomedclip"
    maps = open_clip_folder(folder, bert_folder, vision)
    begun, encoder = start(None, folder, vit(regions="pooled"), whole=True)
    assert begun.settings.text.max_tokens == 10
    assert begun.settings.image.backbone["num_hidden_layers"] == 2
    ours, theirs = images()
    image = vision(theirs).last_hidden_state[:, 0] @ maps["visual.head.proj.weight"].T
    expected = functional.normalize(image, dim=-1)
    torch.testing.assert_close(encoder.encode_images(ours)[:, 0, 0], expected, **TOLERANCE)
    ids, mask = tokens(begun)
    states = text(ids, mask).last_hidden_state[:, 0]
    inner = functional.gelu(states @ maps["text.proj.0.weight"].T)
    expected = functional.normalize(inner @ maps["text.proj.2.weight"].T, dim=-1)
    torch.testing.assert_close(encoder.encode_sentences(ids, mask), expected, **TOLERANCE)
    assert float(encoder.gamma**2) == pytest.approx(math.exp(4.4), rel=1e-5)


def changed(folder: Path, target: Path, **tensors: torch.Tensor | None) -> Path:
    shutil.copytree(folder, target)
    state = load_file(target / "model.safetensors")
    for key, value in tensors.items():
        state.pop(key) if value is None else state.update({key: value})
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_what_is_left_over_or_missing_is_refused(folders, bert, tmp_path) -> None:
    folder, _ = folders["dinov2"]
    strange = {"encoder.layer.0.adapter.weight": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"1 unknown .*adapter"):
        start(changed(folder, tmp_path / "strange", **strange), bert, vit())
    with pytest.raises(CheckpointError, match=r"1 missing .*layernorm"):
        start(changed(folder, tmp_path / "short", **{"layernorm.bias": None}), bert, vit())
    head = changed(folder, tmp_path / "head", **{"classifier.weight": torch.zeros(2)})
    begun = read_start(ModelConfig.model_validate(vit()), head, bert, whole=False)
    encoder = build_dual_encoder(begun.settings, begun.text_config, seed=0)
    assert begun.fill(encoder)["image"].unexpected == ("classifier.weight", "embeddings.mask_token")


def test_folders_that_do_not_suffice_are_named(folders, bert, tmp_path) -> None:
    folder = shutil.copytree(folders["dinov2"][0], tmp_path / "bare")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"preprocessor_config.json; set model.image.normalisation"
    ):
        start(folder, bert, vit())
    begun, _ = start(folder, bert, vit(normalisation=[[0.5, 0.5]]))
    assert begun.settings.image.normalisation == ((0.5, 0.5),)
    with pytest.raises(ConfigError, match=r"36 is not a multiple of the 8 .* set 32 or 40"):
        start(folders["dinov2"][0], bert, vit(36))
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model.safetensors"):
        start(folder, bert, vit(normalisation=[[0.5, 0.5]]))
    with pytest.raises(CheckpointError, match="model_type dinov2, which is not a model of"):
        start(None, folders["dinov2"][0], {"pretrained": "given"}, whole=True)


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
