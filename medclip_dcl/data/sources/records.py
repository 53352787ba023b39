"""What every source of studies is read into, and what its page says it must hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field

from medclip_dcl.errors import StudyError
from medclip_dcl.section import Section

Column = Literal[
    "image_id",
    "study_id",
    "subject_id",
    "path",
    "findings",
    "impression",
    "report",
    "view",
    "split",
    "width",
    "height",
]
BoxColumn = Literal[
    "image_id",
    "category",
    "phrase",
    "x",
    "y",
    "width",
    "height",
    "image_width",
    "image_height",
]


class SourceConfig(Section):
    """Where raw studies come from (`build_manifest`)."""

    kind: Literal["mimic_cxr", "open_i", "table", "dicom"] = "mimic_cxr"
    """`mimic_cxr`: MIMIC-CXR or MIMIC-CXR-JPG with its tables; `open_i`: Open-i's XML and PNG,
    or its CSV form; `table`: any CSV, Parquet or JSONL table; `dicom`: a folder of DICOM files
    without tables or reports."""
    root: str = "${WORK}/studies"
    """Folder that every image path of the source is relative to."""
    tables: str = ""
    """Folder of the release's tables (kind `mimic_cxr`), plain or `.gz`; empty: `root`. The DICOM
    release has no views in its own: name the folder of MIMIC-CXR-JPG's."""
    reports: str = ""
    """Folder whose `files/` holds the report texts (kind `mimic_cxr`); empty: `root`."""
    table: str = ""
    """The mapped table, relative to `root` (kind `table`): .csv, .parquet or .jsonl; or .gz."""
    columns: dict[Column, str] = Field(default_factory=dict)
    """Role -> name of a column of the mapped table (kind `table`); a role that is left out has no
    column. Roles: `image_id`, `study_id`, `subject_id`, `path`, `findings`, `impression`, `report`,
    `view`, `split`, `width`, `height`."""
    frontal_views: tuple[str, ...] = ("AP", "PA", "FRONTAL")
    """Views that count as frontal, in any case; every other is `lateral`."""
    keep_blank_views: bool = False
    """Whether an image whose view is blank counts as frontal. Left out and counted as `no_view`
    otherwise: no other field of these sources says reliably what such an image shows."""
    modalities: tuple[str, ...] = ("CR", "DX")
    """Modalities of the images wanted (kind `dicom`); other files are counted as `modality`."""
    patient_key: str = ""
    """File with a secret (kind `dicom`) that keys the hash by which a PatientID is replaced. Empty:
    no key, and who knows how ids are formed can find them by trying."""
    fallback_encoding: Literal["", "latin-1", "cp1252"] = ""
    """Encoding of report files and of CSV tables (kind `table`) that are not UTF-8; empty: such a
    report is rejected as `not_utf8`, such a table refused."""
    boxes: str = ""
    """MS-CXR's box table, CSV or JSON, or another CSV with `box_columns`, relative to `root`; its
    patients are put in `test`. Empty: none."""
    box_columns: dict[BoxColumn, str] = Field(default_factory=dict)
    """Role -> name of a column of the box table in CSV; a role that is left out has MS-CXR's name.
    Roles: `image_id`, `category`, `phrase`, `x`, `y`, `width`, `height`, `image_width`,
    `image_height`; the last two may be empty: `source.columns.width` and `height`."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of patients put into `validate` where the source assigns no split."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of patients put into `test` where the source assigns no split."""
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rejected rows (lateral views apart) above which the job fails with exit code 3."""


SPLITS = ("train", "validate", "test")

LONGEST_REPORT = 1_000_000
"""Bytes of the longest report file that is read."""

Resolve = Callable[[str], Path]
"""Path setting -> path, variables such as `${WORK}` filled in."""


class ImageRecord(NamedTuple):
    """One image as a table names it; `path` is relative to the source's root.

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
    """An image or study that is left out, and why (a key of `manifest.REASONS`)."""

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
        images: one per image; none where the source holds reports alone.
        studies: one per study, in the source's order; ids may repeat.
        splits: patient -> every split that the source puts one of its images in.
        labels: table with `study_id` and CheXpert columns, where the source has one.
        root: folder that image paths are relative to.
        reports_root: folder that report paths are relative to.
        has_images: whether the source names images at all.
        rejects: rows that name nothing usable, with their reasons.
        has_reports: whether the source has reports at all; without, images stand alone.
        files: further files that were read, relative to `reports_root`.
        tables: setting or table -> file; a change of any makes another manifest.
    """

    images: list[ImageRecord]
    studies: list[Study]
    splits: dict[str, set[str]]
    labels: pa.Table | None
    root: Path
    reports_root: Path
    has_images: bool
    rejects: list[Reject] = field(default_factory=list)
    has_reports: bool = True
    files: list[str] = field(default_factory=list)
    tables: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceField:
    """One column, key, element or tag: its name, the form of its value, what it means."""

    name: str
    form: str
    meaning: str


@dataclass(frozen=True)
class Input:
    """One file, or one kind of file, of a source.

    Attributes:
        source: `source.kind`, or the setting that names the file.
        file: its path, relative to `source.root`; `[.gz]` where gzip is read too.
        needed: whether it must be there.
        fields: what is read of it; anything else in it is ignored.
        optional: what is read where it is there.
    """

    source: str
    file: str
    needed: str
    fields: tuple[SourceField, ...]
    optional: tuple[SourceField, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the fields that must be there, in order."""
        return [field.name for field in self.fields]


IMAGE_ID = SourceField("dicom_id", "id", "id of the image; the name of its file without ending")
SUBJECT_ID = SourceField("subject_id", "id", "id of the patient")
STUDY_ID = SourceField("study_id", "id", "id of the study")


def find_file(setting: str, text: str, root: Path, resolve: Resolve) -> Path:
    """Find the file of a path setting, relative to the current folder or else to the root.

    Raises:
        StudyError: there is no such file.
    """
    path = resolve(text)
    path = path if path.is_file() else root / path
    if not path.is_file():
        raise StudyError(f"the file of source.{setting} is missing; set it, or source.root")
    return path
