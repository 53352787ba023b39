"""Public checkpoints as packages: the answers of the makers' own classes, on random weights."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

import medclip_dcl
from medclip_dcl.core.errors import CheckpointError, ConfigError, QueryError
from medclip_dcl.data.grayscale import GreyImage, square, window
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import Fit, ImagesConfig
from medclip_dcl.inference.adoption import adopt
from medclip_dcl.inference.model_package import read_model_package
from medclip_dcl.inference.predictor import Predictor, load
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import region_scores, score_grids
from tests.support.bert import SENTENCES as REPORTS
from tests.support.bert import tiny_bert, tiny_tokenizer
from tests.support.public_checkpoints import (
    DIM,
    PATCH,
    PROCESSORS,
    PX,
    RESNET,
    SENTENCES,
    SIGLIP_ASKS,
    cxr_clip_tree,
    openai_keys,
    pair,
    siglip_keys,
    words_tokenizer,
    write_biovil,
    write_cxr_clip,
    write_open_clip,
    write_pair,
)
from tests.support.resnet import torchvision_map

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}
GREY = np.random.default_rng(0).integers(20, 200, (50, 41)).astype(np.uint8)


def adopted(folder: Path) -> tuple[Predictor, dict[str, Any]]:
    """Adopt a folder: the predictor of the package, and its card."""
    made = adopt(folder, folder.with_name(f"{folder.name}-package"))
    return load(made.path, "cpu"), dict(read_model_package(made.path).card)


def tokens() -> dict[str, Tensor]:
    made = words_tokenizer()(SENTENCES, padding="max_length", return_tensors="pt")
    return {"input_ids": made["input_ids"]}


@pytest.mark.parametrize("name", ["clip", "siglip"])
@torch.no_grad()
def test_a_pair_of_transformers_answers_as_its_own_class(name: str, tmp_path: Path) -> None:
    processor = PROCESSORS[name]
    model = write_pair(tmp_path / name, name, processor)
    predictor, card = adopted(tmp_path / name)
    Image.fromarray(GREY).save(tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as file:
        pixels = processor(file.convert("RGB"), return_tensors="pt")["pixel_values"]
    theirs = model(**tokens(), pixel_values=pixels)
    prepared = predictor.square(medclip_dcl.open_image(tmp_path / "x.png"))[None]
    regions, texts = predictor.embed_images(prepared), predictor.embed_sentences(SENTENCES)
    torch.testing.assert_close(
        regions[:, 0, 0], functional.normalize(theirs.image_embeds, dim=-1), **TOLERANCE
    )
    torch.testing.assert_close(texts, functional.normalize(theirs.text_embeds, dim=-1), **TOLERANCE)
    logits = predictor.model.gamma**2 * predictor.model.score(regions, texts)
    logits += card["score"]["bias"]
    torch.testing.assert_close(logits.T, theirs.logits_per_image, **TOLERANCE)
    assert card["score"]["scale"] == pytest.approx(math.exp(4.7))  # above the 100 of training
    assert card["source"]["license"] == "mit"
    assert "model.safetensors" in card["source"]["files"]
    assert read_model_package(tmp_path / f"{name}-package").subject_hashes is None
    files = {item.name for item in (tmp_path / f"{name}-package").rglob("*") if item.is_file()}
    assert not {file for file in files if not file.endswith((".json", ".safetensors"))}


@torch.no_grad()
def test_clip_locates_by_its_projected_patches_and_siglip_refuses(tmp_path: Path) -> None:
    model = write_pair(tmp_path / "clip", "clip", PROCESSORS["clip"])
    predictor, _ = adopted(tmp_path / "clip")
    image = GreyImage(GREY.astype(np.uint16) * 257, 8, "png")
    prepared = predictor.square(image)
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in zip(*levels(predictor), strict=True))
    states = model.vision_model((torch.from_numpy(prepared) / 255 - mean)[None] / std)
    patches = model.vision_model.post_layernorm(states.last_hidden_state[:, 1:])
    expected = functional.normalize(model.visual_projection(patches), dim=-1)
    side = PX // PATCH
    found = predictor.embed_regions(prepared[None])
    torch.testing.assert_close(found, expected.unflatten(1, (side, side)), **TOLERANCE)
    grids = region_scores(found, predictor.embed_sentences(SENTENCES))[:, 0]
    answered = predictor.ground(image, SENTENCES).phrases
    for grid, located in zip(grids, answered, strict=True):
        assert np.array(located.grid) == pytest.approx(grid.numpy(), abs=1e-3)
        # 41 x 50 pixels, the shorter side resized to 36, the middle 32 cut out
        assert located.affine[0] == pytest.approx(PX / side * 41 / 36)
        assert located.affine[2] == pytest.approx((2 + PX / side / 2) * 41 / 36)
    write_pair(tmp_path / "siglip", "siglip", PROCESSORS["siglip"])
    other, _ = adopted(tmp_path / "siglip")
    with pytest.raises(QueryError, match="none of its parts, such as SigLIP"):
        other.ground(image, SENTENCES)


def levels(predictor: Predictor) -> Any:
    return predictor.config.model.image.normalisation


@pytest.mark.parametrize("layout", ["open_clip", "custom", "quick", "chexzero"])
@torch.no_grad()
def test_openai_s_keys_give_the_same_clip(layout: str, tmp_path: Path) -> None:
    act = "quick_gelu" if layout in {"quick", "chexzero"} else "gelu"
    heads = 1 if layout == "chexzero" else 2  # one to 64 units, where nothing names them
    model, folder = pair("clip", act, heads), tmp_path / layout
    if layout == "chexzero":  # a state dict alone
        folder.mkdir()
        torch.save(openai_keys(model), folder / "best_64_5e-05_original_22000_0.864.pt")
        words_tokenizer().save_pretrained(folder)
    else:
        prefix = "text." if layout == "custom" else ""
        sizes: dict[str, Any] = {"vision_cfg": {"head_width": 32}, "text_cfg": {"heads": 2}}
        if layout == "quick":
            sizes["quick_gelu"] = True
        write_open_clip(folder, openai_keys(model, prefix), **sizes)
    predictor, card = adopted(folder)
    grey = np.random.default_rng(1).integers(0, 256, (2, PX, PX)).astype(np.uint8)
    mean, std = (torch.tensor(item).view(-1, 1, 1) for item in zip(*levels(predictor), strict=True))
    pixels = ((torch.from_numpy(grey)[:, None] / 255 - mean) / std).expand(-1, 3, -1, -1)
    theirs = model(**tokens(), pixel_values=pixels)
    expected = functional.normalize(theirs.image_embeds, dim=-1)
    torch.testing.assert_close(predictor.embed_images(grey)[:, 0, 0], expected, **TOLERANCE)
    expected = functional.normalize(theirs.text_embeds, dim=-1)
    torch.testing.assert_close(predictor.embed_sentences(SENTENCES), expected, **TOLERANCE)
    assert card["score"]["scale"] == pytest.approx(math.exp(4.7))
    if layout == "chexzero":
        assert levels(predictor)[0] == pytest.approx((101.48761 / 255, 83.43944 / 255))
        images = predictor.config.images
        assert (images.size_px, images.fit) == (320, Fit("pad", "lanczos"))


@torch.no_grad()
def test_timm_s_keys_give_the_same_siglip(tmp_path: Path) -> None:
    model, folder = pair("siglip", "gelu", heads=1), tmp_path / "siglip"
    sizes = {**SIGLIP_ASKS, "text_cfg": {**SIGLIP_ASKS["text_cfg"], "heads": 1}}
    write_open_clip(folder, siglip_keys(model), **sizes)
    predictor, card = adopted(folder)
    grey = np.random.default_rng(1).integers(0, 256, (2, PX, PX)).astype(np.uint8)
    mean, std = (torch.tensor(item).view(-1, 1, 1) for item in zip(*levels(predictor), strict=True))
    theirs = model(**tokens(), pixel_values=(torch.from_numpy(grey)[:, None] / 255 - mean) / std)
    expected = functional.normalize(theirs.image_embeds, dim=-1)
    torch.testing.assert_close(predictor.embed_images(grey)[:, 0, 0], expected, **TOLERANCE)
    # `canonicalize_text`: small letters, neither punctuation nor runs of blanks
    written = ["No  effusion!", "(HEART) la-rge.", "left_effusion; no right effusion & "]
    texts = predictor.embed_sentences(written)
    expected = functional.normalize(theirs.text_embeds, dim=-1)
    torch.testing.assert_close(texts, expected, **TOLERANCE)
    assert card["score"]["scale"] == pytest.approx(math.exp(4.7))
    assert card["score"]["bias"] == pytest.approx(float(model.logit_bias))
    for name, (place, value) in {
        "gap": ("vision_cfg", {"timm_pool": "avg"}),
        "causal": ("text_cfg", {"no_causal_mask": False}),
        "clean": ("text_cfg", {"tokenizer_kwargs": {"clean": "lower"}}),
    }.items():
        write_open_clip(tmp_path / name, {}, **sizes | {place: {**sizes[place], **value}})
        with pytest.raises(CheckpointError, match=rf"asks for .*{next(iter(value))}"):
            adopt(tmp_path / name, tmp_path / "out")
    extra = siglip_keys(model) | {"visual.trunk.cls_token": torch.zeros(1, 1, 64)}
    write_open_clip(tmp_path / "extra", extra, **sizes)
    with pytest.raises(CheckpointError, match="cls_token"):
        adopt(tmp_path / "extra", tmp_path / "out")


def test_of_two_forms_of_one_model_in_a_folder_transformers_is_read(tmp_path: Path) -> None:
    write_open_clip(tmp_path / "both", openai_keys(pair("clip")))
    write_pair(tmp_path / "both", "clip", PROCESSORS["clip"])
    _, card = adopted(tmp_path / "both")
    assert card["source"]["family"] == "transformers"


@torch.no_grad()
def test_chexzero_s_input_is_bicubic_of_a_padded_square_of_320(tmp_path: Path) -> None:
    (tmp_path / "chexzero").mkdir()
    torch.save(openai_keys(pair("clip", hidden_act="quick_gelu")), tmp_path / "chexzero/x.pt")
    words_tokenizer().save_pretrained(tmp_path / "chexzero")
    predictor, _ = adopted(tmp_path / "chexzero")
    # `preprocess` of its data_process.py, then `make` of its zero_shot.py
    picture = Image.fromarray(GREY)
    ratio = 320 / 50
    size = (int(41 * ratio), int(50 * ratio))
    padded = Image.new("L", (320, 320))
    padded.paste(
        picture.resize(size, Image.Resampling.LANCZOS), ((320 - size[0]) // 2, (320 - size[1]) // 2)
    )
    values = (torch.from_numpy(np.array(padded)).float()[None, None] - 101.48761) / 83.43944
    expected = functional.interpolate(values, (PX, PX), mode="bicubic")
    Image.fromarray(GREY).save(tmp_path / "x.png")
    found = predictor.square(medclip_dcl.open_image(tmp_path / "x.png"))
    assert np.array_equal(found, np.array(padded))
    inputs = predictor.inputs(found[None])
    encoder = predictor.model.image
    torch.testing.assert_close(
        inputs * encoder._scale[:1] + encoder._shift[:1], expected, **TOLERANCE
    )
    shown = predictor.window(50, 41)
    assert shown == pytest.approx((-29 / 6.4, 0, 50, 50), abs=0.1)  # 262 columns between 29 black


@pytest.mark.parametrize("temporal", [False, True], ids=["biovil", "biovil_t"])
@torch.no_grad()
def test_biovil_answers_as_hi_ml_s_modules_say(temporal: bool, tmp_path: Path) -> None:
    image, head = write_biovil(tmp_path / "release", temporal=temporal)
    predictor, card = adopted(tmp_path / "release")
    px = 448 if temporal else 480
    fit = Fit("crop", "bilinear", resized_px=512, scaled=True, half_even=True)
    assert (predictor.config.images.size_px, predictor.config.images.fit) == (px, fit)
    grey = np.random.default_rng(0).integers(0, 256, (1, px, px), dtype=np.uint8)
    trunk = {
        name.removeprefix("encoder.encoder."): value
        for name, value in image.items()
        if name.startswith("encoder.encoder.")
    }
    x = torchvision_map(
        trunk, RESNET, (torch.from_numpy(grey) / 255)[:, None].expand(-1, 3, -1, -1)
    )
    if temporal:
        x = functional.conv2d(x, image["encoder.backbone_to_vit.weight"])
        absent = image["encoder.missing_previous_emb"].expand(1, -1, *x.shape[2:])
        x = torch.cat([x, absent], dim=1)
    own = {name.removeprefix("projector.model."): value for name, value in image.items()}
    x = functional.conv2d(x, own["0.weight"])
    norm = [own[f"1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    x = functional.batch_norm(x, *norm).relu()
    projected = functional.conv2d(x, own["3.weight"], own["3.bias"])
    regions, expected = predictor.embed_images(grey), projected.permute(0, 2, 3, 1)
    torch.testing.assert_close(regions.norm(dim=-1), expected.norm(dim=-1), **TOLERANCE)
    units = functional.normalize(regions, dim=-1)
    torch.testing.assert_close(units, functional.normalize(expected, dim=-1), **TOLERANCE)
    made = tiny_tokenizer()(list(REPORTS), padding=True, return_tensors="pt")
    y = tiny_bert().bert(**made).last_hidden_state[:, 0]
    own = {name.removeprefix("cls_projection_head."): value for name, value in head.items()}
    y = functional.linear(y, own["dense_to_hidden.weight"], own["dense_to_hidden.bias"])
    scale, shift = own["LayerNorm.weight"], own["LayerNorm.bias"]
    y = functional.layer_norm(functional.gelu(y), (DIM,), scale, shift, eps=1e-12)
    y = functional.linear(y, own["dense_to_output.weight"], own["dense_to_output.bias"])
    texts = predictor.embed_sentences(REPORTS)
    torch.testing.assert_close(texts, functional.normalize(y, dim=-1), **TOLERANCE)
    mean = functional.normalize(projected.mean(dim=(2, 3)), dim=-1)  # not of unit patches
    torch.testing.assert_close(predictor.model.score(regions, texts), texts @ mean.T, **TOLERANCE)
    assert card["score"] == {"scale": 1.0, "bias": 0.0}
    (located,) = predictor.phrase_grids(regions, REPORTS[:1])
    cosines = region_scores(units, texts[:1])[0, 0].numpy()
    assert located.grids[0].std() < cosines.std()  # smoothed, as its authors' are


@pytest.mark.parametrize("kind", ["resnet", "swin"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@torch.no_grad()
def test_cxr_clip_answers_as_its_own_modules_say(kind: str, head: str, tmp_path: Path) -> None:
    tree, swin = cxr_clip_tree(kind, head)
    predictor, card = adopted(write_cxr_clip(tmp_path / "r50", tree))
    grey = np.random.default_rng(1).integers(0, 256, (2, PX, PX)).astype(np.uint8)
    pixels = (torch.from_numpy(grey) / 255)[:, None].expand(-1, 3, -1, -1)
    state = tree["model"]

    def mapped(x: Tensor, side: str) -> Tensor:
        def linear(x: Tensor, name: str) -> Tensor:
            parts = (state[f"{side}_projection.{name}.{part}"] for part in ("weight", "bias"))
            return functional.linear(x, *parts)

        x = linear(x, "projection")
        if head == "mlp":
            norm = (state[f"{side}_projection.layer_norm.{part}"] for part in ("weight", "bias"))
            x = functional.layer_norm(linear(functional.gelu(x), "fc") + x, (DIM,), *norm)
        return functional.normalize(x, dim=-1)

    if kind == "resnet":  # `normalize` of its evaluator: imagenet; then the average pool
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
        prefix = "image_encoder.resnet."
        own = {key.removeprefix(prefix): value for key, value in state.items()}
        cells = torchvision_map(own, RESNET, (pixels - mean) / std)
        features = cells.mean(dim=(2, 3))
    else:
        features = swin(pixel_values=(pixels - 0.5) / 0.5).last_hidden_state[:, 0]
    found = predictor.embed_images(grey)[:, 0, 0]
    torch.testing.assert_close(found, mapped(features, "image"), **TOLERANCE)
    made = tiny_tokenizer()(list(REPORTS), padding=True, return_tensors="pt")
    states = tiny_bert().bert(**made).last_hidden_state
    last = states[torch.arange(len(REPORTS)), made["attention_mask"].sum(dim=1) - 1]
    texts = predictor.embed_sentences(REPORTS)
    torch.testing.assert_close(texts, mapped(last, "text"), **TOLERANCE)
    assert card["score"] == {"scale": pytest.approx(math.exp(2.6)), "bias": 0.0}
    assert predictor.config.model.text.max_tokens == 20
    images, fit = predictor.config.images, Fit("crop", "bilinear", PX + 3, half_even=True)
    assert (images.size_px, images.fit) == (PX, fit)
    if (kind, head) == ("resnet", "linear"):
        regions = mapped(cells.permute(0, 2, 3, 1), "image")
        torch.testing.assert_close(predictor.embed_regions(grey), regions, **TOLERANCE)
    else:
        with pytest.raises(QueryError, match="one vector of a whole image"):
            predictor.embed_regions(grey)


def test_biovil_s_heatmap_is_smoothed_by_a_gaussian_of_one_and_a_half_cells() -> None:
    regions = torch.zeros(1, 15, 15, 2)
    regions[..., 1] = 3.0
    regions[0, 7, 7] = torch.tensor([2.0, 0.0])
    grid = score_grids(regions, torch.tensor([[1.0, 0.0]]), SimilarityConfig(kind="biovil"))[0, 0]
    assert grid.sum() == pytest.approx(1.0, abs=1e-5)
    assert grid[7, 8] / grid[7, 7] == pytest.approx(np.exp(-1 / (2 * 1.5**2)), abs=1e-5)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (512, 512, (16, 16, 480, 480)),
        (101, 200, (52.52, 3.16, 94.77, 94.69)),  # 512 x 1013 resized: 266 and 16 cut off
    ],
)
def test_biovil_sees_a_central_square_of_the_shorter_side(height, width, expected) -> None:
    fit = Fit("crop", "bilinear", resized_px=512, scaled=True, half_even=True)
    assert window(height, width, 480, fit) == pytest.approx(expected, abs=0.1)


@pytest.mark.real_data
@pytest.mark.parametrize("family", ["clip", "siglip", "odd"])
def test_real_images_are_prepared_pixel_by_pixel_as_the_maker_s_processor_does(
    family: str, test_data: Path
) -> None:
    files = [
        file
        for folder in ("openi/images", "nih64/images", "covid_cxr/images", "peds_cxr/images")
        for file in sorted((test_data / folder).rglob("*"))[:4000]
        if file.suffix in {".png", ".jpg", ".jpeg"}
    ]
    files = files[:: max(1, len(files) // 24)]
    assert len(files) >= 20
    processor: Any = CLIPImageProcessorPil()
    fit, px = Fit("crop", "bicubic", resized_px=224), 224
    if family == "siglip":
        processor = SiglipImageProcessorPil(size={"height": 448, "width": 448}, resample=2)
        fit, px = Fit("stretch", "bilinear"), 448
    if family == "odd":
        processor = CLIPImageProcessorPil(
            size={"shortest_edge": 255}, crop_size={"height": 224, "width": 224}
        )
        fit = Fit("crop", "bicubic", resized_px=255)
    plain = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
    with Decoder(ImagesConfig(), 1) as decoder:
        for file in files:
            with Image.open(file) as picture:
                theirs = processor(picture.convert("L").convert("RGB"), **plain)["pixel_values"][0]
            ours = decoder.square(file, px, equalize=False, fit=fit).pixels
            assert np.array_equal(ours, theirs[0]), file.name
            assert np.array_equal(square(decoder.open(file), px, False, fit), ours)


def changed(folder: Path, target: Path, **tensors: Tensor | None) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    file = target / "model.safetensors"
    state = load_file(file)
    for key, value in tensors.items():
        state.pop(key) if value is None else state.update({key: value})
    save_file(state, file, metadata={"format": "pt"})
    return target


def test_what_is_unknown_or_missing_is_refused_by_its_name(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_pair(tmp_path / "clip", "clip", PROCESSORS["clip"])
    extra = {"vision_model.adapter.weight": torch.zeros(2)}
    with pytest.raises(CheckpointError, match=r"1 unknown .*vision_model\.adapter\.weight"):
        adopt(changed(tmp_path / "clip", tmp_path / "extra", **extra), out)
    short = {"text_projection.weight": None}
    with pytest.raises(CheckpointError, match=r"1 missing .*text_projection\.weight"):
        adopt(changed(tmp_path / "clip", tmp_path / "short", **short), out)
    state = openai_keys(pair("clip"))
    for name, change, message in (
        ("unknown", {"visual.adapter.weight": torch.zeros(2)}, r"visual\.adapter\.weight"),
        ("block", {"transformer.resblocks.0.ls_1.gamma": torch.zeros(2)}, r"resblocks\.0\.ls_1"),
        ("missing", {"ln_final.bias": None}, r"final_layer_norm\.bias"),
        ("nothing", {"visual.proj": None}, r"visual\.proj"),
    ):
        tree = {key: item for key, item in (state | change).items() if item is not None}
        write_open_clip(tmp_path / name, tree)
        with pytest.raises(CheckpointError, match=message):
            adopt(tmp_path / name, out)
    write_open_clip(tmp_path / "coca", state, text_cfg={"embed_cls": True, "heads": 2})
    with pytest.raises(CheckpointError, match="asks for embed_cls True"):
        adopt(tmp_path / "coca", out)
    image, _ = write_biovil(tmp_path / "biovil", temporal=False)
    file = tmp_path / "biovil/biovil_image_resnet50_proj_size_128.pt"
    torch.save({**image, "encoder.extra": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match=r"unknown keys \(encoder\.extra"):
        adopt(tmp_path / "biovil", out)
    torch.save({key: value for key, value in image.items() if "model.3" not in key}, file)
    with pytest.raises(CheckpointError, match=r"no weight '3\.weight' of an image projector"):
        adopt(tmp_path / "biovil", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("model", "image_encoder.resnet.layer9.x"), torch.zeros(2), r"layer9\.x"),
        (("model", "adapter.weight"), torch.zeros(2), r"1 unknown keys \(adapter\.weight"),
        (("model", "image_projection.extra"), torch.zeros(2), r"region_projection\.extra"),
        (
            ("model", "text_projection.projection.bias"),
            torch.zeros(3),
            r"projection\.bias has shape",
        ),
        (("model", "logit_scale"), None, r"no 'logit_scale'"),
        (("model", "text_projection.projection.weight"), None, r"no 'projection\.weight'"),
        (("model", "image_projection.projection.bias"), None, r"no 'region_projection\.bias'"),
        (("model", "image_encoder.resnet.layer2.0.conv2.weight"), None, r"1 missing .*stages\.1"),
        (("config", "model", "text_encoder", "pooling"), "max", "pools texts by max"),
        (("config", "transform", "test", "CLAHE"), {"clip_limit": 4.0}, "CLAHE"),
        (("config", "transform", "test", "CenterCrop"), {"size": 64}, "CenterCrop"),
        (("rng",), {1, 2}, "more than|holds code"),
    ],
)
def test_a_changed_file_of_cxr_clip_is_refused_by_what_changed(place, value, message, tmp_path):
    tree, _ = cxr_clip_tree("resnet", "linear")
    inner: Any = tree
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    if value is None:
        del inner[place[-1]]
    if place == ("rng",):
        tree["rng"] = np.random.default_rng(0).random(2)  # a pickle of numpy's own
    with pytest.raises(CheckpointError, match=message):
        adopt(write_cxr_clip(tmp_path / "r50", tree), tmp_path / "out")
    assert not (tmp_path / "out").exists()


class Code:
    """What a pickle may hold besides tensors."""

    def __reduce__(self) -> Any:
        return print, ("run",)


def test_a_pickle_with_more_than_tensors_is_refused(tmp_path: Path, capsys) -> None:
    state = openai_keys(pair("clip"))
    for name, more in (("code", {"x": Code()}), ("config", {"x": {"a": 1}})):
        folder = tmp_path / name
        folder.mkdir()
        torch.save(state | more, folder / "model.pt")
        words_tokenizer().save_pretrained(folder)
        with pytest.raises(CheckpointError, match=r"more than tensors|cannot be read as plain"):
            adopt(folder, tmp_path / "out")
    assert "run" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_resize": False}, "resizes to"),
        ({"size": {"height": 40, "width": 32}}, "resizes to"),
        ({"size": {"shortest_edge": 20}}, "resizes to"),
        ({"do_center_crop": False}, "resizes to"),
        ({"resample": 9}, "with filter 9"),
        ({"crop_size": {"height": 30, "width": 30}}, "crops to"),
    ],
)
def test_a_preprocessing_that_is_not_known_is_refused(changes, message, tmp_path: Path) -> None:
    write_pair(tmp_path / "clip", "clip", PROCESSORS["clip"], **changes)
    with pytest.raises(CheckpointError, match=message):
        adopt(tmp_path / "clip", tmp_path / "out")


def test_what_cannot_be_adopted_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a folder nor OWNER/NAME@COMMIT"):
        adopt(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists"):
        adopt(tmp_path, tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps({"model_type": "siglip2"}))
    with pytest.raises(CheckpointError, match="a SigLIP 2 of one resolution"):
        adopt(tmp_path / "other", tmp_path / "new")
