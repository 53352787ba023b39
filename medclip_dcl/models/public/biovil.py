"""BioViL and BioViL-T: a folder with CXR-BERT, and next to it the image model of the release.

BioViL-T compares two images; of one alone its second half is a constant of the file, which the
projector's first map takes in as a bias. That map's batch norm is folded into it as well.

Source: Boecking et al. 2022, Bannur et al. 2023; layout and preprocessing as in microsoft/hi-ml,
    hi-ml-multimodal (`ImageModel`, `MultiImageEncoder`, `MLP`, `get_image_inference`).
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import BertConfig

from medclip_dcl.core.errors import CheckpointError
from medclip_dcl.data.limits import Fit
from medclip_dcl.models.public import checkpoint
from medclip_dcl.models.public.weights import read_tensors, to_transformers
from medclip_dcl.models.settings import ImageEncoderConfig
from medclip_dcl.models.text_encoder import read_bert_config

FAMILY = "biovil"
IMAGE_FILES = {
    "biovil_image_resnet50_proj_size_128.pt": 480,
    "biovil_t_image_model_proj_size_128.pt": 448,
}
"""Image model of each release, and the side of its central crop of an image resized to 512."""
_RESIZED_PX = 512
_TEMPORAL = ("encoder.backbone_to_vit.weight", "encoder.missing_previous_emb")
_POOLER = "encoder.vit_pooler."  # of a comparison with an earlier image
_TRUNK, _PROJECTOR, _HEAD = "encoder.encoder.", "projector.model.", "cls_projection_head."
_EPSILON = 1e-5  # of a batch norm
_TEXT_MAP = {"dense_to_hidden": "0", "LayerNorm": "2", "dense_to_output": "3"}


def read(folder: Path) -> checkpoint.Checkpoint | None:
    """Read both encoders; None: the folder has another layout.

    Raises:
        CheckpointError: a file is damaged, or holds other keys.
    """
    files = [folder / name for name in IMAGE_FILES if (folder / name).is_file()]
    if not files:
        return None
    if len(files) > 1:
        raise CheckpointError(f"{folder.name} has the image models of two releases; keep one")
    file = files[0]
    state = read_tensors(file)
    trunk, projector, _, other = checkpoint.split(state, (_TRUNK, _PROJECTOR, _POOLER))
    temporal = {key: other.pop(key) for key in _TEMPORAL if key in other}
    checkpoint.refuse_unknown(file.name, other)
    try:
        maps = _image_map(projector, temporal)
    except KeyError as error:
        raise CheckpointError(
            f"{file.name} has no weight {error} of an image projector; give Microsoft's file"
        ) from error
    text = {key.removeprefix("bert."): value for key, value in read_tensors(folder).items()}
    head = {key: text.pop(key) for key in sorted(text) if key.startswith(_HEAD)}
    if not head:
        raise CheckpointError(
            f"{folder.name} has CXR-BERT without its projection head; give CXR-BERT-specialized, "
            "or BioViL-T's"
        )
    for key, value in head.items():
        part, _, rest = key.removeprefix(_HEAD).partition(".")
        maps[f"projection.{_TEXT_MAP.get(part, part)}.{rest}"] = value
    config: BertConfig = read_bert_config(folder)
    image, sizes = checkpoint.resnet_of(to_transformers(trunk)[1])
    settings = ImageEncoderConfig(
        **sizes, normalisation=((0.0, 1.0),), input_px=IMAGE_FILES[file.name]
    )
    dim = len(maps["region_projection.2.weight"])
    fit = Fit("crop", "bilinear", _RESIZED_PX, scaled=True, half_even=True)  # as hi-ml's
    how = checkpoint.Preprocessing(settings.input_px, fit)
    parts = settings, config, image, text, maps, dim, FAMILY
    return checkpoint.Checkpoint(*parts, scale=1.0, preprocessing=how, similarity="biovil")


def _image_map(
    projector: Mapping[str, Tensor], temporal: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    # Convolutions of 1 x 1 are linear maps; the first has no bias, and a batch norm behind it.
    inner = projector["0.weight"].flatten(1).double()
    shift = torch.zeros(len(inner), dtype=torch.double)
    if temporal:
        bridge, absent = (temporal[key].double() for key in _TEMPORAL)
        half = len(bridge)
        shift = inner[:, half:] @ absent.flatten()
        inner = inner[:, :half] @ bridge.flatten(1)
    mean, variance = (projector[f"1.running_{name}"].double() for name in ("mean", "var"))
    gain = projector["1.weight"].double() / (variance + _EPSILON).sqrt()
    return {
        "region_projection.0.weight": (gain[:, None] * inner).float(),
        "region_projection.0.bias": (gain * (shift - mean) + projector["1.bias"].double()).float(),
        "region_projection.2.weight": projector["3.weight"].flatten(1),
        "region_projection.2.bias": projector["3.bias"],
    }
