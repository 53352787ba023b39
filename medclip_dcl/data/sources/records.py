"""Settings of the generator, of sources of studies and of prepared images.

Manifest: the usable frontal images, their reports, labels and boxes, and what was rejected.

Raw studies -> usable images and reports, and a reason for everything that is left out.

What a source of studies says, before anything of it is believed.

What sources must hold: files, columns, tags and elements, each with unit and meaning.

Readers take their names from here, and the contract's page is made of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field

from medclip_dcl.section import Section
from medclip_dcl.text.labeler.lexicon import LABELS


class ColumnsConfig(Section):
    """Names of the columns of a mapped table; empty where the table has none."""

    image_id: str = ""
    """Id of the image; made from the study id and row number where empty."""
    study_id: str = ""
    """Id of the study; the image id where empty."""
    subject_id: str = ""
    """Id of the patient; required, since splits are made by patient."""
    path: str = ""
    """Image path relative to `source.root`, or columns that make it up, such as
    `{ImageDir}/{ImageID}`; empty for a table of reports alone."""
    findings: str = ""
    """Text of the findings section."""
    impression: str = ""
    """Text of the impression section."""
    report: str = ""
    """Text of the whole report, used where findings and impression are empty."""
    view: str = ""
    """View position; rows with a value outside `source.frontal_views` are rejected. A table
    without this column holds frontal images alone."""
    split: str = ""
    """train, validate or test; assigned by hash of the patient where empty."""
    width: str = ""
    """Width of the image's file, pixels; read for boxes whose table does not state it."""
    height: str = ""
    """Height of the image's file, pixels; likewise."""


ColumnName = Annotated[str, Field(min_length=1)]


class BoxColumnsConfig(Section):
    """Names of the columns of a box table in CSV; MS-CXR's as they stand."""

    image_id: ColumnName = "dicom_id"
    """Id of the image, or the path of its file as `source.columns.path` gives it."""
    category: ColumnName = "category_name"
    """Finding."""
    phrase: ColumnName = "label_text"
    """Sentence that the box belongs to; it may be the column of the finding."""
    x: ColumnName = "x"
    """Left edge in the original image, pixels."""
    y: ColumnName = "y"
    """Top edge, pixels."""
    width: ColumnName = "w"
    """Width, pixels."""
    height: ColumnName = "h"
    """Height, pixels."""
    image_width: str = "image_width"
    """Width of the image that the box was drawn on, pixels; empty: `source.columns.width`."""
    image_height: str = "image_height"
    """Height of that image, pixels; empty: `source.columns.height`."""


class SourceConfig(Section):
    """Where raw studies come from (`build_manifest`)."""

    kind: Literal["mimic_cxr", "open_i", "table", "dicom"] = "mimic_cxr"
    """`mimic_cxr`: MIMIC-CXR or MIMIC-CXR-JPG with its tables; `open_i`: Open-i's XML and PNG,
    or its CSV form; `table`: any CSV, Parquet or JSONL table; `dicom`: a folder of DICOM files
    without tables or reports."""
    root: str = "${WORK}/studies"
    """Folder under which every image path of the source lies."""
    tables: str = ""
    """Folder of the release's tables (kind `mimic_cxr`), plain or `.gz`; empty: `root`. The DICOM
    release has no views in its own: name the folder of MIMIC-CXR-JPG's."""
    reports: str = ""
    """Folder whose `files/` holds the report texts (kind `mimic_cxr`); empty: `root`."""
    image_suffix: Literal["", ".dcm", ".jpg", ".jpeg", ".png"] = ""
    """Ending of the images' names (kinds `mimic_cxr`, `open_i`); empty: as the first image that is
    found."""
    table: str = ""
    """The mapped table, relative to `root` (kind `table`): .csv, .parquet or .jsonl; or .gz."""
    columns: ColumnsConfig = ColumnsConfig()
    """Column names of the mapped table (kind `table`)."""
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
    """Encoding of report files and of CSV tables (kind `table`) that are no UTF-8; empty: such a
    report is rejected as `not_utf8`, such a table refused."""
    boxes: str = ""
    """MS-CXR's box table, CSV or JSON, or another CSV with `box_columns`, relative to `root`; its
    patients are put in `test`. Empty: none."""
    box_columns: BoxColumnsConfig = BoxColumnsConfig()
    """Column names of the box table in CSV."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of patients put into `validate` where the source assigns no split."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of patients put into `test` where the source assigns no split."""
    max_reject_share: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Share of rejected rows (lateral views apart) above which the job fails with exit code 3."""


SPLITS = ("train", "validate", "test")

LONGEST_REPORT = 1_000_000
"""Bytes of the longest report file that is read."""

ReadSections = Callable[[str, str], tuple[str, str, str]]
"""Report text, study id -> findings, impression and the text that stands in for both."""


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
    """An image or study that is left out, and why (a key of `selection.REASONS`)."""

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
        file: where it lies, relative to `source.root`; `[.gz]` where gzip is read too.
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


_IMAGE_ID = SourceField("dicom_id", "id", "id of the image; the name of its file without ending")
_SUBJECT = SourceField("subject_id", "id", "id of the patient")
_STUDY = SourceField("study_id", "id", "id of the study")

METADATA = Input(
    "mimic_cxr",
    "*-metadata.csv[.gz]",
    "yes, or the record list",
    (
        _IMAGE_ID,
        _SUBJECT,
        _STUDY,
        SourceField(
            "ViewPosition", "code", "view; may be blank. The code-meaning columns are not used"
        ),
    ),
)
RECORDS = Input(
    "mimic_cxr",
    "cxr-record-list.csv[.gz]",
    "where there is no metadata table; views then come from the images' headers",
    (_IMAGE_ID, _SUBJECT, _STUDY),
)
SPLIT = Input(
    "mimic_cxr",
    "*-split.csv[.gz]",
    "no; patients are split by hash without",
    (
        _SUBJECT,
        SourceField("split", "word", "train, validate or test; test beats validate beats train"),
    ),
)
CHEXPERT = Input(
    "mimic_cxr",
    "*-chexpert.csv[.gz]",
    "no",
    (
        _STUDY,
        *(
            SourceField(name, "number", "1 present, 0 absent, -1 uncertain, blank")
            for name in LABELS
        ),
    ),
)
MIMIC_FILES = Input(
    "mimic_cxr",
    "files/pNN/pSUBJECT/sSTUDY",
    "yes",
    (
        SourceField(
            "sSTUDY.txt", "UTF-8 text, at most a million bytes", "report, lines as in the file"
        ),
        SourceField(
            "sSTUDY/DICOM_ID.dcm", "DICOM, or .jpg, .jpeg, .png", "image, 8 or 16 bits, grey"
        ),
    ),
)
_BOX = BoxColumnsConfig()
BOX_TABLE = Input(
    "source.boxes",
    "MS-CXR's CSV[.gz]",
    "no",
    (
        SourceField(_BOX.image_id, _IMAGE_ID.form, _IMAGE_ID.meaning),
        SourceField(_BOX.category, "text", "finding"),
        SourceField(_BOX.phrase, "text", "sentence that the box belongs to"),
        SourceField(_BOX.x, "pixels", "left edge in the original image"),
        SourceField(_BOX.y, "pixels", "top edge"),
        SourceField(_BOX.width, "pixels", "width"),
        SourceField(_BOX.height, "pixels", "height"),
        SourceField(_BOX.image_width, "pixels", "width of the original image"),
        SourceField(_BOX.image_height, "pixels", "height of the original image"),
    ),
    (SourceField("path", "text", "names the patient, also where the image is not at hand"),),
)
BOX_JSON = Input(
    "source.boxes",
    "MS-CXR's JSON[.gz]",
    "no",
    (
        SourceField("images[].id", "number", "key of an image in this file"),
        SourceField(
            "images[].file_name", "text", "name of the image's file: its id, and an ending"
        ),
        SourceField(
            "images[].path", "text", "names the patient, also where the image is not at hand"
        ),
        SourceField("images[].width, .height", "pixels", "size of the original image"),
        SourceField("categories[].id, .name", "number, text", "finding"),
        SourceField(
            "annotations[].image_id, .category_id", "numbers", "image and finding of a box"
        ),
        SourceField("annotations[].bbox", "pixels", "[x, y, width, height], from the top left"),
        SourceField("annotations[].label_text", "text or list of texts", "its sentences"),
    ),
)
OPEN_I_XML = Input(
    "open_i",
    "NLMCXR_reports/ecgen-radiology/*.xml",
    "yes, or the table of reports",
    (
        SourceField("eCitation//uId@id", "CXR1", "study, and patient: one report is one patient's"),
        SourceField("eCitation//AbstractText[@Label]", "text", "FINDINGS and IMPRESSION"),
        SourceField("eCitation//parentImage@id", "CXR1_1_IM-0001-3001", "image"),
    ),
)
OPEN_I_REPORTS = Input(
    "open_i",
    "indiana_reports.csv",
    "where there are no XML files",
    (
        SourceField("uid", "number", "study, and patient"),
        SourceField("findings", "text", "findings section"),
        SourceField("impression", "text", "impression"),
    ),
)
OPEN_I_PROJECTIONS = Input(
    "open_i",
    "indiana_projections.csv",
    "for the views; all are blank without",
    (
        SourceField(
            "filename", "1_IM-0001-4001.dcm.png", "image; matched by its numbers in both forms"
        ),
        SourceField("projection", "word", "Frontal or Lateral"),
    ),
)
OPEN_I_FILES = Input(
    "open_i",
    "NLMCXR_png or images/images_normalized",
    "no; reports alone without",
    (SourceField("*.png", "PNG", "image"),),
)
DICOM_FILES = Input(
    "dicom",
    "any file below the root that starts as DICOM does",
    "yes",
    (
        SourceField("SOPInstanceUID", "UID", "id of the image"),
        SourceField("StudyInstanceUID", "UID", "id of the study"),
        SourceField("PatientID", "text", "patient; kept as a keyed hash alone"),
        SourceField("ViewPosition", "code", "view; may be blank"),
        SourceField("Modality", "code", "one of `source.modalities`"),
        SourceField("SOPClassUID", "UID", "tells a DICOMDIR, which is passed over"),
    ),
)

INPUTS = (
    METADATA,
    RECORDS,
    SPLIT,
    CHEXPERT,
    MIMIC_FILES,
    BOX_TABLE,
    BOX_JSON,
    OPEN_I_XML,
    OPEN_I_REPORTS,
    OPEN_I_PROJECTIONS,
    OPEN_I_FILES,
    DICOM_FILES,
)
"""Every input but the mapped table, whose columns the settings name."""
