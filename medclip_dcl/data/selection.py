"""Source -> manifest: its usable images and reports, a reason for each of the rest, and splits.

Who reads a manifest imports `manifest` alone, and chooses no studies.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.files import path_under, write_text
from medclip_dcl.core.tables import write_table
from medclip_dcl.data import manifest
from medclip_dcl.data.limits import REASONS as IMAGE_REASONS
from medclip_dcl.data.records import (
    LONGEST_REPORT,
    ImageRecord,
    RawStudies,
    Reject,
    ReportText,
    Source,
    Study,
    Text,
)
from medclip_dcl.data.source_settings import SourceConfig
from medclip_dcl.data.table_files import POINTER_BYTES, is_pointer
from medclip_dcl.text.mimic_sections import Part, cut_release_report, read_sections
from medclip_dcl.text.sections import cut_report, read_loose_sections

SOURCE_REASONS: dict[str, str] = {  # reason code of a manifest's reject -> what it means
    "bad_id": "an id is empty or holds characters that no path may; the reject names the row",
    "no_subject": "the row or the header names no patient",
    "bad_row": "lists of a row that must be parallel differ in length",
    "no_image": "the row names no image, or its dataset holds none there",
    "bad_report": "the report's XML is malformed, too large, declares entities or leaves the root",
    "bad_header": "the DICOM header cannot be read, or lacks an id",
    "not_dicom": "the file in the folder of DICOM is something else",
    "modality": "the DICOM modality is neither CR nor DX",
    "duplicate_id": "an earlier row has the same id",
    "patient_conflict": "the image and its study name different patients",
    "lateral": "the view position is not one of source.frontal_views",
    "no_view": "the view position is blank, which source.frontal_views does not list",
    "missing_image": "the image's file is missing or outside the root",
    "empty_image": "the image's file is empty",
    "backslash_path": "no file has this path with backslashes; write it with /",
    "wrong_image": "the archive gave something else than the image that was asked for",
    "pointer_file": "the file is a pointer of git-LFS or git-annex, not content",
    "no_report": "the study has no report file, or its report is refused",
    "not_utf8": "the report is neither UTF-8 text nor one of source.fallback_encoding",
    "report_too_long": "the report has more than a million bytes",
    "empty_report": "the report has no findings, no impression and no other text to use",
}

REJECT_REASONS = SOURCE_REASONS | IMAGE_REASONS
"""Reason code of every row of `REJECTS`, the manifest's or that of prepared images."""

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

    @property
    def least_share(self) -> float:
        """The least `source.max_reject_share`, in hundredths, that lets what is lost pass."""
        return math.ceil(100 * self.lost / max(1, self.candidates)) / 100


def require_few_rejects(chosen: Selection, allowed: float) -> None:
    """Refuse a source with more unusable rows than are allowed, or without any other.

    Raises:
        StudyError: it counts the rows by reason, those without text or without an image among
            them, and names the share that lets them pass.
    """
    others = by_reason(item for item in chosen.rejects if item.reason in VIEW_REASONS)
    aside = f"; {others.total()} others are not asked for {dict(others)}" if others else ""
    if not chosen.candidates:
        raise StudyError(
            f"the source has no image or report that is asked for{aside}; correct its root, "
            "table or archive, or what is asked for: source.frontal_views"
        )
    nothing = not (chosen.texts or chosen.images)
    if chosen.lost / chosen.candidates > allowed or nothing:
        remedy = f", or set it to {chosen.least_share} to leave them out" if not nothing else ""
        raise StudyError(
            f"{chosen.lost} of {chosen.candidates} rows are unusable {dict(chosen.reasons)}, "
            f"{len(chosen.images)} images and {len(chosen.texts)} reports are left{aside}; "
            f"source.max_reject_share is {allowed}: correct the source{remedy}"
        )


def select(raw: RawStudies, settings: SourceConfig) -> Selection:
    """Keep what can be used and name a reason for the rest."""
    rejects = list(raw.rejects)
    # A repeated id is counted before its view is looked at: which row is meant nobody can say.
    present: list[ImageRecord] = []
    seen: set[str] = set()
    for image in raw.images:
        reason = "duplicate_id" if image.image_id in seen else _fault(image, raw.root, settings)
        seen.add(image.image_id)
        if not reason:
            present.append(image)
        else:
            rejects.append(Reject(image.image_id, reason))
    # Reports of studies without a usable image are not opened: they would be lost all the same.
    wanted = {image.study_id for image in present} if raw.has_images else None
    texts: dict[str, Text] = {}
    faults: list[Reject] = []  # of reports
    # Without reports the images say whose study it is; with them the study does.
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
    reasons = by_reason(item for item in rejects if item.reason not in VIEW_REASONS)
    reasons += by_reason([] if raw.has_images else faults)
    rejects += faults
    fault_of = dict(faults)
    for image in alone:
        conflicts = image.study_id in subjects
        reason = "patient_conflict" if conflicts else "no_report"
        rejects.append(Reject(image.image_id, reason))
        # What an image is lost by is the fault of its study's report, where it has one.
        reasons[reason if conflicts else fault_of.get(image.study_id, reason)] += 1
    # Laterals are no fault of an archive, and up to half of it.
    views = sum(item.reason in VIEW_REASONS for item in rejects)
    rows = len(raw.images) - views if raw.has_images else len(raw.studies)
    candidates = rows + len(raw.rejects)
    lost = candidates - len(images if raw.has_images else texts)
    return Selection(sorted(images), texts, subjects, rejects, candidates, lost, reasons)


def by_reason(rejects: Iterable[Reject]) -> Counter[str]:
    """Count rejects by their reason."""
    return Counter(item.reason for item in rejects)


def _fault(image: ImageRecord, root: Path, settings: SourceConfig) -> str:
    """Return the code of the reason why an image cannot be used, or nothing."""
    # Archives write views in capitals or not.
    frontal = {view.upper() for view in settings.frontal_views}
    if image.view.upper() in frontal:
        pass
    elif image.view:
        return "lateral"
    elif settings.kind not in {"table", "huggingface"} or settings.columns.get("view"):
        return "no_view"  # a table without a column of views holds frontal images alone
    try:
        path = path_under(root, image.path)
    except StudyError:
        return "backslash_path" if "\\" in image.path else "missing_image"
    # No image is opened for this but those that may be pointers.
    size = path.stat().st_size
    if not size:
        return "empty_image"
    is_short = size <= POINTER_BYTES
    return "pointer_file" if is_short and is_pointer(path.read_bytes()) else ""


def _text(study: Study, root: Path, fallback: str) -> Text | str:
    """Return the sections, or the code of the reason why there are none."""
    report = _report_of(study, root, fallback)
    if isinstance(report, str):
        return report
    if any(is_pointer(text.encode("utf-8", "surrogatepass")) for text in report):
        return "pointer_file"
    if isinstance(report, ReportText):
        # Files are laid out as MIMIC-CXR's; a column of a table may hold any layout.
        is_file = isinstance(study.report, str)
        sections = read_sections if is_file else read_loose_sections
        report = sections(report.text, study.study_id)
    return report if any(section.strip() for section in report) else "empty_report"


def _report_of(study: Study, root: Path, fallback: str) -> Text | ReportText | str:
    """Return a report as it came, or the code of the reason why it cannot be read."""
    report = study.report
    if not isinstance(report, str):
        return report
    try:
        path = path_under(root, report)
    except StudyError:
        return "no_report"
    if path.stat().st_size > LONGEST_REPORT:
        return "report_too_long"
    text = _decoded(path.read_bytes(), fallback)
    return "not_utf8" if text is None else ReportText(text)


def parts_of_report(study: Study, root: Path, fallback: str) -> list[Part]:
    """Cut a report that is read into its parts, those that are left out as well."""
    report = _report_of(study, root, fallback)
    assert not isinstance(report, str), "a report without fault"
    if not isinstance(report, ReportText):
        return [Part(name, "", body, name) for name, body in report._asdict().items() if body]
    if isinstance(study.report, str):
        return cut_release_report(report.text, study.study_id)
    return cut_report(report.text)


def _decoded(data: bytes, fallback: str) -> str | None:
    # UTF-8 first: text of another encoding hardly ever is UTF-8 by chance.
    for encoding in ("utf-8-sig", fallback or "utf-8"):
        with suppress(UnicodeDecodeError):
            text = data.decode(encoding)
            return None if "\0" in text else text.replace("\r\n", "\n").replace("\r", "\n")
    return None


# Test before validate before train: a patient of two splits must not be trained on.
_STRICTEST = ("test", "validate", "train")


def assign_splits(
    subjects: Iterable[str],
    given: Mapping[str, Collection[str]],
    evaluated: Collection[str],
    validate_share: float,
    test_share: float,
) -> dict[str, str]:
    """Put every patient into one split, by hash, so that nobody moves when others come or go.

    `given`: patient -> splits that the source names for its images, of which the one furthest from
    training counts (test, then validate, then train); the shares are of the other patients.
    `evaluated`: patients of the box table, who are always in `test`.
    """
    chosen = {}
    for subject in subjects:
        # "split": another hash of the same id must not be a function of this one
        digest = hashlib.sha256(f"split {subject}".encode("utf-8", "surrogatepass")).digest()
        # A hash is even in all of its bits: its first eight bytes are a number between 0 and 1.
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


def split_patients(source: Source, chosen: Selection, settings: SourceConfig) -> dict[str, str]:
    """Put every patient of a selection into one split: `assign_splits` with the source's own."""
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
    raw, chosen = source.raw, select(source.raw, settings)
    require_few_rejects(chosen, settings.max_reject_share)
    split_of = split_patients(source, chosen, settings)
    listed = {image.image_id for image in chosen.images}
    # The patients of boxes left out here stay in `test`: `split_patients` has seen all of them.
    boxes = [row for row in source.boxes.rows if row["image_id"] in listed]
    form = manifest.label_format(settings.findings)
    labels = form.schema.empty_table()
    if raw.labels is not None:
        labels = labels_of(raw.labels, chosen.subjects)
    write_table(folder, form, labels)
    images = ({**image._asdict(), "split": split_of[image.subject_id]} for image in chosen.images)
    # Sizes are for boxes: a prepared image has its own.
    columns = manifest.IMAGES.schema.names
    write_table(folder, manifest.IMAGES, ({name: row[name] for name in columns} for row in images))
    reports = (
        {
            "study_id": study,
            "subject_id": chosen.subjects[study],
            "split": split_of[chosen.subjects[study]],
            **text._asdict(),
        }
        for study, text in sorted(chosen.texts.items())
    )
    write_table(folder, manifest.REPORTS, reports)
    write_table(folder, manifest.BOXES, boxes)
    stage = {"stage": manifest.ARTIFACT.job}
    write_table(folder, manifest.REJECTS, (item._asdict() | stage for item in chosen.rejects))
    if raw.card:
        write_text(folder / manifest.DATASET, json.dumps(raw.card, indent=1, sort_keys=True) + "\n")
    splits = Counter(split_of[chosen.subjects[study]] for study in chosen.texts)
    return {
        "images": len(chosen.images),
        "reports": len(chosen.texts),
        "patients": len(split_of),
        "labelled": labels.num_rows,
        "boxes": len(boxes),
        "boxes_without_image": len(source.boxes.rows) - len(boxes) + source.boxes.unknown,
        "splits": dict(sorted(splits.items())),
        "split_conflicts": sum(len(named) > 1 for named in raw.splits.values()),
        **raw.counts,
        **({} if raw.by_patient else {"splits_by_patient": False}),
        "rejected": len(chosen.rejects),
        "reasons": dict(sorted(by_reason(chosen.rejects).items())),
    }


def labels_of(labels: pa.Table, studies: Collection[str]) -> pa.Table:
    """Keep the first row of each of the studies, in order of study_id."""
    # Only the studies of this manifest: a table of labels may be that of a whole archive.
    wanted = labels.filter(pc.is_in(labels["study_id"], pa.array(list(studies), pa.string())))
    first: dict[str, int] = {}
    for row, study in enumerate(wanted["study_id"].to_pylist()):
        first.setdefault(study, row)
    rows = pa.array([first[study] for study in sorted(first)], pa.int64())  # perhaps none
    return wanted.take(rows)
