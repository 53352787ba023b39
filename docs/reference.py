"""Reference of every setting and of every artifact, from their declarations in the code."""

import importlib
import importlib.abc
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.plugins import Registry
from medclip_dcl.core.settings import Section
from medclip_dcl.core.tables import Column, TableFormat
from pipelines.config import Config

PACKAGES = ("medclip_dcl", "pipelines")
"""Packages whose modules own artifacts."""


@dataclass(frozen=True)
class SettingReference:
    """A setting: its dotted name, its default as it is written in YAML, and what it means."""

    name: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    """Its values where they are listed; empty: any of its type."""


@dataclass(frozen=True)
class ArtifactReference:
    """An artifact: its type, what its module says about it, and its tables."""

    kind: ArtifactType
    meaning: str
    tables: tuple[TableFormat, ...]


def setting_references(
    schema: type[Section] = Config, prefix: str = ""
) -> Iterator[SettingReference]:
    """List the settings of a schema, section by section, in their order."""
    for name, field in schema.model_fields.items():
        kind = field.annotation
        if inspect.isclass(kind) and issubclass(kind, Section):
            yield from setting_references(kind, f"{prefix}{name}.")
            continue
        value = field.get_default(call_default_factory=True)
        default = "required" if field.is_required() else _written(value)
        meaning = " ".join((field.description or "").split())
        choices = (*_choices(kind), *_registered(field.metadata))
        yield SettingReference(f"{prefix}{name}", default, meaning, choices)


def artifact_references() -> list[ArtifactReference]:
    """List every artifact by its name; modules that own none are not imported."""
    references: list[ArtifactReference] = []
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for info in pkgutil.walk_packages(path, f"{package}."):
            source = _source(info)
            if "= ArtifactType(" in source:
                references += _references_of(importlib.import_module(info.name), source)
    return sorted(references, key=lambda reference: reference.kind.name)


def _references_of(module: types.ModuleType, source: str) -> Iterator[ArtifactReference]:
    for name, item in vars(module).items():
        if isinstance(item, ArtifactType) and f"\n{name} = " in source:  # and not imported there
            yield ArtifactReference(item, inspect.getdoc(module) or "", tuple(_tables(module)))


def _tables(module: types.ModuleType) -> Iterator[TableFormat]:
    for item in vars(module).values():
        if isinstance(item, TableFormat):
            yield item
    columns = getattr(module, "COLUMNS", None)
    if isinstance(columns, tuple) and all(isinstance(item, Column) for item in columns):
        yield TableFormat("shard-*.arrow", typing.cast("tuple[Column, ...]", columns))


def _source(info: pkgutil.ModuleInfo) -> str:
    spec = info.module_finder.find_spec(info.name, None)
    loader = spec and spec.loader
    if not isinstance(loader, importlib.abc.InspectLoader):
        return ""
    return loader.get_source(info.name) or ""


def _choices(kind: object) -> Iterator[str]:
    # The values of every Literal inside a type, however it is wrapped.
    if typing.get_origin(kind) is typing.Literal:
        yield from map(str, typing.get_args(kind))
        return
    for part in typing.get_args(kind):
        if not isinstance(part, str | int):
            yield from _choices(part)


def _registered(metadata: Sequence[object]) -> Iterator[str]:
    # The names that a registry of plugins has of its own.
    for rule in metadata:
        registry = getattr(getattr(rule, "func", None), "__self__", None)
        if isinstance(registry, Registry):
            yield from registry.own


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(str(item) for item in value) + "]"
    return str(value) if value != "" else '""'
