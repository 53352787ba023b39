"""What every source of studies is read into, and how its tables are read."""

import io
import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import json as arrow_json
from pydantic import Field, field_validator, model_validator

from medclip_dcl.data.sources.delimited import (
    BLOCK,
    Separator,
    open_plain,
    read_csv,
    refuse_other_forms,
)
from medclip_dcl.errors import StudyError
from medclip_dcl.settings import NO_EFFECT, Section
from medclip_dcl.text.labeler.lexicon import LABELS

Column = Literal[
    "image_id", "study_id", "subject_id", "path", "image", "findings", "impression", "report",
    "view", "split", "width", "height", "labels", "boxes", "phrase", "category",
]  # fmt: skip
BoxColumn = Literal[
    "image_id", "category", "phrase", "x", "y", "width", "height", "image_width", "image_height",
]  # fmt: skip


class SourceConfig(Section):
    """Source of raw studies (`build_manifest`)."""

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
    `boxes`, `phrase`, `category`; and `labels`: name of `source.findings` -> column of its codes,
    or the one column that lists what is there; columns of `source.labels` where that is set."""
    findings: Annotated[tuple[str, ...], Field(min_length=1)] = LABELS
    """Names of the labels of the source, in order; CheXpert's by default. Every prompt of an
    evaluation names one of them. Reports are read for CheXpert's findings whatever stands here, and
    `relation: labels` and `eta.source: labels` use those labels that both know."""
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
    has; its columns are those of `columns.labels`, else the names of `findings`. Empty: none."""
    label_id: str = "study_id"
    """Column of the table of labels with ids of studies, ids of images, or paths of images; or such
    a column within other letters, as `CXR{uid}`."""
    labels_by: Literal["", "study", "image"] = ""
    """What that column names: studies, or images; empty: whichever it is, where no id is that of a
    study and of another study's image."""
    label_names: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Name of `findings` -> its names in a column that lists what is there, in any case; findings
    left out are not labelled. Empty: the names of `findings`, and for CheXpert's ChestX-ray14's."""
    frontal_views: tuple[str, ...] = ("AP", "PA", "FRONTAL")
    """Views that count as frontal, in any case; every other is `lateral`."""
    images_per_study: Literal["frontal", "pretrain", "all"] = "frontal"
    """`frontal`: frontal images alone; `pretrain`: the same, and lateral images of training
    patients for `pretrain_images` alone; `all`: lateral images and those without a view too.
    Training then draws one image of a study each time, and an evaluation scores a study by the
    mean of its images; boxes and calibrated probabilities stay those of an image."""
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
    archive_ca: Annotated[str, NO_EFFECT] = ""
    """PEM file of the authorities that sign the archive's certificate; empty: the file or folder
    that the variables SSL_CERT_FILE and SSL_CERT_DIR name, else certifi's authorities."""
    patient_key: Annotated[str, NO_EFFECT] = ""
    """File with a secret (kinds `dicom` and `dicomweb`) that keys the hash by which a PatientID is
    replaced. Empty: no key, and who knows how ids are formed can find them by trying."""
    separator: Separator = ""
    """What separates the fields of CSV tables (kind `table`, labels and boxes): a comma, semicolon,
    tab (`\\t`) or bar; empty: detected from their first rows."""
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
        return value

    @field_validator("findings")
    @classmethod
    def _check_findings(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value) or not all(name.strip() for name in value):
            raise ValueError("every finding needs a name of its own")
        if LABEL_KEY in value:
            raise ValueError(f"{LABEL_KEY} is the column of ids; give the finding another name")
        return value

    @model_validator(mode="after")
    def _names_are_findings(self) -> Self:
        named = self.columns.get("labels", "")
        mapped = set() if isinstance(named, str) else set(named)
        if unknown := sorted((mapped | set(self.label_names)) - set(self.findings)):
            raise ValueError(f"{unknown} are not in findings; it names {', '.join(self.findings)}")
        return self


LABEL_KEY = "study_id"
"""Column of a table of labels that names the study."""


FIELD = re.compile(r"\{([^{}]+)\}")
"""A column within other letters, in a pattern such as `{a}-{b}`."""
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
    """An image or study that is left out, and why (a key of `manifest.SOURCE_REASONS`)."""

    id: str
    reason: str


class Study(NamedTuple):
    """A study, its patient and its report: sections, or a path relative to the reports' root."""

    study_id: str
    subject_id: str
    report: Text | str


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
        """Give the file and the row in it, from 0, of an id; of one that is repeated the last."""
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


def find_file(setting: str, text: str, root: Path, resolve: Resolve) -> Path:
    """Find the file of a path setting, relative to the current folder or else to the root.

    Raises:
        StudyError: there is no such file.
    """
    places = list(dict.fromkeys((resolve(text), root / resolve(text))))
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        no_root = "" if root.is_dir() else f", and source.root is not a folder: {root}"
        raise StudyError(
            f"source.{setting} names no file; looked for {' and '.join(map(str, places))}{no_root}"
            f"{_others_like(places)}; correct source.{setting} or source.root"
        )
    return found


def _others_like(places: Sequence[Path]) -> str:
    # Tables next to it with nearly its name, such as another ending.
    folders = [path.parent for path in places if path.parent.is_dir()]
    names = [file.name for folder in folders for file in folder.iterdir() if _is_table(file)]
    near = get_close_matches(places[0].name, names, n=3, cutoff=0.75)
    return f"; there is {', '.join(near)}" if near else ""


def _is_table(path: Path) -> bool:
    ends = {".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".json", ".gz", ".xlsx", ".xls"}
    return path.suffix.lower() in ends


def relative_to_root(root: Path, settings: SourceConfig) -> Callable[[str], str]:
    """Make the function that writes paths of a table as the manifest does: relative to the root.

    It cuts off `source.prefix_strip`, or the root, as it is set or with its links followed; a path
    that is elsewhere stays as it is, and is refused where it is opened.
    """
    starts = {f"{path.as_posix().rstrip('/')}/" for path in (root.absolute(), root.resolve())}

    def relative(path: str) -> str:
        path = path.removeprefix(settings.prefix_strip)
        start = next((start for start in starts if path.startswith(start)), "")
        return path[len(start) :].lstrip("/") if start else path

    return relative


_POINTERS = (b"version https://git-lfs.github.com/spec/", b"/annex/objects/", b"../.git/annex/")
_POINTER_HEAD = 200
POINTER_BYTES = 1024
"""No pointer of git-LFS or git-annex is longer."""


def is_pointer(head: bytes) -> bool:
    """Whether a file is a pointer of git-LFS or git-annex, left where content was not fetched.

    Source: git-LFS specification, "The Pointer"; git-annex, "pointer file".
    """
    return head.startswith(_POINTERS)


def read_rows(
    path: Path, columns: Sequence[str], fallback: str = "", separator: Separator = ""
) -> dict[str, list[str]]:
    """Read columns of a table as strings, empty where a value is null; as `read_any`.

    Raises:
        StudyError: the table is missing, malformed, not UTF-8, or lacks a column.
    """
    return take_rows(read_any(path, fallback, separator), path.name, columns)


def take_rows(table: pa.Table, file: str, columns: Sequence[str]) -> dict[str, list[str]]:
    """Take columns of a table that was read from a file, as `read_rows`."""
    require_columns(file, columns, table.column_names)
    return {name: strings(table.column(name), file, name) for name in dict.fromkeys(columns)}


def fill_pattern(table: pa.Table, file: str, pattern: str) -> list[str]:
    """Give the text of each row by a pattern such as `{a}-{b}`, or by the name of a column.

    Raises:
        StudyError: the table lacks a column.
    """
    if not FIELD.search(pattern):
        return take_rows(table, file, [pattern])[pattern]
    columns = take_rows(table, file, FIELD.findall(pattern))

    def filled(row: int) -> str:
        return FIELD.sub(lambda match: columns[match[1]][row].strip(), pattern)

    return [filled(row) for row in range(table.num_rows)]


def require_columns(file: str, wanted: Sequence[str], there: Sequence[str]) -> None:
    """Refuse a table that lacks a column, or has it twice; StudyError."""
    if missing := [name for name in dict.fromkeys(wanted) if name not in there]:
        raise no_column(file, missing, there, wanted)
    if twice := [name for name in dict.fromkeys(wanted) if list(there).count(name) > 1]:
        raise StudyError(f"table {file} has column {twice} twice; rename one of them")


def no_column(
    file: str, missing: Sequence[str], there: Sequence[str], wanted: Sequence[str] = ()
) -> StudyError:
    """Say that a table lacks columns of those that are wanted, and which it has."""
    return StudyError(
        f"table {file} has no column {list(missing)}{only_columns(file, there, wanted)}; "
        "name its columns in source.columns, source.box_columns or source.label_id"
    )


def only_columns(file: str, there: Sequence[str], wanted: Sequence[str] = ()) -> str:
    """Name the columns that a table has, where these are names and not data.

    The first row of a CSV file may be a patient's, and the keys of a JSON file patients: without
    most of the columns that are `wanted` they are counted.
    """
    if not there:
        return ""
    are_names = 2 * len(set(wanted) & set(there)) > len(set(wanted))
    if file.lower().endswith((".parquet", ".arrow")) or are_names:
        return f", only {list(there[:40])}"
    return f" among its {len(there)}, whose names may be data"


def read_any(path: Path, fallback: str = "", separator: Separator = "") -> pa.Table:
    """Read a table, `.csv`, `.parquet`, `.jsonl` or `.json`, or text with `.gz`; CSV stays strings.

    `fallback` and `separator`: those of `read_csv`.

    Raises:
        StudyError: it is missing or malformed, or CSV that `read_csv` refuses.
    """
    if not path.is_file():
        raise StudyError(f"table {path} is missing; set source.root and source.table to your data")
    with path.open("rb") as stream:
        if is_pointer(stream.read(_POINTER_HEAD)):
            raise StudyError(
                f"table {path} is a pointer of git-LFS or git-annex; fetch its content"
            )
    kind = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    try:
        if kind.lower() == ".parquet":
            return pq.read_table(path)
        refuse_other_forms(path)
        if kind.lower() in {".jsonl", ".json"}:
            return _read_json(path, is_lines=kind.lower() == ".jsonl")
        return read_csv(path, fallback, separator)
    except (pa.ArrowException, OSError, EOFError, ValueError, zlib.error) as error:
        words = type(error).__name__
        remedy = "write it again"
        if "json" in kind.lower():
            remedy = "give one object a line, a list of objects, or an object of objects"
        raise StudyError(f"table {path} cannot be read ({words}); {remedy}") from error


def _read_json(path: Path, *, is_lines: bool) -> pa.Table:
    _refuse_depth(path)
    objects = None if is_lines else _objects(path)
    if objects is not None:
        if not objects or not all(isinstance(item, dict) for item in objects):
            raise StudyError(f"table {path} lists no objects; give an object for each row")
        return pa.Table.from_struct_array(pa.array(objects))
    options = arrow_json.ReadOptions(block_size=BLOCK)
    table = arrow_json.read_json(path, options)
    # Arrow takes the text 2026-03-01 for a time, and would write it in another way.
    times = [item.name for item in table.schema if pa.types.is_timestamp(item.type)]
    if times:
        texts = arrow_json.ParseOptions(pa.schema([(name, pa.string()) for name in times]))
        table = arrow_json.read_json(path, options, texts)
    return table


_DEEPEST = 200  # objects and lists within each other; Arrow's parser crashes on 100,000
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


_STEPS = np.zeros(256, np.int8)  # byte -> by how much it goes deeper
_STEPS[[*b"{["]], _STEPS[[*b"}]"]] = 1, -1


def _refuse_depth(path: Path) -> None:
    depth = 0
    with open_plain(path) as stream:
        for line in stream:
            opens, closes = (line.count(a) + line.count(b) for a, b in ((b"{", b"["), (b"}", b"]")))
            if opens == closes and depth + opens <= _DEEPEST:
                continue
            bare = np.frombuffer(_STRING.sub(b"", line), np.uint8)  # without brackets of texts
            depths = depth + np.cumsum(_STEPS[bare], dtype=np.int64)
            if len(depths) and depths.max() > _DEEPEST:
                raise StudyError(
                    f"table {path} nests objects or lists more than {_DEEPEST} deep; give plainer "
                    "rows"
                )
            depth = int(depths[-1]) if len(depths) else depth


def _objects(path: Path) -> list[Any] | None:
    """Read a JSON file of a list of objects, or of an object of objects; None: of JSON lines."""
    with io.TextIOWrapper(open_plain(path), encoding="utf-8") as file:
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
