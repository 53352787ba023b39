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
from tests.support import public_checkpoints as public
from tests.support.bert import SENTENCES as REPORTS
from tests.support.bert import tiny_bert, tiny_tokenizer
from tests.support.public_checkpoints import PROCESSORS, PX, SENTENCES, close, unit
from tests.support.resnet import torchvision_map

GREY = np.random.default_rng(0).integers(20, 200, (50, 41)).astype(np.uint8)
BIOVIL = Fit("crop", "bilinear", resized_px=512, scaled=True, half_even=True)
BATCH = np.random.default_rng(1).integers(0, 256, (2, PX, PX)).astype(np.uint8)


def adopted(folder: Path) -> Predictor:
    return load(adopt(folder, folder.with_name(f"{folder.name}-package")).path, "cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Predictor]]:
    """A CLIP and a SigLIP: the maker's model, and the predictor of its package."""
    made = {}
    for name, processor in PROCESSORS.items():
        folder = tmp_path_factory.mktemp("pairs") / name
        made[name] = public.write_pair(folder, name, processor), adopted(folder)
    return made


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.fromarray(GREY).save(tmp_path / "x.png")
    return tmp_path / "x.png"


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}


def altered(tree: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return a tree with another value at a place, whose keys have / between; None: without it."""
    key, _, inner = place.partition("/")
    changed = tree | {key: altered(tree[key], inner, value) if inner else value}
    return {name: item for name, item in changed.items() if item is not None}


def levels(predictor: Predictor) -> Any:
    return predictor.config.model.image.normalisation


def pixels_of(grey: np.ndarray, predictor: Predictor) -> Tensor:
    """Return greys as the maker's class takes them: three channels, each with its own levels."""
    mean, std = torch.tensor(levels(predictor)).T[:, :, None, None]
    return ((torch.from_numpy(grey)[:, None] / 255 - mean) / std).expand(-1, 3, -1, -1)


def answers_as(
    model: Any, predictor: Predictor, grey: np.ndarray, pixels: Tensor, texts: Any = SENTENCES
) -> Any:
    """Compare both sides of a pair, and return the answer of its maker's class."""
    made = public.words_tokenizer()(SENTENCES, padding="max_length", return_tensors="pt")
    theirs = model(input_ids=made["input_ids"], pixel_values=pixels)
    close(predictor.embed_images(grey)[:, 0, 0], unit(theirs.image_embeds))
    close(predictor.embed_sentences(texts), unit(theirs.text_embeds))
    return theirs


@pytest.mark.parametrize("name", ["clip", "siglip"])
@torch.no_grad()
def test_a_pair_of_transformers_answers_as_its_own_class(name, pairs, picture) -> None:
    model, predictor = pairs[name]
    with Image.open(picture) as file:
        pixels = PROCESSORS[name](file.convert("RGB"), return_tensors="pt")["pixel_values"]
    prepared = predictor.square(medclip_dcl.open_image(picture))[None]
    theirs = answers_as(model, predictor, prepared, pixels)
    regions, texts = predictor.embed_images(prepared), predictor.embed_sentences(SENTENCES)
    logits = predictor.model.gamma**2 * predictor.model.score(regions, texts)
    close((logits + predictor.card["score"]["bias"]).T, theirs.logits_per_image)
    assert predictor.card["score"]["scale"] == pytest.approx(math.exp(4.7))  # above training's 100
    assert predictor.card["source"]["license"] == "mit"
    assert "model.safetensors" in predictor.card["source"]["files"]
    assert read_model_package(predictor.folder).subject_hashes is None
    files = {item for item in predictor.folder.rglob("*") if item.is_file()}
    assert {item.suffix for item in files} == {".json", ".safetensors"}


@torch.no_grad()
def test_clip_locates_by_its_projected_patches_and_siglip_refuses(pairs) -> None:
    model, predictor = pairs["clip"]
    image = GreyImage(GREY.astype(np.uint16) * 257, 8, "png")
    prepared = predictor.square(image)[None]
    states = model.vision_model(pixels_of(prepared, predictor))
    patches = model.vision_model.post_layernorm(states.last_hidden_state[:, 1:])
    side = PX // public.PATCH
    found = predictor.embed_regions(prepared)
    close(found, unit(model.visual_projection(patches)).unflatten(1, (side, side)))
    grids = region_scores(found, predictor.embed_sentences(SENTENCES))[:, 0]
    answered = predictor.ground(image, SENTENCES).phrases
    for grid, located in zip(grids, answered, strict=True):
        assert np.array(located.grid) == pytest.approx(grid.numpy(), abs=1e-3)
        # 41 x 50 pixels, the shorter side resized to 36, the middle 32 cut out
        assert located.affine[0] == pytest.approx(PX / side * 41 / 36)
        assert located.affine[2] == pytest.approx((2 + PX / side / 2) * 41 / 36)
    with pytest.raises(QueryError, match="none of its parts, such as SigLIP"):
        pairs["siglip"][1].ground(image, SENTENCES)


@pytest.mark.parametrize(
    ("act", "prefix", "asks"),
    [("gelu", "", {}), ("gelu", "text.", {}), ("quick_gelu", "", {"quick_gelu": True})],
    ids=["open_clip", "custom", "quick"],
)
@torch.no_grad()
def test_openai_s_keys_give_the_same_clip(act, prefix, asks, tmp_path: Path) -> None:
    model = public.pair("clip", act)
    sizes = {"vision_cfg": {"head_width": 32}, "text_cfg": {"heads": 2}}
    public.write_open_clip(tmp_path / "clip", public.openai_keys(model, prefix), **sizes, **asks)
    predictor = adopted(tmp_path / "clip")
    answers_as(model, predictor, BATCH, pixels_of(BATCH, predictor))
    assert predictor.card["score"]["scale"] == pytest.approx(math.exp(4.7))


@torch.no_grad()
def test_chexzero_is_a_clip_whose_input_is_bicubic_of_a_padded_square_of_320(picture) -> None:
    # A state dict alone: one head to 64 units, where nothing names them.
    model, folder = public.pair("clip", "quick_gelu", heads=1), picture.parent / "chexzero"
    folder.mkdir()
    torch.save(public.openai_keys(model), folder / "best_64_5e-05_original_22000_0.864.pt")
    public.words_tokenizer().save_pretrained(folder)
    predictor = adopted(folder)
    answers_as(model, predictor, BATCH, pixels_of(BATCH, predictor))
    assert predictor.card["score"]["scale"] == pytest.approx(math.exp(4.7))
    assert levels(predictor)[0] == pytest.approx((101.48761 / 255, 83.43944 / 255))
    images = predictor.config.images
    assert (images.size_px, images.fit) == (320, Fit("pad", "lanczos"))
    # `preprocess` of its data_process.py, then `make` of its zero_shot.py: 262 columns of 320
    padded = Image.new("L", (320, 320))
    padded.paste(Image.fromarray(GREY).resize((262, 320), Image.Resampling.LANCZOS), (29, 0))
    values = (torch.from_numpy(np.array(padded)).float()[None, None] - 101.48761) / 83.43944
    found = predictor.square(medclip_dcl.open_image(picture))
    assert np.array_equal(found, np.array(padded))
    encoder, inputs = predictor.model.image, predictor.inputs(found[None])
    expected = functional.interpolate(values, (PX, PX), mode="bicubic")
    close(inputs * encoder._scale[:1] + encoder._shift[:1], expected)
    assert predictor.window(50, 41) == pytest.approx((-29 / 6.4, 0, 50, 50), abs=0.1)


@torch.no_grad()
def test_timm_s_keys_give_the_same_siglip(tmp_path: Path) -> None:
    model, folder = public.pair("siglip", "gelu", heads=1), tmp_path / "siglip"
    asks = altered(public.SIGLIP_ASKS, "text_cfg/heads", 1)
    public.write_open_clip(folder, public.siglip_keys(model), **asks)
    predictor = adopted(folder)
    # `canonicalize_text`: small letters, neither punctuation nor runs of blanks
    written = ["No  effusion!", "(HEART) la-rge.", "left_effusion; no right effusion & "]
    answers_as(model, predictor, BATCH, pixels_of(BATCH, predictor), written)
    assert predictor.card["score"]["scale"] == pytest.approx(math.exp(4.7))
    assert predictor.card["score"]["bias"] == pytest.approx(float(model.logit_bias))


def test_of_two_forms_of_one_model_in_a_folder_transformers_is_read(tmp_path: Path) -> None:
    public.write_open_clip(tmp_path / "both", public.openai_keys(public.pair("clip")))
    public.write_pair(tmp_path / "both", "clip", PROCESSORS["clip"])
    assert adopted(tmp_path / "both").card["source"]["family"] == "transformers"


@pytest.mark.parametrize("temporal", [False, True], ids=["biovil", "biovil_t"])
@torch.no_grad()
def test_biovil_answers_as_hi_ml_s_modules_say(temporal: bool, tmp_path: Path) -> None:
    image, head = public.write_biovil(tmp_path / "release", temporal=temporal)
    predictor = adopted(tmp_path / "release")
    px = 448 if temporal else 480
    assert (predictor.config.images.size_px, predictor.config.images.fit) == (px, BIOVIL)
    grey = np.random.default_rng(0).integers(0, 256, (1, px, px), dtype=np.uint8)
    pixels = (torch.from_numpy(grey) / 255)[:, None].expand(-1, 3, -1, -1)
    x = torchvision_map(under(image, "encoder.encoder."), public.RESNET, pixels)
    if temporal:
        x = functional.conv2d(x, image["encoder.backbone_to_vit.weight"])
        absent = image["encoder.missing_previous_emb"].expand(1, -1, *x.shape[2:])
        x = torch.cat([x, absent], dim=1)
    own = under(image, "projector.model.")
    x = functional.conv2d(x, own["0.weight"])
    norm = [own[f"1.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    x = functional.batch_norm(x, *norm).relu()
    projected = functional.conv2d(x, own["3.weight"], own["3.bias"])
    regions, expected = predictor.embed_images(grey), projected.permute(0, 2, 3, 1)
    close(regions.norm(dim=-1), expected.norm(dim=-1))
    close(unit(regions), unit(expected))
    made = tiny_tokenizer()(list(REPORTS), padding=True, return_tensors="pt")
    y = tiny_bert().bert(**made).last_hidden_state[:, 0]
    own = under(head, "cls_projection_head.")
    y = functional.linear(y, own["dense_to_hidden.weight"], own["dense_to_hidden.bias"])
    scale, shift = own["LayerNorm.weight"], own["LayerNorm.bias"]
    y = functional.layer_norm(functional.gelu(y), (public.DIM,), scale, shift, eps=1e-12)
    y = functional.linear(y, own["dense_to_output.weight"], own["dense_to_output.bias"])
    texts = predictor.embed_sentences(REPORTS)
    close(texts, unit(y))
    mean = unit(projected.mean(dim=(2, 3)))  # not of unit patches
    close(predictor.model.score(regions, texts), texts @ mean.T)
    assert predictor.card["score"] == {"scale": 1.0, "bias": 0.0}
    (located,) = predictor.phrase_grids(regions, REPORTS[:1])
    cosines = region_scores(unit(regions), texts[:1])[0, 0].numpy()
    assert located.grids[0].std() < cosines.std()  # smoothed, as its authors' are


@pytest.mark.parametrize("kind", ["resnet", "swin"])
@pytest.mark.parametrize("head", ["linear", "mlp"])
@torch.no_grad()
def test_cxr_clip_answers_as_its_own_modules_say(kind: str, head: str, tmp_path: Path) -> None:
    tree, swin = public.cxr_clip_tree(kind, head)
    predictor = adopted(public.write_cxr_clip(tmp_path / "r50", tree))
    pixels = (torch.from_numpy(BATCH) / 255)[:, None].expand(-1, 3, -1, -1)

    def mapped(x: Tensor, side: str) -> Tensor:
        own = under(tree["model"], f"{side}_projection.")
        x = functional.linear(x, own["projection.weight"], own["projection.bias"])
        if head == "mlp":
            y = functional.linear(functional.gelu(x), own["fc.weight"], own["fc.bias"])
            scale, shift = own["layer_norm.weight"], own["layer_norm.bias"]
            x = functional.layer_norm(y + x, (public.DIM,), scale, shift)
        return unit(x)

    if kind == "resnet":  # `normalize` of its evaluator: imagenet; then the average pool
        mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[:, :, None, None]
        own = under(tree["model"], "image_encoder.resnet.")
        cells = torchvision_map(own, public.RESNET, (pixels - mean) / std)
        features = cells.mean(dim=(2, 3))
    else:
        features = swin(pixel_values=(pixels - 0.5) / 0.5).last_hidden_state[:, 0]
    close(predictor.embed_images(BATCH)[:, 0, 0], mapped(features, "image"))
    made = tiny_tokenizer()(list(REPORTS), padding=True, return_tensors="pt")
    states = tiny_bert().bert(**made).last_hidden_state
    last = states[torch.arange(len(REPORTS)), made["attention_mask"].sum(dim=1) - 1]
    close(predictor.embed_sentences(REPORTS), mapped(last, "text"))
    assert predictor.card["score"] == {"scale": pytest.approx(math.exp(2.6)), "bias": 0.0}
    assert predictor.config.model.text.max_tokens == 20
    images, fit = predictor.config.images, Fit("crop", "bilinear", PX + 3, half_even=True)
    assert (images.size_px, images.fit) == (PX, fit)
    if (kind, head) == ("resnet", "linear"):
        close(predictor.embed_regions(BATCH), mapped(cells.permute(0, 2, 3, 1), "image"))
    else:
        with pytest.raises(QueryError, match="one vector of a whole image"):
            predictor.embed_regions(BATCH)


def test_biovil_s_heatmap_is_smoothed_by_a_gaussian_of_one_and_a_half_cells() -> None:
    regions = torch.zeros(1, 15, 15, 2)
    regions[..., 1] = 3.0
    regions[0, 7, 7] = torch.tensor([2.0, 0.0])
    grid = score_grids(regions, torch.tensor([[1.0, 0.0]]), SimilarityConfig(kind="biovil"))[0, 0]
    assert grid.sum() == pytest.approx(1.0, abs=1e-5)
    assert grid[7, 8] / grid[7, 7] == pytest.approx(np.exp(-1 / (2 * 1.5**2)), abs=1e-5)


def test_biovil_sees_a_central_square_of_the_shorter_side() -> None:
    assert window(512, 512, 480, BIOVIL) == pytest.approx((16, 16, 480, 480))
    # 512 x 1013 resized: 266 and 16 cut off
    assert window(101, 200, 480, BIOVIL) == pytest.approx((52.52, 3.16, 94.77, 94.69), abs=0.1)


SQUARE = SiglipImageProcessorPil(size={"height": 448, "width": 448}, resample=2)
ODD = CLIPImageProcessorPil(size={"shortest_edge": 255}, crop_size={"height": 224, "width": 224})


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("processor", "fit", "px"),
    [
        (CLIPImageProcessorPil(), Fit("crop", "bicubic", resized_px=224), 224),
        (SQUARE, Fit("stretch", "bilinear"), 448),
        (ODD, Fit("crop", "bicubic", resized_px=255), 224),
    ],
    ids=["clip", "siglip", "odd"],
)
def test_real_images_are_prepared_as_by_the_maker_s_processor(processor, fit, px, test_data):
    files = [
        file
        for folder in ("openi/images", "nih64/images", "covid_cxr/images", "peds_cxr/images")
        for file in sorted((test_data / folder).rglob("*.[jp]*g"))[:4000]
    ]
    files = files[:: max(1, len(files) // 24)]
    assert len(files) >= 20
    plain = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
    with Decoder(ImagesConfig(), 1) as decoder:
        for file in files:
            with Image.open(file) as picture:
                theirs = processor(picture.convert("L").convert("RGB"), **plain)["pixel_values"][0]
            ours = decoder.square(file, px, equalize=False, fit=fit).pixels
            assert np.array_equal(ours, theirs[0]), file.name
            assert np.array_equal(square(decoder.open(file), px, False, fit), ours)


def write_altered(form: str, folder: Path, place: str, value: Any) -> None:
    """Write a checkpoint that has another value at a place of its weights, file or settings."""
    if form == "weights":
        public.write_pair(folder, "clip", PROCESSORS["clip"])
        file = folder / "model.safetensors"
        save_file(altered(load_file(file), place, value), file, metadata={"format": "pt"})
    elif form == "processor":
        public.write_pair(folder, "clip", PROCESSORS["clip"], **{place: value})
    elif form == "openai":
        state = public.openai_keys(public.pair("clip"))
        public.write_open_clip(folder, altered(state, place, value))
    elif form == "coca":
        public.write_open_clip(folder, {}, **altered({"text_cfg": {"heads": 2}}, place, value))
    elif form == "siglip":
        state = public.siglip_keys(public.pair("siglip", "gelu"))
        public.write_open_clip(folder, altered(state, place, value), **public.SIGLIP_ASKS)
    elif form == "asked":
        public.write_open_clip(folder, {}, **altered(public.SIGLIP_ASKS, place, value))
    elif form == "biovil":
        state, _ = public.write_biovil(folder, temporal=False)
        name = "biovil_image_resnet50_proj_size_128.pt"
        torch.save(altered(state, place, value), folder / name)
    else:
        tree, _ = public.cxr_clip_tree("resnet", "linear")
        public.write_cxr_clip(folder, altered(tree, place, value))


EXTRA, CLS = torch.zeros(2), torch.zeros(1, 1, 64)
PICKLED = np.ones(2)  # by numpy's own pickle


@pytest.mark.parametrize(
    ("form", "place", "value", "message"),
    [
        ("weights", "vision_model.adapter.weight", EXTRA, r"1 unknown .*vision_model\.adapter"),
        ("weights", "text_projection.weight", None, r"1 missing .*text_projection\.weight"),
        ("processor", "do_resize", False, "resizes to"),
        ("processor", "size", {"height": 40, "width": 32}, "resizes to"),
        ("processor", "size", {"shortest_edge": 20}, "resizes to"),
        ("processor", "do_center_crop", False, "resizes to"),
        ("processor", "resample", 9, "with filter 9"),
        ("processor", "crop_size", {"height": 30, "width": 30}, "crops to"),
        ("openai", "visual.adapter.weight", EXTRA, r"visual\.adapter\.weight"),
        ("openai", "transformer.resblocks.0.ls_1.gamma", EXTRA, r"resblocks\.0\.ls_1"),
        ("openai", "ln_final.bias", None, r"final_layer_norm\.bias"),
        ("openai", "visual.proj", None, r"visual\.proj"),
        ("coca", "text_cfg/embed_cls", True, "asks for embed_cls True"),
        ("siglip", "visual.trunk.cls_token", CLS, "cls_token"),
        ("asked", "vision_cfg/timm_pool", "avg", "asks for .*timm_pool"),
        ("asked", "text_cfg/no_causal_mask", False, "asks for .*no_causal_mask"),
        ("asked", "text_cfg/tokenizer_kwargs/clean", "lower", "asks for .*tokenizer_kwargs"),
        ("biovil", "encoder.extra", EXTRA, r"unknown keys \(encoder\.extra"),
        ("biovil", "projector.model.3.weight", None, "no weight '3.weight' of an image projector"),
        ("cxr", "model/image_encoder.resnet.layer9.x", EXTRA, r"layer9\.x"),
        ("cxr", "model/adapter.weight", EXTRA, r"1 unknown keys \(adapter\.weight"),
        ("cxr", "model/image_projection.extra", EXTRA, r"region_projection\.extra"),
        ("cxr", "model/text_projection.projection.bias", EXTRA, r"projection\.bias has shape"),
        ("cxr", "model/logit_scale", None, r"no 'logit_scale'"),
        ("cxr", "model/text_projection.projection.weight", None, r"no 'projection\.weight'"),
        ("cxr", "model/image_projection.projection.bias", None, r"no 'region_projection\.bias'"),
        ("cxr", "model/image_encoder.resnet.layer2.0.conv2.weight", None, r"1 missing .*stages\.1"),
        ("cxr", "config/model/text_encoder/pooling", "max", "pools texts by max"),
        ("cxr", "config/transform/test/CLAHE", {"clip_limit": 4.0}, "CLAHE"),
        ("cxr", "config/transform/test/CenterCrop", {"size": 64}, "CenterCrop"),
        ("cxr", "rng", PICKLED, "more than|holds code"),
    ],
)
def test_what_is_unknown_or_missing_is_refused_by_its_name(form, place, value, message, tmp_path):
    write_altered(form, tmp_path / "altered", place, value)
    with pytest.raises(CheckpointError, match=message):
        adopt(tmp_path / "altered", tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
