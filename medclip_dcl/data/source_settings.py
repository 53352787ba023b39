"""Settings of a source of studies, and the paths that they name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.plugins import SOURCES
from medclip_dcl.core.settings import NO_EFFECT, Section
from medclip_dcl.text.labeler.lexicon import LABELS

Column = Literal[
    "image_id", "study_id", "subject_id", "path", "image", "findings", "impression", "report",
    "view", "split", "width", "height", "labels", "boxes", "phrase", "category",
]  # fmt: skip
BoxColumn = Literal[
    "image_id", "category", "phrase", "x", "y", "width", "height", "image_width", "image_height",
]  # fmt: skip


_ONE = Field(min_length=1, max_length=1)


class SourceConfig(Section):
    """Source of raw studies (`build_manifest`)."""

    kind: Annotated[str, AfterValidator(SOURCES.check)] = "mimic_cxr"
    """`mimic_cxr`: MIMIC-CXR or MIMIC-CXR-JPG with its tables; `open_i`: Open-i's XML and PNG,
    or its CSV form; `table`: any CSV, Parquet or JSONL table; `dicom`: a folder of DICOM files
    without tables or reports; `dicomweb`, of `hospital/`: an archive, whose images are
    fetched into `root`; `huggingface`: a dataset of a hub, or a folder of `save_to_disk`, Parquet,
    images or webdataset, whose columns are mapped as a table's and whose images are written out
    once, into artifact `rows`; or a source of a plugin."""
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
    """Dataset of a hub, OWNER/NAME@COMMIT with 40 hexadecimal digits, that is downloaded into
    `root` (kind `huggingface`); empty: `root` holds it. `HF_TOKEN` is the token for one whose terms
    have to be accepted."""
    config: str = ""
    """Name of the dataset's configuration (kind `huggingface`); empty: it has one."""
    splits: dict[Literal["train", "validate", "test", "any"], str] = Field(default_factory=dict)
    """Our split -> the dataset's (kind `huggingface`); patients of `any` are split by hash, and
    splits that are not named are left out. Empty: by their names; a single one is `any`."""
    columns: dict[Column, str | dict[str, str]] = Field(default_factory=dict)
    """Role -> name of a column of the mapped table (kind `table`); a role that is left out has no
    column, `a.b` is field `b` of column `a`, `{a}-{b}` joins two columns, `=word` is the same in
    every row. `subject_id: ""`: the table names no patients; every study is then one, splits are
    those of the source alone, and card, check and report say that splits are not by patient.
    Roles: `image_id`, `study_id`, `subject_id`,
    `path`, `image`, `findings`, `impression`, `report`, `view`, `split`, `width`, `height`,
    `boxes`, `phrase`, `category`; and `labels`: name of `source.findings` -> column of its codes,
    or the one column that lists what is there; columns of `source.labels` where that is set."""
    findings: Annotated[tuple[str, ...], Field(min_length=1)] = LABELS
    """Names of the labels of the source, in order; CheXpert's by default. Every prompt of an
    evaluation names one of them. Reports are read for CheXpert's findings whatever stands here, and
    `relation: labels` uses those labels that both know."""
    prefix_strip: str = ""
    """What is cut off from the beginning of image paths in a table, such as `../deid_png/`."""
    box_form: Literal["", "xywh", "xyxy", "xywh_fraction", "xyxy_fraction"] = ""
    """Form of the boxes in column `columns.boxes`: left, top, width, height; or left, top, right,
    bottom; in pixels of the original image, or in fractions of its width and height. Has to be
    given where there are any. `xyxy` goes for a box table in CSV too, whose `box_columns` for
    `width` and `height` then name right and bottom."""
    labels: str = ""
    """Table of labels, CSV, Parquet or JSONL, relative to `root`, in place of those that the source
    has; its columns are those of `columns.labels`, else the names of `findings`. Empty: none."""
    label_id: str | Annotated[dict[Literal["study", "image"], str], _ONE] = "study_id"
    """Column of the table of labels with ids of studies, ids of images, or paths of images; or such
    a column within other letters, as `CXR{uid}`. `{study: COLUMN}` or `{image: COLUMN}` where an id
    is that of a study and of another study's image."""
    label_names: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Name of `findings` -> its names in a column that lists what is there, in any case; findings
    left out are not labelled. Empty: the names of `findings`, and for CheXpert's ChestX-ray14's."""
    template: str | dict[Literal["present", "absent", "none"], str] = ""
    """Sentence that stands for a finding that is labelled present, such as "{finding} in the chest
    X-ray.", of a source with labels and without reports; or sentences by label: `present`,
    `absent`, and `none` of a study without findings (`data/sources/labels.py`). Empty: none."""
    frontal_views: tuple[str, ...] = ("AP", "PA", "FRONTAL")
    """Views that count as frontal, in any case; every other is `lateral`. A blank view is left out
    and counted as `no_view` unless "" is listed: no other field of these sources says reliably what
    such an image shows."""
    archive: Annotated[str, NO_EFFECT] = ""
    """URL of an archive's DICOMweb (kind `dicomweb`), such as `https://pacs.example/dicom-web`.
    SSL_CERT_FILE or SSL_CERT_DIR names the authorities of its certificate; else certifi's hold."""
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
    """MS-CXR's box table, its CSV, or another with `box_columns`, relative to `root`; its patients
    are put in `test`. Empty: none."""
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
    """Share of rejected rows (lateral views apart), of refused images, or of those whose picture
    another image has, above which a job fails with exit code 3."""

    @property
    def is_anonymous(self) -> bool:
        """Whether the mapped table names no patients."""
        return self.columns.get("subject_id") == ""

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

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        forms = {"present": value} if isinstance(value, str) else value
        if value and FINDING_FIELD not in forms.get("present", ""):
            raise ValueError(f"the sentence of a present finding needs {FINDING_FIELD}")
        if forms.get("absent") and FINDING_FIELD not in forms["absent"]:
            raise ValueError(f"the sentence of an absent finding needs {FINDING_FIELD}")
        return value

    @model_validator(mode="after")
    def _names_are_findings(self) -> Self:
        named = self.columns.get("labels", "")
        mapped = set() if isinstance(named, str) else set(named)
        if unknown := sorted((mapped | set(self.label_names)) - set(self.findings)):
            raise ValueError(f"{unknown} are not in findings; it names {', '.join(self.findings)}")
        return self


MODALITIES = ("CR", "DX")
"""Of files that kinds `dicom` and `dicomweb` take: radiographs. Others are counted as `modality`; a
table may list any image."""
FINDING_FIELD = "{finding}"  # where a template's sentence names the finding
LABEL_KEY = "study_id"  # column of a table of labels that names the study


LABEL_CODES: dict[str, int | None] = {
    **dict.fromkeys(("1", "true", "yes", "positive", "present"), 1),
    **dict.fromkeys(("0", "false", "no", "negative", "absent"), 0),
    **dict.fromkeys(("-1", "uncertain"), -1),
    **dict.fromkeys(("", "nan", "none", "null", "not mentioned", "unlabeled"), None),
}
"""Word of a label, as `label_word` writes it -> its code; None: not mentioned."""


def label_word(value: str) -> str:
    """Write a label in one way: without blanks, capitals and zeros behind the point ("1.00")."""
    return re.sub(r"(\d)[.,]0+$", r"\1", value.strip().lower())


Resolve = Callable[[str], Path]  # path setting -> path, variables such as `${WORK}` filled in


def find_file(setting: str, text: str, root: Path, resolve: Resolve) -> Path:
    """Find the file of a path setting, relative to the current folder or else to the root.

    Raises:
        StudyError: there is no such file.
    """
    # The current folder goes first, as a shell completes names.
    places = list(dict.fromkeys((resolve(text), root / resolve(text))))
    file = next((path for path in places if path.is_file()), None)
    if file is None:
        no_root = "" if root.is_dir() else f", and source.root is not a folder: {root}"
        raise StudyError(
            f"source.{setting} names no file; looked for {' and '.join(map(str, places))}{no_root}"
            f"; correct source.{setting} or source.root"
        )
    return file


def relative_to_root(root: Path, settings: SourceConfig) -> Callable[[str], str]:
    """Make the function that writes paths of a table as the manifest does: relative to the root.

    It cuts off `source.prefix_strip`, or the root, as it is set or with its links followed; a path
    that is elsewhere stays as it is, and is refused where it is opened.
    """
    # Tables made on another mount have the root with its links followed.
    starts = {f"{path.as_posix().rstrip('/')}/" for path in (root.absolute(), root.resolve())}

    def relative(path: str) -> str:
        path = path.removeprefix(settings.prefix_strip)
        start = next((start for start in starts if path.startswith(start)), "")
        return path[len(start) :].lstrip("/") if start else path

    return relative


class ClaimsConfig(Section):
    """Claims of sentences and reports about findings (`read_claims`)."""

    table: str = ""
    """CSV, Parquet or JSONL with columns `text` (a sentence) or `study_id` (a report), or both,
    `finding`, `state` and `side`, in place of our labeler's reading; empty: ours. Reports follow
    from their sentences where the table has none."""
