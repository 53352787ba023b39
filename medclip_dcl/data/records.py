"""Records that every source of studies is read into: images, reports, boxes, rejects.

A generated source also knows what each image shows (`read_truth`).
"""

import csv
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from medclip_dcl.core.artifact import json_digest
from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.files import path_under, sha256_file
from medclip_dcl.text.mimic_sections import Sections

LONGEST_REPORT = 1_000_000  # bytes of the longest report file that is read


class ImageRecord(NamedTuple):
    """One image as a table names it; width and height are 0 where it does not state them."""

    image_id: str
    study_id: str
    subject_id: str
    view: str
    path: str
    width_px: int = 0
    height_px: int = 0


@dataclass(frozen=True)
class BoxTable:
    """The boxes of known images, and every patient that the table names."""

    rows: list[dict[str, Any]]  # one per box, with the columns of `manifest.BOXES`
    subjects: set[str]  # patients of the table, known images or not
    unknown: int  # boxes whose image the source does not have


Text = Sections
"""Findings, impression and last paragraph of one study's report."""


class ReportText(NamedTuple):
    """A study's whole report as it came, of any layout."""

    text: str


class Reject(NamedTuple):
    """An image or study that is left out, and why (a key of `selection.SOURCE_REASONS`)."""

    id: str
    reason: str


class Study(NamedTuple):
    """A study, its patient and its report: sections, its text, or a path below the reports' root.

    A file is read as MIMIC-CXR's reports are laid out.
    """

    study_id: str
    subject_id: str
    report: Text | ReportText | str


@dataclass
class TableRows:
    """Which row of the source's tables an id comes from; empty where it has none."""

    files: list[tuple[int, str]] = field(default_factory=list)  # rows before it, name
    first: dict[str, int] = field(default_factory=dict)  # id -> its first row, over all files
    last: dict[str, int] = field(default_factory=dict)  # the same of ids that are repeated

    def note(self, name: str, row: int) -> None:
        """Keep the row of an id; `row` is counted over all files."""
        if self.first.setdefault(name, row) != row:
            self.last[name] = row

    def find(self, name: str, *, repeated: bool = False) -> tuple[str, int | None]:
        """Return the file and the row in it, from 0, of an id; of one that is repeated the last."""
        row = self.last.get(name) if repeated else self.first.get(name)
        if row is None:
            return "", None
        start, file = next(item for item in reversed(self.files) if item[0] <= row)
        return file, row - start


@dataclass(frozen=True)
class RawStudies:
    """All rows of a source: images, studies or both, ids as they stand, repeats included."""

    root: Path  # that image paths are relative to
    images: list[ImageRecord] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)  # in the source's order
    has_images: bool = True  # without, studies stand alone
    has_reports: bool = True  # without, images stand alone
    reports_folder: Path | None = None  # that report paths are relative to; None: the root
    splits: dict[str, set[str]] = field(default_factory=dict)  # patient -> splits of its images
    labels: pa.Table | None = None  # `study_id`, and a column of each of `SourceConfig.findings`
    rejects: list[Reject] = field(default_factory=list)  # rows that name nothing usable
    files: list[str] = field(default_factory=list)  # further ones read, relative to `reports_root`
    tables: dict[str, Path] = field(default_factory=dict)  # files whose change makes a new manifest
    rows: TableRows = field(default_factory=TableRows)  # of ids that a table has or is given
    boxes: BoxTable | None = None  # where the source's own tables have boxes
    counts: dict[str, int] = field(default_factory=dict)  # what else was counted, for the summary
    by_patient: bool = True  # whether the source names patients, so that no split shares one
    card: dict[str, str] = field(default_factory=dict)  # name, commit, licence, terms of a dataset

    @property
    def reports_root(self) -> Path:
        """Folder that report paths are relative to."""
        return self.reports_folder or self.root


@dataclass(frozen=True)
class Source:
    """A source of studies as it was read: its rows, and its boxes with their patients."""

    raw: RawStudies
    boxes: BoxTable

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of the tables and a stamp of the report and image files."""
        digests = {name: sha256_file(path) for name, path in self.raw.tables.items()}
        card = {"card": json_digest(self.raw.card)} if self.raw.card else {}
        return digests | {"files": stamp(self.raw)} | card


def stamp(raw: RawStudies) -> str:
    """Name the state of a source's report and image files without reading them."""
    reports = (study.report for study in raw.studies if isinstance(study.report, str))
    texts = stamp_files(raw.reports_root, (*raw.files, *reports))
    images = stamp_files(raw.root, (image.path for image in raw.images))
    return hashlib.sha256(f"{texts}{images}".encode()).hexdigest()


def stamp_files(root: Path, paths: Iterable[str]) -> str:
    """Name the state of files without reading them: a hash of names, sizes and times of change."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            facts = (root / path).stat()
            state = f"{facts.st_size}\0{facts.st_mtime_ns}"
        except (OSError, ValueError):
            state = "missing"
        # File names need not be Unicode.
        digest.update(f"{path}\0{state}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


TRUTH = "truth/images.csv"  # what the images of a generated source show, relative to its root


def truth_digests(root: Path) -> dict[str, str]:
    """Name the table of the truth by its digest; empty where the source is not a generated one."""
    file = _truth_file(root)
    return {} if file is None else {file.name: sha256_file(file)}


def read_truth(root: Path) -> dict[str, frozenset[str]] | None:
    """Read the types of findings that each image shows; None: the source is not a generated one.

    Raises:
        StudyError: the table holds something else than the generator wrote.
    """
    file = _truth_file(root)
    if file is None:
        return None
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            return {row["dicom_id"]: frozenset(json.loads(row["types"])) for row in rows}
    except (KeyError, ValueError, TypeError) as error:
        raise StudyError("the table of the truth is damaged; rerun generate_studies") from error


def _truth_file(root: Path) -> Path | None:
    try:
        return path_under(root, TRUTH)
    except StudyError:
        return None
