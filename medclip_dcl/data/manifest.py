"""The usable images, their reports, labels and boxes, and a reason for what is left out.

One split per patient; patients with boxes never train.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifact import ArtifactType, json_digest
from medclip_dcl.data.boxes import read_boxes
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
    POINTER_BYTES,
    BoxTable,
    ImageRecord,
    RawStudies,
    Reject,
    Resolve,
    SourceConfig,
    Study,
    Text,
    find_file,
    is_pointer,
)
from medclip_dcl.errors import StudyError
from medclip_dcl.files import path_under, sha256_file, write_text
from medclip_dcl.tables import Column, TableFormat, write_table
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sections import read_sections

ARTIFACT = ArtifactType("manifest", 2, "build_manifest")

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image: MIMIC's dicom_id, or the table's"),
        Column("study_id", pa.string(), "id of the study that the image belongs to"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test; one per patient"),
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

STUDY_LABELS = TableFormat(
    "labels.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        *(
            Column(name, pa.int8(), "1 present, 0 absent, -1 uncertain, null: not mentioned")
            for name in LABELS
        ),
    ),
)
"""CheXpert labels per study, where the source has them; in order of study_id."""

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


REASONS: dict[str, str] = {
    "bad_id": "an id is empty or holds characters that no path may; the reject names the row",
    "no_subject": "the row or the header names no patient",
    "bad_row": "lists of a row that must be parallel differ in length",
    "no_image": "the row has neither bytes nor a path where its image should be",
    "bad_report": "the report's XML is malformed, too large, or declares entities",
    "bad_header": "the DICOM header cannot be read, or lacks an id",
    "not_dicom": "the file in the folder of DICOM is something else",
    "modality": "the DICOM modality is not one of source.modalities",
    "duplicate_id": "an earlier row has the same id",
    "patient_conflict": "the image and its study name different patients",
    "lateral": "the view position is not one of source.frontal_views",
    "no_view": "the view position is blank and source.keep_blank_views is off",
    "missing_image": "the image's file is missing or outside the root",
    "pointer_file": "the file is a pointer of git-LFS or git-annex, not content",
    "no_report": "the study has no report file, or its report is refused",
    "not_utf8": "the report is neither UTF-8 text nor one of source.fallback_encoding",
    "report_too_long": "the report has more than a million bytes",
    "empty_report": "the report has neither findings nor impression nor a text to stand in",
}
"""Reason code of a manifest's reject -> what it means."""

VIEW_REASONS = {"lateral", "no_view", "modality", "not_dicom"}
"""Reasons that are not a fault of the source and count towards no threshold."""


@dataclass(frozen=True)
class Selection:
    """What can be used of a source, and a reason for what cannot."""

    images: list[ImageRecord]  # in order of image_id
    texts: dict[str, Text]  # study -> sections, of studies with a usable image if there are images
    subjects: dict[str, str]  # study -> patient
    rejects: list[Reject]
    candidates: int  # images of the right view, or studies where there are no images
    lost: int  # those of the candidates that are left out


def select(raw: RawStudies, settings: SourceConfig) -> Selection:
    """Keep what can be used and name a reason for the rest."""
    rejects = list(raw.rejects)
    present: list[ImageRecord] = []
    seen: set[str] = set()
    for image in raw.images:
        reason = "duplicate_id" if image.image_id in seen else _fault(image, raw.root, settings)
        seen.add(image.image_id)
        if reason:
            rejects.append(Reject(image.image_id, reason))
        else:
            present.append(image)
    wanted = {image.study_id for image in present} if raw.has_images else None
    texts: dict[str, Text] = {}
    subjects = {} if raw.has_reports else {image.study_id: image.subject_id for image in present}
    for study in raw.studies:
        if wanted is not None and study.study_id not in wanted:
            continue
        answer = _text(study, raw.reports_root, settings.fallback_encoding)
        if isinstance(answer, str):
            rejects.append(Reject(study.study_id, answer))
            continue
        texts[study.study_id], subjects[study.study_id] = answer, study.subject_id
    images = [image for image in present if subjects.get(image.study_id) == image.subject_id]
    rejects += [
        Reject(image.image_id, "patient_conflict" if image.study_id in subjects else "no_report")
        for image in present
        if subjects.get(image.study_id) != image.subject_id
    ]
    views = sum(item.reason in VIEW_REASONS for item in rejects)
    rows = len(raw.images) - views if raw.has_images else len(raw.studies)
    candidates = rows + len(raw.rejects)
    lost = candidates - len(images if raw.has_images else texts)
    return Selection(sorted(images), texts, subjects, rejects, candidates, lost)


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
    if not settings.boxes:
        return Source(raw, raw.boxes or BoxTable([], set(), 0))
    raw.tables["boxes"] = find_file("boxes", settings.boxes, root, resolve)
    read = read_boxes(raw.tables["boxes"], raw.images, settings.box_columns, settings.box_form)
    return Source(raw, read)


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
    images = [
        {name: value for name, value in image._asdict().items() if not name.endswith("_px")}
        | {"split": split_of[image.subject_id]}
        for image in chosen.images
    ]
    reports = [
        {"study_id": study, "subject_id": subject, "split": split_of[subject]} | text._asdict()
        for study, text in sorted(chosen.texts.items())
        for subject in [chosen.subjects[study]]
    ]
    rejects = [item._asdict() | {"stage": ARTIFACT.job} for item in chosen.rejects]
    kept = {image.image_id for image in chosen.images}
    shown = [row for row in source.boxes.rows if row["image_id"] in kept]
    labels = STUDY_LABELS.schema.empty_table()
    if source.raw.labels is not None:
        labels = labels_of(source.raw.labels, chosen.subjects)
    write_table(folder, IMAGES, images)
    write_table(folder, REPORTS, reports)
    write_table(folder, STUDY_LABELS, labels)
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
        "reasons": dict(sorted(Counter(item.reason for item in chosen.rejects).items())),
    }


def _require_few_rejects(chosen: Selection, allowed: float) -> None:
    share = chosen.lost / chosen.candidates if chosen.candidates else 1.0
    if share > allowed or not (chosen.texts or chosen.images):
        reasons = dict(Counter(item.reason for item in chosen.rejects))
        raise StudyError(
            f"{chosen.lost} of {chosen.candidates} rows are unusable ({reasons}), "
            f"{len(chosen.images)} images and {len(chosen.texts)} reports are left; "
            f"source.max_reject_share is {allowed}: correct the source or raise it"
        )


def labels_of(labels: pa.Table, studies: Collection[str]) -> pa.Table:
    """Keep the first row of each of the studies, in order of study_id."""
    wanted = labels.filter(pc.is_in(labels["study_id"], pa.array(list(studies), pa.string())))
    first: dict[str, int] = {}
    for row, study in enumerate(wanted["study_id"].to_pylist()):
        first.setdefault(study, row)
    return wanted.take([first[study] for study in sorted(first)])


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
    if file_of(image.path) != image.path:
        return ""  # bytes that the source has seen in its row
    try:
        path = path_under(root, image.path)
    except StudyError:
        return "missing_image"
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
