"""Prompt pairs: how each finding is asked for in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from medclip_dcl.errors import ConfigError, QueryError

_VERSION = 1
_KEYS = {"name", "label", "positive", "negative"}


@dataclass(frozen=True)
class Finding:
    """A finding and its prompts.

    Attributes:
        name: how it is called in answers.
        positive: sentences that assert it, at least one.
        negative: sentences that deny it, at least one.
        label: column of the label table that holds its truth; empty: none.
    """

    name: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    label: str = ""


def parse_prompts(tree: Any) -> tuple[Finding, ...]:
    """Turn a list of mappings into findings.

    Args:
        tree: a list; each entry has `name`, `positive` and `negative`, and may have
            `label`. A side is one sentence or a list of them.

    Returns:
        The findings, in the list's order.

    Raises:
        QueryError: an entry lacks a key, has an unknown one, an empty side, or a name
            that was used before. The message gives the entry's number, never its text.
    """
    if not isinstance(tree, list) or not tree:
        raise QueryError("findings must be a list with at least one entry")
    findings = tuple(_finding(entry, number) for number, entry in enumerate(tree))
    if len({finding.name for finding in findings}) < len(findings):
        raise QueryError("two findings bear the same name; give each its own")
    return findings


def read_prompts(path: Path) -> tuple[Finding, ...]:
    """Read a prompt file such as `configs/prompts/chex5.yaml`.

    Args:
        path: YAML file with `format_version: 1` and `findings`.

    Returns:
        The findings, in the file's order.

    Raises:
        ConfigError: the file cannot be read, is of another version, or an entry is malformed.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = type(error).__name__
        raise ConfigError(f"prompts {path} cannot be read ({reason}); give a YAML file") from error
    if not isinstance(tree, Mapping) or tree.get("format_version") != _VERSION:
        raise ConfigError(f"prompts {path} must say format_version: {_VERSION}")
    try:
        return parse_prompts(tree.get("findings"))
    except QueryError as error:
        raise ConfigError(f"prompts {path}: {error}") from error


def _finding(entry: Any, number: int) -> Finding:
    if not isinstance(entry, Mapping) or not set(entry) <= _KEYS:
        raise QueryError(f"finding {number} must be a mapping with keys among {sorted(_KEYS)}")
    name, label = entry.get("name"), entry.get("label", "")
    if not isinstance(name, str) or not name.strip() or not isinstance(label, str):
        raise QueryError(f"finding {number} needs a name, and a label that is text if any")
    positive = _side(entry.get("positive"), number)
    return Finding(name.strip(), positive, _side(entry.get("negative"), number), label)


def _side(value: Any, number: int) -> tuple[str, ...]:
    sentences = [value] if isinstance(value, str) else value
    if not isinstance(sentences, list | tuple) or not sentences:
        raise QueryError(f"finding {number} needs a positive and a negative prompt")
    if not all(isinstance(sentence, str) and sentence.strip() for sentence in sentences):
        raise QueryError(f"finding {number} has a prompt that is empty or no text")
    return tuple(" ".join(sentence.split()) for sentence in sentences)
