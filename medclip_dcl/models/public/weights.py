"""Weights that others made -> a module, with an account of every key.

Releases of CXR-BERT, BioViL and torchvision come as torch files, which are pickles. They
are opened here and nowhere else, by torch's tensors-only unpickler, and only where a
config names one to start from. Models that this project publishes hold none.

Layouts of ResNet checkpoints, which become transformers' own
    transformers   resnet.embedder..., resnet.encoder.stages.0.layers.1.layer.0...
    torchvision    conv1, bn1, layer1.1.conv1, layer1.0.downsample.0, fc
    BioViL         torchvision's below encoder.encoder., with its own projector
"""

import json
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from medclip_dcl.core.errors import CheckpointError, ConfigError

CONFIG = "config.json"
OPEN_CLIP = "open_clip_config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
# Heads of classifiers and language models, and what stands in for a masked patch.
HEADS = (
    *("classifier.", "cls.", "decoder.", "head.", "lm_head.", "pooler.", "predictions."),
    *("embeddings.mask_token", "embeddings.position_ids"),
)
FRESH = ("pooler.", "embeddings.mask_token")  # weights that no use is made of
# The first that a folder has is read.
_OPEN_CLIP_NAMES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_NAMES = ("model.safetensors", "pytorch_model.bin", *_OPEN_CLIP_NAMES)
_NESTED = ("state_dict", "model")


def weights_file(path: Path) -> Path:
    """Find the file with a checkpoint's weights, of a folder or itself; CheckpointError: none."""
    files = [path / name for name in _NAMES] if path.is_dir() else [path]
    present = [file for file in files if file.is_file()]
    if not present:
        raise CheckpointError(
            f"no weights at {path}: give a safetensors or torch file, or a directory with "
            f"{' or '.join(_NAMES[:2])}"
        )
    return present[0]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a checkpoint's weights, from a folder or a file, onto the CPU; floats as float32.

    The content tells safetensors from torch's, which may keep the weights under `state_dict` or
    `model`.

    Raises:
        CheckpointError: there is no such file, it cannot be read, or it holds more than
            tensors.
    """
    file = weights_file(path)
    return tensors_of(read_torch(file), file)


def read_torch(file: Path) -> Any:
    """Read a file of tensors and plain values, onto the CPU; CheckpointError: it holds more."""
    try:
        with file.open("rb") as opened:
            start = opened.read(64)
            if start.startswith(b"version https://git-lfs"):
                raise CheckpointError(f"{file} is a pointer of git-LFS; fetch it with git lfs pull")
            if start[8:9] == b"{":  # behind the length of its header, whatever the file is called
                return load_file(file)
            opened.seek(0)
            return torch.load(opened, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{file} cannot be read as plain tensors; it is not a whole safetensors or torch "
            f"file ({file.stat().st_size} bytes), or holds code; fetch it again"
        ) from error


def tensors_of(tree: Any, file: Path) -> dict[str, Tensor]:
    """Take the weights out of what a file holds, floats as float32; CheckpointError: it has more.

    They may be under `state_dict` or `model`.
    """
    state = _unnested(tree)
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise CheckpointError(f"{file} holds more than tensors; save its state_dict alone")
    return {
        _modern(name): tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in state.items()
    }


def _modern(key: str) -> str:
    # The first BERT releases have other names for the parameters of layer norms.
    key = key.replace("LayerNorm.gamma", "LayerNorm.weight")
    return key.replace("LayerNorm.beta", "LayerNorm.bias")


def _unnested(tree: Any) -> Mapping[str, Any]:
    for name in _NESTED:
        if isinstance(tree, Mapping) and isinstance(tree.get(name), Mapping):
            tree = tree[name]
    return tree if isinstance(tree, Mapping) else {"": tree}


@dataclass(frozen=True)
class LoadReport:
    """Which keys of a checkpoint were used."""

    matched: tuple[str, ...]
    """Keys that filled a weight of the module."""
    missing: tuple[str, ...]
    """Weights of the module that the checkpoint does not hold."""
    unexpected: tuple[str, ...]
    """Keys of the checkpoint that the module has no place for."""
    layout: str = ""
    """Whose key layout the checkpoint has."""

    @property
    def counts(self) -> dict[str, int]:
        """Counts of keys that matched, were missing and were unexpected."""
        return {name: len(getattr(self, name)) for name in ("matched", "missing", "unexpected")}


def fill(
    module: nn.Module,
    state: Mapping[str, Tensor],
    heads: tuple[str, ...],
    fresh: tuple[str, ...] = (),
    layout: str = "",
) -> LoadReport:
    """Copy weights, by the module's own keys, into a module; nothing is left over in silence.

    `heads` are prefixes of keys that the module has no place for, `fresh` those of weights that
    no checkpoint holds: what the report calls `unexpected` and `missing` is of these alone.

    Raises:
        CheckpointError: a weight is missing or has another shape, or a key belongs
            neither to the module nor to a head. The module is then unchanged.
    """
    own = module.state_dict()
    lacking = own.keys() - state.keys()
    report = LoadReport(
        matched=tuple(sorted(own.keys() & state.keys())),
        # Converted checkpoints drop the norms' counters, which nothing reads.
        missing=tuple(sorted(key for key in lacking if not key.endswith("num_batches_tracked"))),
        unexpected=tuple(sorted(state.keys() - own.keys())),
        layout=layout,
    )
    lost = [key for key in report.missing if not key.startswith(fresh)]
    strange = [key for key in report.unexpected if not key.startswith(heads)]
    if lost or strange or not report.matched:
        raise CheckpointError(
            f"checkpoint matches {len(report.matched)} of {len(own)} weights: "
            f"{len(lost)} missing {_sample(lost)}, "
            f"{len(strange)} unknown {_sample(strange)}; give weights of the same architecture"
        )
    for key in report.matched:
        if state[key].shape != own[key].shape:
            raise CheckpointError(
                f"weight {key} has shape {tuple(state[key].shape)}, the model asks for "
                f"{tuple(own[key].shape)}; set the model's sizes to those of the checkpoint"
            )
    module.load_state_dict({key: state[key] for key in report.matched}, strict=False)
    return report


def _sample(keys: tuple[str, ...] | list[str]) -> str:
    return f"({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})" if keys else "()"


RESNET_HEADS = (
    "classifier.",
    "fc.",
    "projector.",
    "encoder.backbone_to_vit.",
    "encoder.vit_pooler.",
    "encoder.missing_previous_emb",
)
"""Prefixes of what is left aside: ImageNet's classes in two layouts, BioViL's projection, and
BioViL-T's comparison with an earlier image."""

_BIOVIL = "encoder.encoder."
_BLOCK = re.compile(r"layer(\d+)\.(\d+)\.(conv|bn)(\d+)\.(\w+)")
_SHORTCUT = re.compile(r"layer(\d+)\.(\d+)\.downsample\.([01])\.(\w+)")
_STEM = re.compile(r"(conv|bn)1\.(\w+)")
_KINDS = {"conv": "convolution", "bn": "normalization", "0": "convolution", "1": "normalization"}


def to_transformers(state: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Tell a ResNet checkpoint's layout, and name its weights as transformers' backbone does.

    Keys of no layout stay as they are, so that they are counted as unexpected.
    """
    if any(key.startswith(_BIOVIL) for key in state):
        inner = {key.removeprefix(_BIOVIL): value for key, value in state.items()}
        return "biovil", {_from_torchvision(key): value for key, value in inner.items()}
    if "conv1.weight" in state:
        return "torchvision", {_from_torchvision(key): value for key, value in state.items()}
    return "transformers", {key.removeprefix("resnet."): value for key, value in state.items()}


def fold_to_grey(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Sum the channels of convolutions that see three of them where the module sees one.

    A grey image then gives them what three equal channels gave before.
    """
    own = module.state_dict()
    return {
        key: value.sum(dim=1, keepdim=True)
        if value.ndim == 4 and value.shape[1] == 3 and key in own and own[key].shape[1] == 1
        else value
        for key, value in state.items()
    }


def _from_torchvision(key: str) -> str:
    if match := _STEM.fullmatch(key):
        kind, rest = match.groups()
        return f"embedder.embedder.{_KINDS[kind]}.{rest}"
    if match := _BLOCK.fullmatch(key):
        stage, block, kind, index, rest = match.groups()
        inside = f"layer.{int(index) - 1}.{_KINDS[kind]}.{rest}"
    elif match := _SHORTCUT.fullmatch(key):
        stage, block, index, rest = match.groups()
        inside = f"shortcut.{_KINDS[index]}.{rest}"
    else:
        return key
    return f"encoder.stages.{int(stage) - 1}.layers.{block}.{inside}"


_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FETCHED = ("*.json", "*.txt", "model.safetensors", "open_clip_*")
PACKAGE = ("*.json", "*.md", "*.safetensors")  # files of a model package on a hub


def fetch_weights(path: Path, files: Sequence[str] = _FETCHED) -> Path:
    """Fetch OWNER/NAME@REVISION into the hub's cache, unless it is there; a path stays.

    `files` are patterns of what is fetched: by default an encoder's, `PACKAGE` of a model package.

    Raises:
        ConfigError: the revision is not a commit, or the weights cannot be had.
    """
    given = path.as_posix()
    match = _HUB_NAME.fullmatch(given)
    if match is None or path.exists():
        return path
    name, revision = match.groups()
    if not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{given} names a branch or tag, whose weights may change; give the commit, 40 "
            f"hexadecimal digits, that the hub shows for {name}"
        )
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # the hub's client raises those of its transport
        raise ConfigError(
            f"{given} cannot be fetched; see that the hub is reached and has it, accept its terms "
            "there and set HF_TOKEN where it is gated, or name a folder that holds it"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; CheckpointError where there is none."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file} is missing or not JSON; give a whole folder") from error


def read_config(folder: Path) -> PreTrainedConfig:
    """Read the configuration of a checkpoint that transformers knows; CheckpointError."""
    kind = read_json(folder / CONFIG).get("model_type")
    if kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"config.json of {folder} has model_type {kind}, which transformers does not know; its "
            "own code is not run here"
        )
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    config._attn_implementation = None  # it may name a kernel that a hub keeps
    return config


@contextmanager
def _quiet() -> Iterator[None]:
    # transformers draws a bar, and prints a table of keys that are accounted for here
    level, bars = (
        transformers_logging.get_verbosity(),
        transformers_logging.is_progress_bar_enabled(),
    )
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def load_model(folder: Path, config: PreTrainedConfig) -> tuple[Any, tuple[str, ...]]:
    """Load a checkpoint's safetensors into its own class; also the keys of heads left aside."""
    if not (folder / "model.safetensors").is_file():
        raise CheckpointError(
            f"{folder} has no model.safetensors; write one with save_pretrained, since other files "
            "may hold code"
        )
    try:
        with _quiet():
            model, loading = AutoModel.from_pretrained(
                folder,
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"weights of {folder} cannot be read as {config.model_type}; its config.json and its "
            "model.safetensors must be of one release"
        ) from error
    lost = sorted(key for key in loading["missing_keys"] if not key.startswith(FRESH))
    left = sorted(key for key in loading["unexpected_keys"] if not key.startswith(HEADS))
    if lost or left:
        raise CheckpointError(
            f"weights of {folder}: {len(lost)} missing {tuple(lost[:3])}, {len(left)} unknown "
            f"{tuple(left[:3])}; give weights of the architecture that config.json describes"
        )
    return model, tuple(sorted(loading["unexpected_keys"]))
