"""Grids of a sweep: axes, their points, and the runs that they plan."""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from medclip_dcl.errors import (
    ConfigError,
)
from medclip_dcl.settings import Section, check_settings, read_yaml

from .config import Config, check_config

CHANGED_SECTIONS = ("eta", "model", "objective", "train")  # sections that a grid may change
Judge = Literal["validation_report_auc", "validation_auc", "validation_recall_at_10"]


class Grid(Section):
    """A grid file."""

    axes: Annotated[dict[str, tuple[Any, ...] | dict[str, dict[str, Any]]], Field(min_length=1)]
    """Setting -> its values; or any name -> named values, each a map of settings."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every point."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (0, 1, 2)
    """Runs of each point."""
    figures: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "zero_shot.mean_auc",
        "zero_shot.mean_balanced_accuracy_offset",
        "grounding.cnr_signed",
        "boxes.own_recall",
    )
    """Results that are drawn and listed."""
    judge: Judge | None = None
    """Validation metric that is listed, and chooses each run's published step."""
    keep: Annotated[int, Field(ge=0)] = 0
    """Points that get all seeds, the best by `judge` after the first; 0: all."""

    @model_validator(mode="after")
    def _keeps_by_a_figure(self) -> Self:
        if self.keep and not self.judge:
            raise ValueError("keep needs a judge, such as validation_report_auc")
        return self


@dataclass(frozen=True)
class GridPoint:
    """One point of a grid."""

    name: str
    """Such as `a=0.2,k=0.35`, also that of its folder; empty without axes."""
    at: Mapping[str, Any] = field(default_factory=dict)
    """Axis -> value, or its name."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted setting -> value."""


def grid_points(axes: Mapping[str, Any]) -> list[GridPoint]:
    """Give every combination of the axes' values, the last axis changing fastest.

    ConfigError where two of them would share a folder.
    """
    short = {axis: axis.rpartition(".")[2] for axis in axes}
    if len(set(short.values())) < len(short):
        short = {axis: axis for axis in axes}
    points = []
    for chosen in itertools.product(*axes.values()):
        at = dict(zip(axes, chosen, strict=True))
        changes: dict[str, Any] = {}
        for axis, value in at.items():
            named = axes[axis]
            changes |= named[value] if isinstance(named, Mapping) else {axis: value}
        words = [f"{short[axis]}={_text(value)}" for axis, value in at.items()]
        points.append(GridPoint(re.sub(r"[^\w.,=+-]", "_", ",".join(words)), at, changes))
    names = [point.name for point in points]
    if len(set(names)) < len(names):
        raise ConfigError("two points of the grid share a folder's name; name the axis's values")
    return points


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class PlannedRuns:
    """Runs of one point: dotted setting -> value, and how many seeds."""

    changes: Mapping[str, Any]
    count: int


def grid_runs(grid: Grid) -> list[PlannedRuns]:
    """List the runs of a grid; of which points get all seeds is open, but not how many."""
    points = grid_points(grid.axes)
    kept = grid.keep or len(points)
    return [
        PlannedRuns({**grid.settings, **point.changes}, len(grid.seeds) if at < kept else 1)
        for at, point in enumerate(points)
    ]


def read_grid(path: Path) -> Grid:
    """Read a grid file; ConfigError where it breaks a rule."""
    return check_settings(Grid, read_yaml(path, "grid"), f"grid {path}")


def changed_config(config: Config, changes: Mapping[str, Any], name: str) -> Config:
    """Give a config with other values of dotted settings; ConfigError where one breaks its rule."""
    return check_config(changed_tree(config.model_dump(mode="json"), changes), name)


def changed_tree(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put dotted settings into a tree of plain values, in place, and give it."""
    for key, value in changes.items():
        *sections, last = key.split(".")
        part = tree
        for section in sections:
            part = part.setdefault(section, {})
        part[last] = value
    return tree
