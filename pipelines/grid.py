"""Grids of a sweep: their points, and what each changes in a config."""

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.settings import Section, check_settings, read_yaml
from medclip_dcl.training.settings import BestMetric

CHANGED_SECTIONS = ("eta", "model", "objective", "train")  # sections that a grid may change
_FIGURES = {
    "AUC": "zero_shot.mean_auc",
    "ACC offset": "zero_shot.mean_balanced_accuracy_offset",
    "signed CNR": "grounding.cnr_signed",
    "Recall": "boxes.own_recall",
}

Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]


class Row(Section):
    """A named point of a grid."""

    title: str = ""
    """What the table calls it; empty: its name."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Dotted setting -> value. With `evaluate.adapter` a model as it is, which is not trained."""
    tune: dict[str, Values] = Field(default_factory=dict)
    """Setting -> values, of whose combinations the best on validation is reported."""
    seeds: Seeds | None = None
    """Its own seeds; null: those of the grid."""
    published: dict[str, float] = Field(default_factory=dict)
    """Title of a figure -> what a paper reports of it on its own data, printed in brackets."""


class Grid(Section):
    """A grid file."""

    axes: dict[str, Values | dict[str, dict[str, Any]]] = Field(default_factory=dict)
    """Setting -> its values; or any name -> named values, each a map of settings."""
    rows: dict[str, Row] = Field(default_factory=dict)
    """Points by name, in place of axes."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of every point."""
    tune: dict[str, Values] = Field(default_factory=dict)
    """As a row's, of every point."""
    seeds: Seeds = (0, 1, 2)
    """Runs of each point."""
    figures: Annotated[dict[str, str], Field(min_length=1)] = Field(default=_FIGURES)
    """Title -> result, of those that are listed and drawn; those that no run has are left out."""
    compared: tuple[str, ...] = ()
    """Results by which points are compared with the baseline; empty: those listed."""
    baseline: str = ""
    """Point that the others are compared with; empty: the first."""
    judge: BestMetric = ""
    """Validation metric that chooses values to `tune` and each run's published step, where the
    config's `train.best_metric` names none."""

    @model_validator(mode="after")
    def _one_kind_of_points(self) -> Self:
        if bool(self.axes) == bool(self.rows):
            raise ValueError("axes, or rows, name the points of a grid; give one of them")
        return self


@dataclass(frozen=True)
class GridPoint:
    """One point of a grid: its values by axis, and what it changes in a config."""

    name: str
    """Such as `a=0.2,k=0.35`, also that of its folder; empty without axes."""
    at: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    row: Row = field(default_factory=Row)


def read_grid(path: Path) -> Grid:
    """Read a grid file; ConfigError where it breaks a rule."""
    return check_settings(Grid, read_yaml(path, "grid"), f"grid {path}")


def grid_points(grid: Grid) -> list[GridPoint]:
    """List the points of a grid, of axes every combination, the last changing fastest.

    Raises:
        ConfigError: two of them would share a folder.
    """
    if grid.rows:
        return [
            GridPoint(name, {"row": name}, {**grid.settings, **row.settings}, row)
            for name, row in grid.rows.items()
        ]
    return combinations(grid.axes, grid.settings)


def combinations(axes: Mapping[str, Any], settings: Mapping[str, Any]) -> list[GridPoint]:
    """List every combination of the axes' values; without axes one point, of no name."""
    short = {axis: axis.rpartition(".")[2] for axis in axes}
    if len(set(short.values())) < len(short):
        short = {axis: axis for axis in axes}
    points = []
    for chosen in itertools.product(*axes.values()):
        at = dict(zip(axes, chosen, strict=True))
        changes = dict(settings)
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


def grid_runs(grid: Grid) -> list[tuple[Mapping[str, Any], int]]:
    """List what each run changes, and the seeds; which tuned value gets them all is open."""
    return [
        ({**point.changes, **value.changes}, 1 if number else len(point.row.seeds or grid.seeds))
        for point in grid_points(grid)
        for number, value in enumerate(combinations(point.row.tune or grid.tune, {}))
    ]


def changed_tree(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Put dotted settings into a tree of plain values, in place, and return it."""
    for key, value in changes.items():
        *sections, last = key.split(".")
        part = tree
        for section in sections:
            part = part.setdefault(section, {})
        part[last] = value
    return tree
