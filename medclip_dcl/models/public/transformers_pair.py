"""CLIP, SigLIP, SigLIP 2 of one resolution and MedSigLIP, as transformers writes them.

config.json with model_type clip or siglip, model.safetensors, preprocessor_config.json and a
tokenizer. Weights are read by `CLIPModel` and `SiglipModel`, which know the keys of older releases.
"""

from pathlib import Path

import torch

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.models.public.checkpoint import Checkpoint
from medclip_dcl.models.public.weights import CONFIG, load_model, read_config, read_json

FAMILY = "transformers"
_TYPES = ("clip", "siglip")


def read(folder: Path) -> Checkpoint:
    """Read a whole model.

    CheckpointError where it is of another kind or has no common space, and as `load_model`.
    """
    kind = read_json(folder / CONFIG).get("model_type")
    if kind not in _TYPES:
        remedy = ""
        if kind == "siglip2":
            remedy = (
                "; a siglip2 takes images of any shape, which this project does not make: give a "
                "SigLIP 2 of one resolution, whose model_type is siglip"
            )
        raise CheckpointError(
            f"{folder.name} has model_type {kind}, which is not a model of images and texts that "
            f"is read here ({', '.join(_TYPES)}, BioViL's, or open_clip's layout){remedy}; an "
            "encoder of one side goes into model.image.pretrained or model.text.pretrained"
        )
    model, left = load_model(folder, read_config(folder))
    vision, text = model.vision_model, model.text_model
    width = vision.config.hidden_size
    if model.config.model_type == "clip":
        maps = {
            "region_projection.weight": model.visual_projection.weight,
            "projection.weight": model.text_projection.weight,
        }
    elif getattr(vision.config, "vision_use_head", True) and len(text.head.bias) == width:
        maps = {
            "region_projection.weight": torch.eye(width),
            "projection.weight": text.head.weight,
            "projection.bias": text.head.bias,
        }
    else:
        raise CheckpointError(
            "this SigLIP has no head that brings images into the space of its texts; set "
            "image.pretrained and text.pretrained to train maps of their own"
        )
    bias = getattr(model, "logit_bias", None)
    return Checkpoint(
        vision.config,
        text.config,
        image=vision.state_dict(),
        text={key: item for key, item in text.state_dict().items() if not key.startswith("head.")},
        maps={key: value.detach() for key, value in maps.items()},
        dim=len(maps["region_projection.weight"]),
        family=FAMILY,
        scale=float(model.logit_scale.detach().exp()),
        bias=0.0 if bias is None else float(bias.detach()),
        left=left,
    )
