"""YAML file + key=value overrides -> Config."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from medclip_dcl.config.schema import Config
from medclip_dcl.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe and apply overrides.

    Args:
        path: YAML file whose keys are those of `Config`.
        overrides: `section.key=value` strings. The value is parsed as JSON, and
            taken as a plain string where it is no JSON: `1e-5` is a number, `no`
            and `00123` are strings.

    Returns:
        The validated, frozen configuration.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value breaks
            its rule.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = type(error).__name__
        raise ConfigError(f"config {path} cannot be read ({reason}); give a YAML file") from error
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"config {path} holds a {type(tree).__name__}; it must hold keys")
    for override in overrides:
        _apply(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"config {path}: {'; '.join(_sentences(error))}") from error


def resolve_path(text: str, config: Config) -> Path:
    """Turn a path setting into a path.

    Args:
        text: the setting; `${WORK}` means `config.work`, any other `${NAME}` the
            environment variable NAME.
        config: the configuration that the setting belongs to.

    Returns:
        The path, relative to the current folder unless absolute.

    Raises:
        ConfigError: the variable is not set, or the setting is empty.
    """
    if not text:
        raise ConfigError("a path setting is empty; set it in the recipe or with --set")

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "WORK":
            return str(resolve_path(config.work, config)) if text != config.work else ""
        if name not in os.environ:
            raise ConfigError(f"path setting uses ${{{name}}}, which is not set; export {name}")
        return os.environ[name]

    return Path(_VARIABLE.sub(value, text)).expanduser()


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    names = key.split(".")
    if not equals or not all(names):
        raise ConfigError(f"override {override!r} must read section.key=value")
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = text
    node = tree
    for name in names[:-1]:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise ConfigError(f"override {key!r}: {name!r} is no section")
    node[names[-1]] = value


def _sentences(error: ValidationError) -> Iterable[str]:
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"])
        yield f"{where or 'file'} = {item['input']!r}: {item['msg']}"
