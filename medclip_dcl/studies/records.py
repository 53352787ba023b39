"""What a source of studies says, before anything of it is believed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

ReadSections = Callable[[str, str], tuple[str, str, str]]
"""Report text, study id -> findings, impression and the text that stands in for both."""


class Film(NamedTuple):
    """One film as a table names it; `path` is relative to the source's root.

    Width and height are 0 where the table does not state them.
    """

    image_id: str
    study_id: str
    subject_id: str
    view: str
    path: str
    width_px: int = 0
    height_px: int = 0


class Text(NamedTuple):
    """Sections of one study's report."""

    findings: str
    impression: str
    last_paragraph: str


class Reject(NamedTuple):
    """A film or study that is left out, and why (a key of `selection.REASONS`)."""

    id: str
    reason: str


class Study(NamedTuple):
    """A study, its patient and its report: sections, or a path relative to the reports' root."""

    study_id: str
    subject_id: str
    report: Text | str


@dataclass(frozen=True)
class RawStudies:
    """All rows of a source.

    Attributes:
        films: one per film; none where the source holds reports alone.
        studies: one per study, in the source's order; ids may repeat.
        splits: patient -> every split that the source puts one of its films in.
        labels: table with `study_id` and CheXpert columns, where the source has one.
        root: folder that film paths are relative to.
        reports_root: folder that report paths are relative to.
        has_films: whether the source names films at all.
        rejects: rows that name nothing usable, with their reasons.
        has_reports: whether the source has reports at all; without, films stand alone.
        files: further files that were read, relative to `reports_root`.
    """

    films: list[Film]
    studies: list[Study]
    splits: dict[str, set[str]]
    labels: pa.Table | None
    root: Path
    reports_root: Path
    has_films: bool
    rejects: list[Reject] = field(default_factory=list)
    has_reports: bool = True
    files: list[str] = field(default_factory=list)
