"""What every source of studies is read into, and how its tables are read."""

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json
from pydantic import Field, field_validator

from medclip_dcl.errors import StudyError
from medclip_dcl.section import NO_EFFECT, Section
from medclip_dcl.text.labeler.lexicon import LABELS

Column = Literal[
    "image_id", "study_id", "subject_id", "path", "image", "findings", "impression", "report",
    "view", "split", "width", "height", "labels", "boxes", "phrase", "category",
]  # fmt: skip
BoxColumn = Literal[
    "image_id", "category", "phrase", "x", "y", "width", "height", "image_width", "image_height",
]  # fmt: skip


class SourceConfig(Section):
    """Where raw studies come from (`build_manifest`)."""

    kind: Literal["mimic_cxr", "open_i", "table", "dicom", "dicomweb", "huggingface"] = "mimic_cxr"
    """`mimic_cxr`: MIMIC-CXR or MIMIC-CXR-JPG with its tables; `open_i`: Open-i's XML and PNG,
    or its CSV form; `table`: any CSV, Parquet or JSONL table; `dicom`: a folder of DICOM files
    without tables or reports; `dicomweb`: an archive, whose images are fetched into `root`;
    `huggingface`: a dataset of a hub, or a folder of `save_to_disk`, Parquet, images or webdataset,
    whose columns are mapped as a table's."""
    # The manifest depends on the files, whose digests are its inputs, and not on where they lie.
    root: Annotated[str, NO_EFFECT] = "${WORK}/studies"
    """Folder that every image path of the source is relative to."""
    tables: Annotated[str, NO_EFFECT] = ""
    """Folder of the release's tables (kind `mimic_cxr`), plain or `.gz`; empty: `root`. The DICOM
    release has no views in its own: name the folder of MIMIC-CXR-JPG's."""
    reports: Annotated[str, NO_EFFECT] = ""
    """Folder whose `files/` holds the report texts (kind `mimic_cxr`); empty: `root`."""
    table: str | dict[Literal["train", "validate", "test"], str] = ""
    """The mapped table, relative to `root` (kind `table`): .csv, .parquet, .jsonl, or .json that
    lists objects or names each; or .gz. Or one for each split: `{train: a.csv, test: b.csv}`."""
    name: str = ""
    """Dataset of a hub, OWNER/NAME, that is downloaded into `root` (kind `huggingface`); empty:
    `root` holds it. `HF_TOKEN` is the token for one whose terms have to be accepted."""
    revision: str = ""
    """Commit of that dataset, 40 hexadecimal digits."""
    config: str = ""
    """Name of the dataset's configuration (kind `huggingface`); empty: it has one."""
    splits: dict[Literal["train", "validate", "test", "any"], str] = Field(default_factory=dict)
    """Our split -> the dataset's (kind `huggingface`); patients of `any` are split by hash, and
    splits that are not named are left out. Empty: by their names; a single one is `any`."""
    materialise: bool = False
    """Whether rows are copied once to Arrow files, artifact `rows` (kind `huggingface`), from which
    images are read by memory map. Folders of images and webdataset need it."""
    columns: dict[Column, str | dict[str, str]] = Field(default_factory=dict)
    """Role -> name of a column of the mapped table (kind `table`); a role that is left out has no
    column, `a.b` is field `b` of column `a`, `{a}-{b}` joins two columns, `=word` is the same in
    every row. Roles: `image_id`, `study_id`, `subject_id`,
    `path`, `image`, `findings`, `impression`, `report`, `view`, `split`, `width`, `height`,
    `boxes`, `phrase`, `category`; and `labels`: CheXpert's finding -> column of its codes, or the
    one column that lists what is there; columns of `source.labels` where that is set."""
    subject: Literal["", "none"] = ""
    """`none`: the table names no patients. Every study is then one, splits are those of the source
    alone, and card, check and report say that splits are not by patient."""
    prefix_strip: str = ""
    """What is cut off from the beginning of image paths in a table, such as `../deid_png/`."""
    box_form: Literal["", "xywh", "xyxy"] = ""
    """Form of the boxes in column `columns.boxes`: left, top, width, height; or left, top, right,
    bottom. Has to be given where there are any. `xyxy` goes for a box table in CSV too, whose
    `box_columns` for `width` and `height` then name right and bottom."""
    box_unit: Literal["px", "fraction"] = "px"
    """Unit of these boxes: pixels of the original image, or fractions of its width and height."""
    labels: str = ""
    """Table of labels, CSV, Parquet or JSONL, relative to `root`, in place of those that the source
    has; its columns are those of `columns.labels`, else CheXpert's names. Empty: none."""
    label_id: str = "study_id"
    """Column of the table of labels with ids of studies, ids of images, or paths of images."""
    label_names: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """CheXpert's finding -> its names in a column that lists what is there, in any case; findings
    left out are not labelled. Empty: CheXpert's and ChestX-ray14's names."""
    frontal_views: tuple[str, ...] = ("AP", "PA", "FRONTAL")
    """Views that count as frontal, in any case; every other is `lateral`."""
    images_per_study: Literal["frontal", "all"] = "frontal"
    """`frontal`: frontal images alone; `all`: lateral images and those without a view too. Training
    then draws one image of a study each time, and an evaluation scores a study by the mean of its
    images; boxes and calibrated probabilities stay those of an image."""
    keep_blank_views: bool = False
    """Whether an image whose view is blank counts as frontal. Left out and counted as `no_view`
    otherwise: no other field of these sources says reliably what such an image shows."""
    modalities: tuple[str, ...] = ("CR", "DX")
    """Modalities of the images wanted (kinds `dicom` and `dicomweb`); other files are counted as
    `modality`."""
    archive: Annotated[str, NO_EFFECT] = ""
    """URL of an archive's DICOMweb (kind `dicomweb`), such as `https://pacs.example/dicom-web`."""
    archive_dates: str = ""
    """Dates of the studies wanted (kind `dicomweb`): a day, or a range such as
    `20260101-20260131`; empty: all."""
    archive_key: Annotated[str, NO_EFFECT] = ""
    """File whose line is sent to the archive as `Authorization`, such as `Bearer KEY`; empty:
    none."""
    patient_key: Annotated[str, NO_EFFECT] = ""
    """File with a secret (kinds `dicom` and `dicomweb`) that keys the hash by which a PatientID is
    replaced. Empty: no key, and who knows how ids are formed can find them by trying."""
    fallback_encoding: Literal["", "latin-1", "cp1252"] = ""
    """Encoding of report files and of CSV tables (kind `table`) that are not UTF-8; empty: such a
    report is rejected as `not_utf8`, such a table refused."""
    boxes: str = ""
    """MS-CXR's box table, CSV or JSON, or another CSV with `box_columns`, relative to `root`; its
    patients are put in `test`. Empty: none."""
    box_columns: dict[BoxColumn, str] = Field(default_factory=dict)
    """Role -> name of a column of the box table in CSV; a role that is left out has MS-CXR's name.
    Roles: `image_id`, `category`, `phrase`, `x`, `y`, `width`, `height`, `image_width`,
    `image_height`; the last two may be empty: `source.columns.width` and `height`. `=1024` is the
    same in every row, and a size of `=0` means pixels of the image's file."""
    validate_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of patients put into `validate` where the source assigns no split."""
    test_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of patients put into `test` where the source assigns no split."""
    max_reject_share: Annotated[float, Field(ge=0, le=1), NO_EFFECT] = 0.01
    """Share of rejected rows (lateral views apart) above which the job fails with exit code 3."""

    @field_validator("columns")
    @classmethod
    def _check_columns(
        cls, value: dict[Column, str | dict[str, str]]
    ) -> dict[Column, str | dict[str, str]]:
        mapped = {role for role, name in value.items() if not isinstance(name, str)}
        if mapped - {"labels"}:
            raise ValueError(f"name one column each for {sorted(mapped - {'labels'})}")
        named = value.get("labels", "")
        _refuse_unknown(() if isinstance(named, str) else named)
        return value

    @field_validator("label_names")
    @classmethod
    def _check_names(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        _refuse_unknown(value)
        return value


def _refuse_unknown(findings: Iterable[str]) -> None:
    if unknown := sorted(set(findings) - set(LABELS)):
        raise ValueError(f"{unknown} are not findings of CheXpert; use {', '.join(LABELS)}")


SPLITS = ("train", "validate", "test")
CONSTANT = "="
"""How the name of a column begins that stands for one value in every row."""

LONGEST_REPORT = 1_000_000
"""Bytes of the longest report file that is read."""

Resolve = Callable[[str], Path]
"""Path setting -> path, variables such as `${WORK}` filled in."""


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
    """All rows of a source: images, studies or both, ids as they stand, repeats included."""

    root: Path  # that image paths are relative to
    images: list[ImageRecord] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)  # in the source's order
    has_images: bool = True  # without, studies stand alone
    has_reports: bool = True  # without, images stand alone
    reports_folder: Path | None = None  # that report paths are relative to; None: the root
    splits: dict[str, set[str]] = field(default_factory=dict)  # patient -> splits of its images
    labels: pa.Table | None = None  # `study_id` and CheXpert columns
    rejects: list[Reject] = field(default_factory=list)  # rows that name nothing usable
    files: list[str] = field(default_factory=list)  # further ones read, relative to `reports_root`
    tables: dict[str, Path] = field(default_factory=dict)  # files whose change makes a new manifest
    boxes: BoxTable | None = None  # where the source's own tables have boxes
    counts: dict[str, int] = field(default_factory=dict)  # what else was counted, for the summary
    by_patient: bool = True  # whether the source names patients, so that no split shares one
    card: dict[str, str] = field(default_factory=dict)  # name, commit, licence, terms of a dataset

    @property
    def reports_root(self) -> Path:
        """Folder that report paths are relative to."""
        return self.reports_folder or self.root


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


_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_POINTER_HEAD = 200
POINTER_BYTES = 1024
"""No pointer of git-LFS or git-annex is longer."""


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


_BLOCK = 32 << 20  # bytes; Arrow refuses a row that is longer


def read_rows(path: Path, columns: Sequence[str], fallback: str = "") -> dict[str, list[str]]:
    """Read columns of a table as strings, empty where a value is null; as `read_any`.

    Raises:
        StudyError: the table is missing, malformed, not UTF-8, or lacks a column.
    """
    return take_rows(read_any(path, fallback), path.name, columns)


def take_rows(table: pa.Table, file: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Take columns of a table that was read from a file, as `read_rows`."""
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise no_column(file, missing, table.column_names)
    return {name: strings(table.column(name), file, name) for name in dict.fromkeys(columns)}


def no_column(file: str, missing: Sequence[str], there: Sequence[str]) -> StudyError:
    """Say that a table lacks columns, and which it has."""
    return StudyError(
        f"table {file} has no column {list(missing)}{only_columns(file, there)}; "
        "name its columns in source.columns, source.box_columns or source.label_id"
    )


def only_columns(file: str, there: Sequence[str]) -> str:
    """Name the columns that a table has; count a CSV's: without a header its first row is data."""
    if not there:
        return ""
    if ".csv" in file.lower():
        return f" among its {len(there)}"
    return f", only {list(there[:40])}"


def read_any(path: Path, fallback: str = "") -> pa.Table:
    """Read a table, `.csv`, `.parquet`, `.jsonl` or `.json`, or text with `.gz`; CSV stays strings.

    `fallback`: encoding of a CSV table that is not UTF-8; empty: such a table is refused.

    Raises:
        StudyError: it is missing, malformed or not UTF-8.
    """
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    with path.open("rb") as stream:
        if is_pointer(stream.read(_POINTER_HEAD)):
            raise StudyError(
                f"table {path} is a pointer of git-LFS or git-annex; fetch its content"
            )
    failure: Exception | None = None
    for encoding in ("utf8", fallback) if fallback else ("utf8",):
        try:
            return _read(path, encoding)
        except (pa.ArrowException, OSError, ValueError, LookupError) as error:
            failure = error
    kind = type(failure).__name__
    raise StudyError(
        f"table {path} cannot be read ({kind}); give UTF-8 text, or set source.fallback_encoding"
    ) from failure


def _read(path: Path, encoding: str) -> pa.Table:
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if kind.lower() == ".parquet":
        return pq.read_table(path)
    if kind.lower() in {".jsonl", ".json"}:
        objects = _objects(path) if kind.lower() == ".json" else None
        if objects is not None:
            return pa.Table.from_struct_array(pa.array(objects))
        options = arrow_json.ReadOptions(block_size=_BLOCK)
        table = arrow_json.read_json(path, options)
        # Arrow takes the text 2026-03-01 for a time, and would write it in another way.
        times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
        if times:
            texts = arrow_json.ParseOptions(pa.schema([(name, pa.string()) for name in times]))
            table = arrow_json.read_json(path, options, texts)
        return table
    read = arrow_csv.ReadOptions(block_size=_BLOCK, encoding=encoding)
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    with arrow_csv.open_csv(path, read, parse) as reader:
        names: list[str] = reader.schema.names
    # Arrow guesses types otherwise: a patient "007" would become 7.
    types = arrow_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
    )
    return arrow_csv.read_csv(path, read, parse, types)


def _objects(path: Path) -> list[Any] | None:
    """Read a JSON file of a list of objects, or of an object of objects; None: of JSON lines."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        try:
            tree = json.loads(file.readline())
            if any(line.strip() for line in file):
                return None
        except json.JSONDecodeError:  # the first line does not end it
            file.seek(0)
            tree = json.load(file)
    if isinstance(tree, dict) and all(isinstance(value, dict) for value in tree.values()):
        return list(tree.values())
    return tree if isinstance(tree, list) else None


def strings(column: Any, table: str, name: str) -> list[str]:
    """Give a column of a table as strings, empty where null; StudyError where it is nested."""
    if pa.types.is_nested(column.type):
        raise StudyError(f"column {name!r} of {table} holds lists or objects; map a plain column")
    values: list[str] = pc.fill_null(pc.cast(column, pa.string()), "").to_pylist()
    return values
