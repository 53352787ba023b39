"""Which encoders of transformers are built: known types, from their own fields, within bounds.

A configuration comes from a config, from a folder of weights or from a model package, and the last
two may be anybody's. transformers would follow some of its fields elsewhere: to code next to the
weights (`auto_map`), to another repository (`backbone`), to a kernel (`attn_implementation`). None
of them describes an encoder of these types, so each is refused with every other unknown field.
"""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from medclip_dcl.errors import ConfigError

MAP_TYPES = (
    *("beit", "bit", "convnext", "convnextv2", "dinat", "dinov2", "dinov2_with_registers"),
    *("dinov3_convnext", "dinov3_vit", "focalnet", "hgnet_v2", "hiera", "maskformer-swin"),
    *("pixio", "pvt_v2", "resnet", "swin", "swinv2", "textnet", "vitdet"),
)
"""Image encoders whose last map is read."""

VIT_TYPES = (
    *("aimv2_vision_model", "beit", "clip_vision_model", "data2vec-vision", "deit", "dinov2"),
    *("dinov2_with_registers", "dinov3_vit", "ijepa", "pixio", "siglip_vision_model"),
    *("tipsv2_vision_model", "vit", "vit_mae", "vit_msn"),
)
"""Image encoders whose patches are the regions."""

TEXT_TYPES = (
    *("bert", "camembert", "clip_text_model", "deberta", "deberta-v2", "distilbert", "electra"),
    *("ernie", "eurobert", "modernbert", "mpnet", "nomic_bert", "roberta"),
    *("roberta-prelayernorm", "siglip_text_model", "xlm-roberta", "xlm-roberta-xl"),
)
"""Text encoders."""

MOST_LAYERS = 256
"""Of a stage, and stages of a network."""
LARGEST_SIZE = 2**20
"""Of any width, vocabulary or window."""

REFUSALS = (TypeError, ValueError, KeyError, AttributeError, RuntimeError, StrictDataclassError)
"""What transformers raises at a configuration that it refuses."""

_OF_EVERY_TYPE = {field.name for field in dataclasses.fields(PreTrainedConfig)}
_MAPS_READ = {"out_features", "out_indices"}
_one_at_a_time = threading.RLock()


def own_fields(kind: str) -> set[str]:
    """Name the fields of a configuration that describe an encoder of this type."""
    names = {field.name for field in dataclasses.fields(CONFIG_MAPPING[kind])}
    return {name for name in names - _OF_EVERY_TYPE if not name.startswith("_")} | _MAPS_READ


def build_config(
    tree: Mapping[str, Any], types: tuple[str, ...], name: str, **own: Any
) -> PreTrainedConfig:
    """Make a configuration of transformers from plain values.

    Args:
        tree: `model_type` and its fields.
        types: those that are known.
        name: what errors call it.
        **own: fields that go over those of the tree, unchecked.

    Raises:
        ConfigError: the type or a field is not known, a size is out of bounds, or transformers
            refuses it.
    """
    kind = tree.get("model_type")
    if kind not in types:
        raise ConfigError(
            f"{name}: model_type {kind} is not known here; give one of {', '.join(types)}"
        )
    fields = {key: value for key, value in tree.items() if key != "model_type"}
    if strange := sorted(fields.keys() - own_fields(kind)):
        raise ConfigError(
            f"{name}: {', '.join(strange)} of {kind} is not read here; leave it out, or compare "
            "it with the config.json of a released one"
        )
    check_sizes(fields, name)
    try:
        config: PreTrainedConfig = AutoConfig.for_model(kind, **{**fields, **own})
    except REFUSALS as error:
        raise ConfigError(
            f"{name}: transformers refuses this configuration of {kind}; "
            "compare it with the config.json of a released one"
        ) from error
    return config


def check_sizes(fields: Mapping[str, Any], name: str) -> None:
    """Refuse sizes that no encoder has, before memory is asked for; ConfigError."""
    for key, value in fields.items():
        most = MOST_LAYERS if "layers" in key or "depth" in key else LARGEST_SIZE
        for size in value if isinstance(value, list | tuple) else [value]:
            if isinstance(size, int) and size > most:
                raise ConfigError(f"{name}: {key} is {size}, above the {most} that is built here")
        if isinstance(value, list | tuple) and len(value) > MOST_LAYERS:
            raise ConfigError(f"{name}: {key} has {len(value)} entries, above {MOST_LAYERS}")


@contextmanager
def hub_closed() -> Iterator[None]:
    """Let nothing ask a model hub meanwhile: a belt, since no field that would is read."""
    with _one_at_a_time:  # the switch is the whole process's
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before
