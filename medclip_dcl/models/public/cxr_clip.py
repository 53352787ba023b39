"""CXR-CLIP: one file of weights and of the config that they were trained by, next to a BERT's.

Its image encoder is torchvision's ResNet-50, whose mean is mapped into the common space, or a Swin
transformer, of which the first token is, that of the patch at the top left; its text encoder is
Bio_ClinicalBERT, whose vocab.txt must be in the folder.

Source: You et al. 2023; kakaobrain/cxr-clip at 955ab93: `model/clip.py`, `model/modules`,
    `data/data_utils.py`, `evaluator.py`, `configs/transform`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.data.limits import Fit
from medclip_dcl.models.public import checkpoint, weights
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.text_encoder import read_bert_config

FAMILY = "cxr_clip"
_PREFIXES = (
    *("image_encoder.resnet.", "image_encoder.image_encoder.", "text_encoder.text_encoder."),
    *("image_projection.", "text_projection."),
)
_POOLINGS = {"eos": "eos", "bos": "cls", "mean": "mean"}
_IMAGENET = ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))
_BLOCK = r"(encoder\.layers\.\d+\.blocks\.\d+\.)"
_TABLE = "attention.relative_position_bias.relative_position_bias_table"
_SWIN = (  # names of transformers 4
    (_BLOCK + r"attention\.self\.query\.", r"\1attention.q_proj."),
    (_BLOCK + r"attention\.self\.key\.", r"\1attention.k_proj."),
    (_BLOCK + r"attention\.self\.value\.", r"\1attention.v_proj."),
    (_BLOCK + r"attention\.self\.relative_position_bias_table$", r"\1" + _TABLE),
    (_BLOCK + r"attention\.output\.dense\.", r"\1attention.o_proj."),
    (_BLOCK + r"intermediate\.dense\.", r"\1mlp.fc1."),
    (_BLOCK + r"output\.dense\.", r"\1mlp.fc2."),
)


def read(folder: Path) -> checkpoint.Checkpoint | None:
    """Read both encoders; None: the folder has another layout.

    Raises:
        CheckpointError: the file holds more than tensors and plain values, lacks a weight, has an
            unknown one, or was trained by a config that is not built here.
    """
    files = sorted(folder.glob("*.tar"))
    if not files and not any(
        (folder / name).is_file() for name in (weights.OPEN_CLIP, weights.CONFIG)
    ):
        files = sorted([*folder.glob("*.pt"), *folder.glob("*.pth")])
    if len(files) != 1:
        return None
    tree = weights.read_torch(files[0])
    if not isinstance(tree, Mapping) or not {"model", "config"} <= tree.keys():
        return None
    name = files[0].name
    try:
        return _checkpoint(
            folder, name, weights.tensors_of(tree["model"], files[0]), tree["config"]
        )
    except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{name} has no {error}: it is not CXR-CLIP's with a ResNet or a Swin transformer, a "
            "BERT and a projection of each; give the file that its training wrote"
        ) from error


def _checkpoint(
    folder: Path, name: str, state: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> checkpoint.Checkpoint:
    resnet, swin, bert, *projections, rest = checkpoint.split(state, _PREFIXES)
    scale = float(rest.pop("logit_scale").exp())
    checkpoint.refuse_unknown(name, rest)
    how, pooling = _preprocessing(name, facts), facts["model"]["text_encoder"]["pooling"]
    if pooling not in _POOLINGS:
        raise CheckpointError(f"{name} pools texts by {pooling}; {', '.join(_POOLINGS)} are read")
    if resnet:
        image, settings = checkpoint.resnet_of(weights.to_transformers(resnet)[1])
        settings |= {"regions": "pooled", "normalisation": _IMAGENET}
    else:
        image = checkpoint.renamed(swin, _SWIN, ("$^", ""))
        image = {key: image[key] for key in image if not key.endswith("position_index")}
        settings = {"kind": "vit", "regions": "first", "normalisation": ((0.5, 0.5),)}
        settings["backbone"] = {**_swin_sizes(image), "image_size": how.size_px}
    is_plain = (folder / weights.CONFIG).is_file()
    text_config = read_bert_config(folder) if is_plain else checkpoint.bert_sizes(bert)
    similarity = "cxr_clip" if "fc.weight" in projections[1] else ""
    maps = {
        f"{side}.{key if similarity else key.removeprefix('projection.')}": value
        for side, own in zip(("region_projection", "projection"), projections, strict=True)
        for key, value in own.items()
    }
    for key in maps:
        if (bias := key.replace("weight", "bias")) not in maps:
            raise KeyError(bias)  # that would be taken for 0
    dim = len(projections[1]["projection.weight"])
    sides = ImageEncoderConfig(input_px=how.size_px, **settings), text_config, image, bert
    return checkpoint.Checkpoint(
        *sides,
        maps,
        dim,
        FAMILY,
        scale,
        text_settings={
            "pooling": _POOLINGS[pooling],
            "max_tokens": facts.get("base", {}).get("text_max_length", 256),
        },
        preprocessing=how,
        similarity=similarity,
    )


def _preprocessing(name: str, facts: Mapping[str, Any]) -> checkpoint.Preprocessing:
    px = facts.get("base", {}).get("image_size", 224)
    usual = {"Resize": {"size": px}, "CenterCrop": {"size": px}}
    steps = facts.get("transform", {}).get("test", usual)
    sizes = [steps.get(step, {}).get("size") for step in usual]
    if (
        steps != {step: {"size": size} for step, size in zip(usual, sizes, strict=True)}
        or not all(isinstance(size, int) for size in sizes)
        or sizes[0] < sizes[1]
    ):
        raise CheckpointError(
            f"{name} makes test images by {dict(steps)}; Resize and then CenterCrop, each of one "
            "size, are done here"
        )
    return checkpoint.Preprocessing(sizes[1], Fit("crop", "bilinear", sizes[0], half_even=True))


def _swin_sizes(state: Mapping[str, Tensor]) -> dict[str, Any]:
    patch = state["embeddings.patch_embeddings.projection.weight"]
    stages = [
        f"encoder.layers.{stage}.blocks."
        for stage in range(checkpoint.depth(state, "encoder.layers."))
    ]
    tables = [state[f"{stage}0.{_TABLE}"] for stage in stages]
    return {
        "model_type": "swin",
        "embed_dim": len(patch),
        "patch_size": patch.shape[2],
        "num_channels": patch.shape[1],
        "depths": [checkpoint.depth(state, stage) for stage in stages],
        "num_heads": [table.shape[1] for table in tables],
        "window_size": (math.isqrt(len(tables[0])) + 1) // 2,
        "mlp_ratio": len(state[f"{stages[0]}0.mlp.fc1.bias"]) / len(patch),
    }
