"""Sections of settings, and how they are read from YAML files and variables."""

import datetime as dt
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.files import config_names, find_config

NO_EFFECT = "no effect on the result"
"""Marks a setting, as in `Annotated[int, NO_EFFECT]`, that changes speed, memory or what is shown,
and not the artifact: a finished artifact stays valid whatever its value."""

LOCAL = "names a place of this institution"
"""Marks a setting that names a file, a folder or a host: what is published does not hold it."""

WITHHELD = "withheld"  # stands for such a setting in what is published, where it was set

_PUBLIC_NAME = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")  # of a hub, where others find it too
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CREDENTIALS = re.compile(r"\s*[A-Za-z][\w+.-]*://[^/?#]*@")
_SHOWN = 60  # characters of a refused value
_NUMBER = re.compile(r"\b(?:int|float)\b")  # of an annotation, however it is nested
_MOST_DEPTH = 32
_MOST_DIGITS = 64
_MOST_VALUES = 100_000


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys and non-finite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    def result_settings(self, *also: str) -> dict[str, Any]:
        """Return the settings that decide what a stage makes, for a fingerprint.

        Those marked `NO_EFFECT` are left out, but for the names in `also`.
        """
        marked = {
            name for name, field in type(self).model_fields.items() if NO_EFFECT in field.metadata
        }
        return self.model_dump(mode="json", exclude=marked - set(also))

    def public_settings(self) -> dict[str, Any]:
        """Return plain values as they may leave the institution: those marked `LOCAL` are withheld.

        OWNER/NAME@COMMIT of a hub stays, since licences ask what a model was made from.
        """
        tree = self.model_dump(mode="json")
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Section):
                tree[name] = value.public_settings()
            elif LOCAL in field.metadata and value and not _PUBLIC_NAME.fullmatch(str(value)):
                tree[name] = WITHHELD
        return tree


_Settings = TypeVar("_Settings", bound=Section)


def read_yaml(path: Path, what: str) -> dict[str, Any]:
    """Read a YAML file of keys, found as `find_config` does; errors call it `what`.

    Raises:
        ConfigError: it cannot be read, or holds something else, aliases that grow, a number of more
            than 64 digits, or lists and keys more than 32 deep.
    """
    try:
        text = find_config(path).read_text(encoding="utf-8")
        tree = yaml.load(text, _Loader)  # noqa: S506 (a safe one)
    except FileNotFoundError as error:
        name = path.with_suffix("").as_posix().removeprefix("configs/")
        near = difflib.get_close_matches(name, config_names(), n=1)
        meant = f"did you mean {near[0]}?" if near else "give a file, or a name such as demo"
        raise ConfigError(f"{what} {path} does not exist; {meant}") from error
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not UTF-8 text; save it as UTF-8") from error
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        place = f", line {at.line + 1}, column {at.column + 1}" if at else ""
        # Without names of tags and anchors, which are words of the file.
        problem = re.sub(r"'[^'<]{3,}'", "a name", error.problem or "it is not YAML")
        raise ConfigError(f"{what} {path}{place}: {problem}; correct it") from error
    except RecursionError as error:
        raise ConfigError(
            f"{what} {path} has lists or keys more than {_MOST_DEPTH} deep; flatten them"
        ) from error
    except (ValueError, yaml.YAMLError) as error:  # such as a character that no YAML file may have
        raise ConfigError(
            f"{what} {path} is not a YAML file, or has a number of more than {_MOST_DIGITS} "
            "digits; correct it"
        ) from error
    if fault := _growth(tree):
        raise ConfigError(f"{what} {path} has {fault}")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{what} {path} holds no keys; write lines of `key: value`")
    return tree


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice: PyYAML takes the last value in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        given: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in given:
                problem = "this key stands above already; keep one of both"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            given.add(str(key.value))
        return super().construct_mapping(node, deep)


def _growth(tree: Any) -> str:
    """Name what a few bytes of YAML can make of unbounded size; aliases count each time."""
    waiting, values = [(tree, 0)], 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if depth > _MOST_DEPTH:
            return f"lists or keys more than {_MOST_DEPTH} deep; flatten them"
        if values > _MOST_VALUES:
            return f"aliases that stand for more than {_MOST_VALUES} values; write them out"
        if isinstance(node, int) and abs(node) >= 10**_MOST_DIGITS:
            return f"a number of more than {_MOST_DIGITS} digits; give one that a setting can hold"
        held = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        waiting += [(item, depth + 1) for item in held]
    return ""


def read_settings_of(
    schema: type[_Settings],
    file: Path | None,
    environment: Mapping[str, str],
    prefix: str,
    **overrides: Any,
) -> _Settings:
    """Gather and validate the settings of a process: YAML file, variables, then `overrides`.

    With the prefix `MEDCLIP_` the variable `MEDCLIP_QUEUE=8` sets `queue`. Values of variables are
    parsed as JSON, and taken as plain strings where they are not JSON; an override that is None is
    left out.

    Raises:
        ConfigError: the file cannot be read, a key or variable is unknown, or a value
            breaks its rule.
    """
    tree = read_yaml(file, "settings file") if file is not None else {}
    names = {prefix + name.upper(): name for name in schema.model_fields}
    given = {name for name in environment if name.upper().startswith(prefix)}
    unknown = sorted(given - set(names))
    if unknown:
        raise ConfigError(f"variables {unknown} are not settings; unset them or correct the names")
    tree |= {names[name]: parse_value(environment[name]) for name in given}
    tree |= {name: value for name, value in overrides.items() if value is not None}
    return check_settings(schema, tree, "settings", values=False)


def check_settings(
    schema: type[_Settings], tree: dict[str, Any], name: str, *, values: bool = True
) -> _Settings:
    """Make settings from a tree of plain values; errors call it `name`.

    `values`: whether errors show the refused values; those of a service may be secret.

    Raises:
        ConfigError: a key is unknown, a value breaks its rule, or an address holds a password.
    """
    _refuse_credentials(tree, name)
    _refuse_truth(tree, schema, name)
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{name}: {_explain(error, schema, values)}") from error


def parse_value(text: str) -> Any:
    """Parse a setting that was given as text: JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # not JSON, a number of thousands of digits, or too deep
        return text


def resolve_path(text: str, work: str) -> Path:
    """Turn a path setting into a path.

    `${WORK}` means the setting `work`, any other `${NAME}` the environment variable NAME;
    ConfigError where it is not set, or the setting is empty. A file below `configs` that is not
    there is the one of the package.
    """
    if not text:
        raise ConfigError("a path setting is empty; set it in the config or with --set")

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "WORK":
            return str(resolve_path(work, work)) if text != work else ""
        if name not in os.environ:
            raise ConfigError(f"path setting uses ${{{name}}}, which is not set; export {name}")
        return os.environ[name]

    path = Path(_VARIABLE.sub(value, text)).expanduser()
    return find_config(path) if path.parts[:1] == ("configs",) else path


def _explain(error: ValidationError, schema: type[Section], values: bool) -> str:
    """Say on one line which settings break which rule, and how an unknown one may be meant."""
    names = list(_dotted_names(schema))
    faults = []
    for item in error.errors(include_url=False, include_context=False):
        name = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            faults.append(f"{name} is not a setting; {_meant(name, names)}")
        elif item["type"] == "missing":
            faults.append(f"{name} is missing; set it")
        else:
            is_date = isinstance(item["input"], dt.date)  # YAML reads 2026-01-01 as one
            value = str(item["input"]) if is_date else repr(item["input"])
            shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}..."
            hint = "; put it in quotes" if is_date else _as_json(item["input"])
            rule = item["msg"].removeprefix("Value error, ")
            if item["type"] == "model_type":
                rule = "give lines of `key: value` below it, or remove it"
            faults.append(f"{name or 'file'}{f' = {shown}' if values else ''}: {rule}{hint}")
    return "; ".join(faults)


def _dotted_names(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted_names(field.annotation, f"{prefix}{name}.")


def _meant(name: str, names: Sequence[str]) -> str:
    section, _, leaf = name.rpartition(".")
    if name in names:
        return f"write `{section}:`, and below it, indented, `{leaf}: ...`"
    # The same name in another section is likelier than one that only looks alike.
    elsewhere = [item for item in names if item.rpartition(".")[2] == leaf]
    near = elsewhere or difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return f"did you mean {' or '.join(near[:3])}?" if near else "remove it, or correct the name"


def _refuse_credentials(tree: Any, name: str, key: str = "") -> None:
    """Refuse addresses with a user or password: settings are copied, compared and shown."""
    if isinstance(tree, str) and _CREDENTIALS.match(tree):
        raise ConfigError(
            f"{name}: {key} is an address with a user or password; give the address alone, and "
            "name the file of a key where there is a setting for it"
        )
    children: dict[Any, Any] = tree if isinstance(tree, dict) else {}
    if isinstance(tree, list):
        children = dict(enumerate(tree))
    for child, value in children.items():
        _refuse_credentials(value, name, f"{key}.{child}".lstrip("."))


def _refuse_truth(
    tree: dict[str, Any], schema: type[BaseModel], name: str, prefix: str = ""
) -> None:
    """Refuse true where a number is meant, which would count as 1: YAML reads `yes` and `on` so."""
    for key, field in schema.model_fields.items():
        value, kind = tree.get(key), field.annotation
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            _refuse_truth(value, kind, name, f"{prefix}{key}.")
        elif isinstance(value, bool) and _NUMBER.search(repr(kind)) and "bool" not in repr(kind):
            raise ConfigError(
                f"{name}: {prefix}{key} = {value}: give a number; YAML reads yes, no, on and off "
                "as true and false"
            )


def _as_json(given: Any) -> str:
    # What --set took as plain text because the words of a list or a map had no quotes.
    if not isinstance(given, str) or given[:1] not in {"[", "{"}:
        return ""
    return """; quote it as JSON, such as --set 'jobs=["train", "evaluate"]'"""
