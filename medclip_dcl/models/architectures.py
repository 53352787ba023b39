"""Which encoders of transformers are built: known types, from their own fields, within bounds.

A configuration comes from a config, from a folder of weights or from a model package, and the last
two may be anybody's. transformers would follow some of its fields elsewhere: to code next to the
weights (`auto_map`), to another repository (`backbone`), to a kernel (`attn_implementation`). None
of them describes an encoder of these types, so each is refused with every other unknown field.

A tokenizer comes from the same folders. Its steps may lengthen a text without end, or search it by
a pattern that never ends, in a library that then ends the process: known steps pass, with bounds.
"""

import base64
import dataclasses
import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import constants
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from medclip_dcl.core.errors import CheckpointError, ConfigError

MAP_TYPES = (  # image encoders whose last map is read
    *("beit", "bit", "convnext", "convnextv2", "dinat", "dinov2", "dinov2_with_registers"),
    *("dinov3_convnext", "dinov3_vit", "focalnet", "hgnet_v2", "hiera", "maskformer-swin"),
    *("pixio", "pvt_v2", "resnet", "swin", "swinv2", "textnet", "vitdet"),
)

VIT_TYPES = (  # image encoders whose patches are the regions; of Swin the first alone
    *("aimv2_vision_model", "beit", "clip_vision_model", "data2vec-vision", "deit", "dinov2"),
    *("dinov2_with_registers", "dinov3_vit", "ijepa", "pixio", "siglip_vision_model", "swin"),
    *("tipsv2_vision_model", "vit", "vit_mae", "vit_msn"),
)

TEXT_TYPES = (  # text encoders
    *("bert", "camembert", "clip_text_model", "deberta", "deberta-v2", "distilbert", "electra"),
    *("ernie", "eurobert", "modernbert", "mpnet", "nomic_bert", "roberta"),
    *("roberta-prelayernorm", "siglip_text_model", "xlm-roberta", "xlm-roberta-xl"),
)

MOST_LAYERS = 256  # of a stage, and stages of a network
LARGEST_SIZE = 2**20  # of any width, vocabulary or window

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


_STEPS = {  # part of a tokenizer.json -> the types of its steps
    "normalizer": (
        *("BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt"),
        *("Precompiled", "Prepend", "Replace", "Sequence", "Strip", "StripAccents"),
    ),
    "pre_tokenizer": (
        *("BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace"),
        *("Punctuation", "Sequence", "Split", "UnicodeScripts", "Whitespace", "WhitespaceSplit"),
    ),
    "model": ("BPE", "Unigram", "WordLevel", "WordPiece"),
    "post_processor": (
        *("BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"),
    ),
    "decoder": (
        *("BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence"),
        *("Strip", "WordPiece"),
    ),
}
_MOST_STEPS = 16
_LONGEST_WORD = 1000  # characters that WordPiece cuts: it takes the square of them
_LONGEST_ADDED = 4  # characters of what is put in or before a text
_LONGEST_MAPPED = 64  # bytes that a table of characters turns one into; Unicode's own: 33
_LARGEST_FILE = 1 << 26
_PLAIN_CLASSES = re.compile(r"""((\[(\\.|[^\\\[\]&])+\]|\\[sdw]|[ ])(\+|\{2,\})?(\||$))+""")
"""A pattern that is searched for in one pass: characters of a class, or of one or another."""
_PATTERNS = {  # CLIP, in both spellings; Llama 3, which EuroBERT has
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def check_tokenizer(file: Path) -> None:
    """Refuse a tokenizer.json with a step that is not known or not bounded; CheckpointError."""
    try:
        if (size := file.stat().st_size) > _LARGEST_FILE:
            raise ConfigError(f"it has {size} bytes, above {_LARGEST_FILE}")
        tree = json.loads(file.read_text(encoding="utf-8"))
        for part, types in _STEPS.items():
            steps = list(_steps(tree.get(part) or {}))
            if len(steps) > _MOST_STEPS:
                raise ConfigError(f"its {part} has {len(steps)} steps, above {_MOST_STEPS}")
            for step in steps:
                if step.get("type", "BPE") not in types:  # older files name no type of the model
                    raise ConfigError(f"its {part} has a step of type {step.get('type')}")
                _check_step(step)
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file.name} cannot be read as a tokenizer's") from error
    except ConfigError as error:
        raise CheckpointError(
            f"{file.name} is not read here: {error}; use the file of a released encoder"
        ) from error


def _steps(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    # A sequence's steps, those of sequences in it too, and what is no sequence by itself.
    inner = [
        tree[key]
        for key in ("normalizers", "pretokenizers", "processors", "decoders")
        if key in tree
    ]
    if tree and not inner:
        yield tree
    for item in itertools.chain(*inner):
        yield from _steps(item)


def _check_step(step: Mapping[str, Any]) -> None:
    kind, pattern = step.get("type", "BPE"), step.get("pattern") or {}
    if (regex := pattern.get("Regex")) is not None and not (
        regex in _PATTERNS or _PLAIN_CLASSES.fullmatch(regex)
    ):
        raise ConfigError(f"a {kind} searches by a pattern that is not one of releases")
    if "" in (pattern.get("String"), regex):
        raise ConfigError(f"a {kind} searches for nothing")
    added = [step.get(key) or "" for key in ("content", "prepend", "replacement")]
    added.append(step.get("continuing_subword_prefix") or "")
    longest = max(map(len, added))
    if kind == "Replace" and longest > max(1, len(pattern.get("String") or "")):
        raise ConfigError(f"a Replace puts {longest} characters where fewer were")
    if longest > _LONGEST_ADDED:
        raise ConfigError(f"a {kind} puts in {longest} characters, above {_LONGEST_ADDED}")
    if (most := step.get("max_input_chars_per_word") or 0) > _LONGEST_WORD:
        raise ConfigError(f"words are cut up to {most} characters, above {_LONGEST_WORD}")
    if kind == "Precompiled":
        table = base64.b64decode(step["precompiled_charsmap"])
        texts = table[4 + int.from_bytes(table[:4], "little") :]
        if (most := max(map(len, texts.split(b"\0")))) > _LONGEST_MAPPED:
            raise ConfigError(f"a table maps a character to {most} bytes, above {_LONGEST_MAPPED}")
    if kind == "TemplateProcessing":
        pieces = [*step["single"], *step["pair"]]
        pieces += [number for token in step["special_tokens"].values() for number in token["ids"]]
        if len(pieces) > _MOST_STEPS:
            raise ConfigError(f"a template has {len(pieces)} pieces, above {_MOST_STEPS}")


@contextmanager
def hub_closed() -> Iterator[None]:
    """Let nothing ask a model hub meanwhile: a belt, since no field that would is read."""
    with _one_at_a_time:  # the switch is the whole process's
        before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = before
