"""The usable images, their reports, labels and boxes, and a reason for what is left out.

One split per patient; patients with boxes never train.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.artifact import Artifact, ArtifactType, json_digest
from medclip_dcl.data.boxes import read_boxes
from medclip_dcl.data.limits import REASONS as IMAGE_REASONS
from medclip_dcl.data.row_images import file_of, stamp_files
from medclip_dcl.data.sources import (
    dicom_folder,
    huggingface,
    mimic_cxr,
    open_i,
    table,
)
from medclip_dcl.data.sources.labels import join_labels
from medclip_dcl.data.sources.records import (
    LONGEST_REPORT,
    BoxTable,
    ImageRecord,
    RawStudies,
    Reject,
    Study,
    Text,
)
from medclip_dcl.data.sources.settings import LABEL_KEY, Resolve, SourceConfig, find_file
from medclip_dcl.data.sources.table_files import POINTER_BYTES, is_pointer
from medclip_dcl.errors import ArtifactCorrupt, ConfigError, StudyError
from medclip_dcl.files import path_under, sha256_file, write_text
from medclip_dcl.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sections import read_sections

ARTIFACT = ArtifactType("manifest", 2, "build_manifest")

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image: MIMIC's dicom_id, or the table's"),
        Column("study_id", pa.string(), "id of the study that the image belongs to"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column(
            "split",
            pa.string(),
            "train, validate or test; one per patient, but for `pretrain`: a lateral image of a "
            "training patient, seen by `pretrain_images` alone",
        ),
        Column("view", pa.string(), "view position; empty where the source has none"),
        Column(
            "path",
            pa.string(),
            "path of the file, relative to the source's root; bytes in a row: FILE#COLUMN[ROW], or "
            "FILE#COLUMN[ROW][K] in a list, counted from 0",
        ),
    ),
)
"""One row per usable image, in order of image_id."""

REPORTS = TableFormat(
    "reports.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test; one per patient"),
        Column("findings", pa.string(), "text of the findings section; empty where there is none"),
        Column("impression", pa.string(), "text of the impression; empty where there is none"),
        Column("last_paragraph", pa.string(), "text that stands in where both are empty"),
    ),
)
"""One row per study with text, in order of study_id."""


def label_format(findings: Sequence[str]) -> TableFormat:
    """Make the format of the table of labels of a source with these findings."""
    meaning = "1 present, 0 absent, -1 uncertain, null: not mentioned"
    columns = (Column(name, pa.int8(), meaning) for name in findings)
    return TableFormat(
        "labels.parquet", (Column(LABEL_KEY, pa.string(), "id of the study"), *columns)
    )


STUDY_LABELS = label_format(LABELS)
"""Labels per study, where the source has them, in order of study_id; of a source with other
`source.findings` the columns are those."""

BOXES = TableFormat(
    "boxes.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("subject_id", pa.string(), "id of the patient; none of these trains"),
        Column("category", pa.string(), "finding"),
        Column("phrase", pa.string(), "the sentence that the box belongs to"),
        Column("x", pa.float64(), "left edge, pixels of the original image"),
        Column("y", pa.float64(), "top edge, pixels of the original image"),
        Column("width", pa.float64(), "width, pixels of the original image"),
        Column("height", pa.float64(), "height, pixels of the original image"),
        Column(
            "image_width",
            pa.int32(),
            "width of the original image, pixels; 1: the box is in fractions of it, 0: in pixels "
            "of its file",
        ),
        Column("image_height", pa.int32(), "height of the original image, pixels; likewise"),
    ),
)
"""Boxes with their sentences (MS-CXR), one row per box."""

DATASET = "dataset.json"
"""What a dataset's own card says: name, commit, licence, terms (kind `huggingface`)."""

REJECTS = TableFormat(
    "rejects.parquet",
    (
        Column("id", pa.string(), "id of the image or study"),
        Column("stage", pa.string(), "job that rejected it"),
        Column("reason", pa.string(), "reason code"),
    ),
)
"""What was left out, one row per image or study and reason."""


def _read_dicomweb(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    from medclip_dcl.data.sources.dicomweb import read_dicomweb  # httpx: the service has none

    return read_dicomweb(root, settings, resolve)


READERS: dict[str, Callable[[Path, SourceConfig, Resolve], RawStudies]] = {
    "mimic_cxr": mimic_cxr.read_mimic_cxr,
    "open_i": lambda root, _settings, _resolve: open_i.read_open_i(root),
    "table": table.read_mapped_table,
    "dicom": dicom_folder.read_dicom_folder,
    "dicomweb": _read_dicomweb,
    "huggingface": huggingface.read_huggingface,
}
"""`source.kind` -> its reader: root, settings, and what turns path settings into paths."""

_STRICTEST = ("test", "validate", "train")


def assign_splits(
    subjects: Iterable[str],
    given: Mapping[str, Collection[str]],
    evaluated: Collection[str],
    validate_share: float,
    test_share: float,
) -> dict[str, str]:
    """Give every patient one split, by hash, so that nobody moves when others come or go.

    `given`: patient -> splits that the source names for its images, of which the one furthest from
    training counts (test, then validate, then train); the shares are of the other patients.
    `evaluated`: patients of the box table, who are always in `test`.
    """
    chosen = {}
    for subject in subjects:
        # "split": another hash of the same id must not be a function of this one
        digest = hashlib.sha256(f"split {subject}".encode("utf-8", "surrogatepass")).digest()
        fraction = int.from_bytes(digest[:8], "big") / 2**64
        named = given.get(subject, ())
        if subject in evaluated:
            chosen[subject] = "test"
        elif named:
            chosen[subject] = next(split for split in _STRICTEST if split in named)
        elif fraction < test_share:
            chosen[subject] = "test"
        else:
            chosen[subject] = "validate" if fraction < test_share + validate_share else "train"
    return chosen


SOURCE_REASONS: dict[str, str] = {
    "bad_id": "an id is empty or holds characters that no path may; the reject names the row",
    "no_subject": "the row or the header names no patient",
    "bad_row": "lists of a row that must be parallel differ in length",
    "no_image": "the row has neither bytes nor a path where its image should be",
    "bad_report": "the report's XML is malformed, too large, declares entities or leaves the root",
    "bad_header": "the DICOM header cannot be read, or lacks an id",
    "not_dicom": "the file in the folder of DICOM is something else",
    "modality": "the DICOM modality is not one of source.modalities",
    "duplicate_id": "an earlier row has the same id",
    "patient_conflict": "the image and its study name different patients",
    "lateral": "the view position is not one of source.frontal_views",
    "no_view": "the view position is blank and source.keep_blank_views is off",
    "missing_image": "the image's file is missing or outside the root",
    "backslash_path": "no file has this path with backslashes; write it with /",
    "wrong_image": "the archive gave something else than the image that was asked for",
    "pointer_file": "the file is a pointer of git-LFS or git-annex, not content",
    "no_report": "the study has no report file, or its report is refused",
    "not_utf8": "the report is neither UTF-8 text nor one of source.fallback_encoding",
    "report_too_long": "the report has more than a million bytes",
    "empty_report": "the report has neither findings nor impression nor a text to stand in",
}
"""Reason code of a manifest's reject -> what it means."""

REJECT_REASONS = SOURCE_REASONS | IMAGE_REASONS
"""Reason code of every row of `REJECTS`, the manifest's or that of prepared images."""

PRETRAIN = "pretrain"
"""Split of lateral images that `pretrain_images` alone sees; their patients train."""

VIEW_REASONS = {"lateral", "no_view", "modality", "not_dicom"}
"""Reasons that are not a fault of the source and count towards no threshold."""


@dataclass(frozen=True)
class Selection:
    """Usable images and texts of a source, and a reason for each of the rest."""

    images: list[ImageRecord]  # in order of image_id
    texts: dict[str, Text]  # study -> sections, of studies with a usable image if there are images
    subjects: dict[str, str]  # study -> patient
    rejects: list[Reject]
    candidates: int  # images of the right view, or studies where there are no images
    lost: int  # those of the candidates that are left out
    reasons: Counter[str]  # why: each row of the lost counts once
    laterals: list[ImageRecord] = field(default_factory=list)  # for `pretrain_images` alone


def select(raw: RawStudies, settings: SourceConfig) -> Selection:
    """Keep what can be used and name a reason for the rest."""
    rejects = list(raw.rejects)
    present: list[ImageRecord] = []
    laterals: list[ImageRecord] = []
    seen: set[str] = set()
    for image in raw.images:
        reason = "duplicate_id" if image.image_id in seen else _fault(image, raw.root, settings)
        seen.add(image.image_id)
        if not reason:
            present.append(image)
        elif reason == "lateral" and settings.images_per_study == "pretrain":
            laterals.append(image)
        else:
            rejects.append(Reject(image.image_id, reason))
    wanted = {image.study_id for image in present} if raw.has_images else None
    texts: dict[str, Text] = {}
    faults: list[Reject] = []  # of reports
    subjects = {} if raw.has_reports else {image.study_id: image.subject_id for image in present}
    for study in raw.studies:
        if wanted is not None and study.study_id not in wanted:
            continue
        answer = _text(study, raw.reports_root, settings.fallback_encoding)
        if isinstance(answer, str):
            faults.append(Reject(study.study_id, answer))
            continue
        texts[study.study_id], subjects[study.study_id] = answer, study.subject_id
    images = [image for image in present if subjects.get(image.study_id) == image.subject_id]
    alone = [image for image in present if subjects.get(image.study_id) != image.subject_id]
    reasons = _by_reason(item for item in rejects if item.reason not in VIEW_REASONS)
    reasons += _reasons_of(alone, subjects, faults) if raw.has_images else _by_reason(faults)
    rejects += faults
    rejects += [
        Reject(image.image_id, "patient_conflict" if image.study_id in subjects else "no_report")
        for image in alone
    ]
    views = sum(item.reason in VIEW_REASONS for item in rejects) + len(laterals)
    rows = len(raw.images) - views if raw.has_images else len(raw.studies)
    candidates = rows + len(raw.rejects)
    lost = candidates - len(images if raw.has_images else texts)
    return Selection(
        sorted(images), texts, subjects, rejects, candidates, lost, reasons, sorted(laterals)
    )


def _by_reason(rejects: Iterable[Reject]) -> Counter[str]:
    return Counter(item.reason for item in rejects)


def _reasons_of(
    images: Iterable[ImageRecord], subjects: Mapping[str, str], faults: Iterable[Reject]
) -> Counter[str]:
    """Say why images have no study: the fault of its report, where it has one."""
    fault_of = {item.id: item.reason for item in faults}
    return Counter(
        "patient_conflict"
        if image.study_id in subjects
        else fault_of.get(image.study_id, "no_report")
        for image in images
    )


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


def read_source(settings: SourceConfig, resolve: Resolve) -> Source:
    """Read a source; no image is decoded.

    Raises:
        ConfigError: a setting that the kind of source needs is empty.
        StudyError: a table is missing or cannot be read.
    """
    root = resolve(settings.root)
    raw = READERS[settings.kind](root, settings, resolve)
    if settings.labels:
        raw.tables["labels"] = find_file("labels", settings.labels, root, resolve)
        raw = replace(raw, labels=join_labels(raw, raw.tables["labels"], settings))
    elif raw.labels is not None:
        _require_findings(raw.labels, settings)
    if not settings.boxes:
        return Source(raw, raw.boxes or BoxTable([], set(), 0))
    raw.tables["boxes"] = find_file("boxes", settings.boxes, root, resolve)
    read = read_boxes(raw.tables["boxes"], raw.images, settings, root)
    return Source(raw, read)


def _require_findings(labels: pa.Table, settings: SourceConfig) -> None:
    # The labels of MIMIC-CXR and Open-i are CheXpert's, whatever the settings call them.
    if lacking := sorted(set(settings.findings) - set(labels.column_names)):
        raise ConfigError(
            f"source.findings names {lacking}, which the labels of kind {settings.kind} do not "
            "have; name a table that has them in source.labels"
        )


def read_labels(listed: Artifact) -> pa.Table:
    """Read the labels of a manifest, by its own findings; without a row where it has none.

    Raises:
        ArtifactCorrupt: the table cannot be read, or is none of labels.
    """
    if STUDY_LABELS.file not in listed.files:
        return STUDY_LABELS.schema.empty_table()
    path = listed.path / STUDY_LABELS.file
    try:
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"table {path} is missing or damaged; rerun its job") from error
    return read_table(listed.path, label_format(names[1:]))


def label_names(labels: pa.Table) -> tuple[str, ...]:
    """Name the findings of a table of labels, in order."""
    return tuple(name for name in labels.column_names if name != LABEL_KEY)


def images_root(settings: SourceConfig, resolve: Resolve) -> Path:
    """Give the folder that the image paths of a manifest are relative to."""
    is_copied = settings.kind == "huggingface" and settings.materialise
    return huggingface.ROWS.at(resolve("${WORK}")) if is_copied else resolve(settings.root)


def split_patients(source: Source, chosen: Selection, settings: SourceConfig) -> dict[str, str]:
    """Give every patient of a selection one split: `assign_splits` with the source's own."""
    return assign_splits(
        sorted({*chosen.subjects.values(), *(image.subject_id for image in chosen.images)}),
        source.raw.splits,
        source.boxes.subjects,
        settings.validate_share,
        settings.test_share,
    )


def write_manifest(folder: Path, source: Source, settings: SourceConfig) -> dict[str, Any]:
    """Write every table of the manifest.

    Raises:
        StudyError: more rows are unusable than `max_reject_share` allows, or all.
    """
    chosen = select(source.raw, settings)
    _require_few_rejects(chosen, settings.max_reject_share)
    split_of = split_patients(source, chosen, settings)
    laterals = [
        image
        for image in chosen.laterals
        if split_of.get(image.subject_id) == "train" and not _file_fault(image, source.raw.root)
    ]
    left_out = {image.image_id for image in chosen.laterals} - {item.image_id for item in laterals}
    every = [*chosen.rejects, *(Reject(name, "lateral") for name in sorted(left_out))]
    splits = [(image, split_of[image.subject_id]) for image in chosen.images]
    splits += [(image, PRETRAIN) for image in laterals]
    images = [
        {name: value for name, value in image._asdict().items() if not name.endswith("_px")}
        | {"split": split}
        for image, split in sorted(splits)
    ]
    reports = [
        {"study_id": study, "subject_id": subject, "split": split_of[subject]} | text._asdict()
        for study, text in sorted(chosen.texts.items())
        for subject in [chosen.subjects[study]]
    ]
    rejects = [item._asdict() | {"stage": ARTIFACT.job} for item in every]
    kept = {image.image_id for image in chosen.images}
    shown = [row for row in source.boxes.rows if row["image_id"] in kept]
    form = label_format(settings.findings)
    labels = form.schema.empty_table()
    if source.raw.labels is not None:
        labels = labels_of(source.raw.labels, chosen.subjects)
    write_table(folder, IMAGES, images)
    write_table(folder, REPORTS, reports)
    write_table(folder, form, labels)
    write_table(folder, BOXES, shown)
    write_table(folder, REJECTS, rejects)
    if source.raw.card:
        write_text(folder / DATASET, json.dumps(source.raw.card, indent=1, sort_keys=True) + "\n")
    return {
        "images": len(images),
        "reports": len(reports),
        "patients": len(split_of),
        "labelled": labels.num_rows,
        "boxes": len(shown),
        "boxes_without_image": len(source.boxes.rows) - len(shown) + source.boxes.unknown,
        "splits": dict(sorted(Counter(row["split"] for row in reports).items())),
        "split_conflicts": sum(len(splits) > 1 for splits in source.raw.splits.values()),
        **source.raw.counts,
        **({} if source.raw.by_patient else {"splits_by_patient": False}),
        "rejected": len(rejects),
        "reasons": dict(sorted(Counter(item.reason for item in every).items())),
    }


def _require_few_rejects(chosen: Selection, allowed: float) -> None:
    others = _by_reason(item for item in chosen.rejects if item.reason in VIEW_REASONS)
    aside = f"; {others.total()} others are not asked for {dict(others)}" if others else ""
    if not chosen.candidates:
        raise StudyError(
            f"the source has no image or report that is asked for{aside}; correct its root, table "
            "or archive, or what is asked for: source.modalities, source.frontal_views"
        )
    if chosen.lost / chosen.candidates > allowed or not (chosen.texts or chosen.images):
        raise StudyError(
            f"{chosen.lost} of {chosen.candidates} rows are unusable {dict(chosen.reasons)}, "
            f"{len(chosen.images)} images and {len(chosen.texts)} reports are left{aside}; "
            f"source.max_reject_share is {allowed}: correct the source or raise it"
        )


def labels_of(labels: pa.Table, studies: Collection[str]) -> pa.Table:
    """Keep the first row of each of the studies, in order of study_id."""
    wanted = labels.filter(pc.is_in(labels["study_id"], pa.array(list(studies), pa.string())))
    first: dict[str, int] = {}
    for row, study in enumerate(wanted["study_id"].to_pylist()):
        first.setdefault(study, row)
    rows = pa.array([first[study] for study in sorted(first)], pa.int64())  # perhaps none
    return wanted.take(rows)


def stamp(raw: RawStudies) -> str:
    """Name the state of a source's report and image files without reading them."""
    reports = (study.report for study in raw.studies if isinstance(study.report, str))
    texts = stamp_files(raw.reports_root, (*raw.files, *reports))
    images = stamp_files(raw.root, (image.path for image in raw.images))
    return hashlib.sha256(f"{texts}{images}".encode()).hexdigest()


def _fault(image: ImageRecord, root: Path, settings: SourceConfig) -> str:
    """Give the code of the reason why an image cannot be used, or nothing."""
    if settings.images_per_study == "all":
        pass
    elif image.view:
        if image.view.upper() not in {view.upper() for view in settings.frontal_views}:
            return "lateral"
    elif not settings.keep_blank_views and (
        settings.kind not in {"table", "huggingface"} or settings.columns.get("view")
    ):
        return "no_view"  # a table without a column of views holds frontal images alone
    return _file_fault(image, root)


def _file_fault(image: ImageRecord, root: Path) -> str:
    if file_of(image.path) != image.path:
        return ""  # bytes that the source has seen in its row
    try:
        path = path_under(root, image.path)
    except StudyError:
        return "backslash_path" if "\\" in image.path else "missing_image"
    is_short = path.stat().st_size <= POINTER_BYTES
    return "pointer_file" if is_short and is_pointer(path.read_bytes()) else ""


def _text(study: Study, root: Path, fallback: str) -> Text | str:
    """Give the sections, or the code of the reason why there are none."""
    report = study.report
    if isinstance(report, str):
        try:
            path = path_under(root, report)
        except StudyError:
            return "no_report"
        if path.stat().st_size > LONGEST_REPORT:
            return "report_too_long"
        text = _decoded(path.read_bytes(), fallback)
        if text is None:
            return "not_utf8"
        if is_pointer(text.encode()):
            return "pointer_file"
        report = Text(*read_sections(text, study.study_id))
    if any(is_pointer(section.encode("utf-8", "surrogatepass")) for section in report):
        return "pointer_file"
    return report if any(section.strip() for section in report) else "empty_report"


def _decoded(data: bytes, fallback: str) -> str | None:
    for encoding in ("utf-8-sig", fallback or "utf-8"):
        with suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            return None if "\0" in text else text.replace("\r\n", "\n").replace("\r", "\n")
    return None
