"""A public checkpoint -> a model package, without training: `adopt`.

The package answers as the maker's own classes do: their preprocessing, tokenizer, vector of an
image, scale and bias. It holds no code, no bank of images and no range of images like those that
the model was trained on, since nobody here knows them, nor whose they were.

Source: tests compare vectors and scores with transformers' and open_clip's classes, and hi-ml's
    layout written out, within 1e-5.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig

from medclip_dcl.core.artifact import Artifact, make_fingerprint
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.files import find_config, sha256_file
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.inference.model_package import ARTIFACT, PackagedConfig, write_model_package
from medclip_dcl.inference.prompts import read_prompts
from medclip_dcl.models import settings
from medclip_dcl.models.dual_encoder import build_dual_encoder
from medclip_dcl.models.image_encoder import preprocessing_facts
from medclip_dcl.models.public.encoders import Start, read_preprocessing, read_start
from medclip_dcl.models.public.weights import fetch_weights

FETCHED = ("*.json", "*.txt", "*.md", "model.safetensors", "open_clip_*", "*.pt")
"""Files of a checkpoint on a hub."""
PROMPTS = "configs/prompts/chex5.yaml"
_INTENDED_USE = "Research. Not a medical device: no output may guide the care of a patient."
_LIMITS = (
    "Made elsewhere and taken over as it is: nothing here says what its training images were, and "
    "whether an image is unlike them is not noticed.",
    "Scores compare prompts with an image; they are not probabilities of disease.",
)
_LICENCE_KEYS = ("license", "license_name", "license_link")


def adopt(model: Path | str, out: Path | str, prompts: Path | str = PROMPTS) -> Artifact:
    """Write a public checkpoint as a model package.

    Args:
        model: folder of the checkpoint, or OWNER/NAME@COMMIT of a hub: CLIP, SigLIP or MedSigLIP
            as transformers writes them, open_clip's layout, BioViL's release, CXR-CLIP's file, or
            one file of OpenAI's keys, as CheXzero has it.
        out: folder that receives the package; must not exist.
        prompts: file with the findings that the package is asked for.

    Raises:
        ConfigError: `out` exists, or the hub does not send the checkpoint.
        CheckpointError: a file is missing or damaged, holds more than tensors, an unknown key or
            none that is needed, or asks for what is not built here.
    """
    model, out = Path(model), Path(out)
    if out.exists():
        raise ConfigError(f"{out} exists; name a folder that does not, or remove it")
    folder = fetch_weights(model, FETCHED)
    if not folder.is_dir():
        raise ConfigError(
            f"{model} is neither a folder nor OWNER/NAME@COMMIT of a hub; name the folder that "
            "holds the checkpoint's weights, configuration and tokenizer"
        )
    start, config = _read(folder)
    assert start.pair is not None
    pair = start.pair
    encoder = build_dual_encoder(config.model, start.text_config, seed=0)
    start.fill(encoder)
    with torch.no_grad():
        encoder.gamma.fill_(math.sqrt(pair.scale))
    side = encoder.image.grid(config.model.image.input_px)
    findings = read_prompts(find_config(Path(prompts)))
    files = {item.name: sha256_file(item) for item in sorted(folder.iterdir()) if item.is_file()}
    card = {
        "intended_use": _INTENDED_USE,
        "limits": list(_LIMITS),
        "source": {
            "family": pair.family,
            "name": model.name if model == folder else model.as_posix(),
            "files": files,
            **_licence(folder),
        },
        "score": {"scale": pair.scale, "bias": pair.bias},
        "prompts": [asdict(finding) for finding in findings],
        "preprocessing": preprocessing_facts(config.images, config.model),
        "grid": {"rows": side, "columns": side},
    }
    fingerprint = make_fingerprint(ARTIFACT, {"prompts": card["prompts"]}, files)
    with write_artifact(out, ARTIFACT, fingerprint) as writer:
        weights = encoder.state_dict()
        write_model_package(writer.directory, weights, config, card, None, start.write_text_files)
        return writer.commit({"family": pair.family})


def _read(folder: Path) -> tuple[Start, PackagedConfig]:
    # Settings that hold all that the folder says of encoders and inputs.
    model_settings = settings.ModelConfig(
        image=settings.ImageEncoderConfig(kind="vit", pretrained=str(folder), regions="pooled"),
        text=settings.TextEncoderConfig(max_tokens=512),
        similarity=settings.SimilarityConfig(kind="global"),
    )
    start = read_start(model_settings, None, folder, whole=True)
    assert start.pair is not None
    image = start.settings.image
    if image.kind == "vit":
        sizes: dict[str, Any] = dict(image.backbone)
        px = AutoConfig.for_model(**sizes).image_size
        image = image.model_copy(update={"input_px": px, "pretrained": ""})
    how = read_preprocessing(folder, start.pair, image.input_px)
    if how.fit.how == "crop" and how.fit.resized_px not in (0, *range(how.size_px, 8193)):
        raise CheckpointError(
            f"a crop of {how.size_px} pixels does not fit into {how.fit.resized_px}; correct the "
            "preprocessor's file"
        )
    model = start.settings.model_copy(update={"image": image})
    images = ImagesConfig(size_px=how.size_px, fit=how.fit)
    return start, PackagedConfig(seed=0, images=images, model=model)


def _licence(folder: Path) -> Mapping[str, Any]:
    """Read the licence from the front matter of a checkpoint's README.md; empty: it has none."""
    try:
        text = (folder / "README.md").read_text(encoding="utf-8")
        head = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else {}
    except (OSError, ValueError, IndexError, yaml.YAMLError):
        return {}
    facts = head if isinstance(head, dict) else {}
    return {name: str(facts[name]) for name in _LICENCE_KEYS if facts.get(name)}
