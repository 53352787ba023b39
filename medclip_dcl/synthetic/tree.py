"""A MIMIC-CXR-shaped tree of generated studies, written by many processes, resumable."""

import csv
import gzip
import io
import json
import multiprocessing
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.files import write_bytes, write_text
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.data.records import TRUTH
from medclip_dcl.synthetic import GenerateConfig, reports
from medclip_dcl.synthetic.patients import COVERAGE, NATURAL, Item, Patient, draw_patient
from medclip_dcl.text.labeler.lexicon import LABELS

ARTIFACT = ArtifactType("studies", 3, "generate_studies")

UNIT_PATIENTS = 50  # patients in one unit of work: what a kill can lose, some seconds of one core

BOX_TABLE = "MS_CXR_Local_Alignment_v1.1.0.csv"
"""Phrases and boxes of test images, relative to the tree's root."""

_PARTS = "parts"
_THREADS = 1  # threads of BLAS a process: small products lose time by sharing cores
_VIEW_NAMES = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "": ""}
_BOX_COLUMNS = (
    *("category_name", "label_text", "path", "x", "y", "w", "h"),
    *("image_width", "image_height", "dicom_id", "split"),
)
_COVERAGE = 6  # patients of each fine finding: enough for a median of its boxes

_Row = dict[str, Any]
Drawn = Mapping[str, Mapping[str, Any]]  # dicom_id -> `DrawnImage.facts`


@dataclass(frozen=True)
class Unit:
    """Consecutive patients of one origin: what one process draws at a time."""

    origin: str
    start: int
    stop: int

    @property
    def note(self) -> str:
        """File that says the unit is done, relative to the draft."""
        return f"{_PARTS}/{self.origin}-{self.start:07d}-{self.stop:07d}.json"

    def patients(self, seed: int, validate_share: float) -> Iterator[Patient]:
        """Draw its patients."""
        for number in range(self.start, self.stop):
            yield draw_patient(self.origin, number, seed, validate_share)


def write_tree(
    writer: ArtifactWriter, seed: int, settings: GenerateConfig, workers: int
) -> dict[str, Any]:
    """Write the tree into a draft, continuing where a killed run stopped; return its counts."""
    folder = writer.directory
    for leftover in folder.rglob(".*"):  # files that a kill left half-written
        leftover.unlink()
    (folder / _PARTS).mkdir(exist_ok=True)
    units = list(plan_patients(settings))
    pending = [unit for unit in units if not (folder / unit.note).is_file()]
    total = sum(unit.stop - unit.start for unit in units)
    left = sum(unit.stop - unit.start for unit in pending)
    with Progress("patients drawn", total, "patient", done=total - left) as progress:
        _draw_units(folder, pending, seed, settings, progress, workers)
    drawn: dict[str, Any] = {}
    for unit in units:
        drawn |= json.loads((folder / unit.note).read_text(encoding="utf-8"))
    patients = [
        patient for unit in units for patient in unit.patients(seed, settings.validate_share)
    ]
    (folder / "truth").mkdir(exist_ok=True)
    tables = _release_tables(patients, drawn) | _truth_tables(patients)
    for name, content in tables.items():
        write_bytes(folder / name, content)
    shutil.rmtree(folder / _PARTS)
    return _summarize(patients)


def plan_patients(settings: GenerateConfig) -> Iterator[Unit]:
    """Cut the patients into units of work: natural patients, then coverage patients."""
    counts = {
        NATURAL: settings.patients,
        COVERAGE: min(_COVERAGE, settings.patients // 40) * len(reports.FINE_FINDINGS),
    }
    for origin, count in counts.items():
        for start in range(0, count, UNIT_PATIENTS):
            yield Unit(origin, start, min(start + UNIT_PATIENTS, count))


def write_unit(folder: Path, unit: Unit, seed: int, settings: GenerateConfig) -> Unit:
    """Draw and write the images and reports of one unit, then its note."""
    drawn: dict[str, Any] = {}
    contents: dict[Path, bytes] = {}
    for patient in unit.patients(seed, settings.validate_share):
        for study in patient.studies:
            (folder / study.path).mkdir(parents=True, exist_ok=True)
            contents[folder / study.report_path] = study.text.encode()
        for item in patient.items():
            image = item.draw(settings.size_px)
            contents[folder / item.path] = item.encode(image.pixels)
            drawn[item.image.dicom_id] = image.facts()
    with ThreadPoolExecutor() as pool:  # several wait for the disk as long as one
        list(pool.map(write_bytes, contents, contents.values()))
    write_text(folder / unit.note, json.dumps(drawn))
    return unit


def _draw_units(
    folder: Path,
    units: list[Unit],
    seed: int,
    settings: GenerateConfig,
    progress: Progress,
    workers: int,
) -> None:
    workers = min(workers or available_cores(), len(units))
    if workers <= 1:
        with threadpool_limits(_THREADS):
            for unit in units:
                write_unit(folder, unit, seed, settings)
                progress.advance(unit.stop - unit.start)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the parent's BLAS threads
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_limit_threads)
    try:
        futures = [executor.submit(write_unit, folder, unit, seed, settings) for unit in units]
        for future in as_completed(futures):
            unit = future.result()
            progress.advance(unit.stop - unit.start)
    finally:
        executor.shutdown(cancel_futures=True)


def _limit_threads() -> None:
    # As a function of this module, whose import has loaded BLAS: before, there is nothing to limit.
    threadpool_limits(_THREADS)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker where the process that it draws for was killed: nobody else would."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _release_tables(patients: Sequence[Patient], drawn: Drawn) -> dict[str, bytes]:
    """Make the tables that MIMIC-CXR, MIMIC-CXR-JPG and MS-CXR ship, by name."""
    images = [item for patient in patients for item in patient.items()]
    studies = [(patient.subject_id, study) for patient in patients for study in patient.studies]
    boxed = [item for item in images if item.patient.split == "test"]
    labels = []
    for subject, study in studies:
        own = reports.study_labels(study.report)
        marks = {name: f"{own[name]:.1f}" if name in own else "" for name in LABELS}
        labels.append({"subject_id": subject, "study_id": study.study_id} | marks)
    report_rows = [
        {"subject_id": subject, "study_id": study.study_id, "path": study.report_path}
        for subject, study in studies
    ]
    zipped = {
        "mimic-cxr-2.0.0-metadata.csv.gz": [_metadata(item, drawn) for item in images],
        "mimic-cxr-2.0.0-split.csv.gz": [
            _ids(item) | {"split": item.patient.split} for item in images
        ],
        "mimic-cxr-2.0.0-chexpert.csv.gz": labels,
        "cxr-record-list.csv.gz": [_ids(item) | {"path": item.path} for item in images],
        "cxr-study-list.csv.gz": report_rows,
    }
    tables = {name: gzip.compress(csv_bytes(rows), mtime=0) for name, rows in zipped.items()}
    return tables | {BOX_TABLE: csv_bytes(list(_box_rows(boxed, drawn)), _BOX_COLUMNS)}


def _truth_tables(patients: Sequence[Patient]) -> dict[str, bytes]:
    """Make the tables that no release has: what images show, and each sentence's true eta."""
    images = [item for patient in patients for item in patient.items()]
    shares = _TrainingShares(images)
    studies = [study for patient in patients for study in patient.studies]
    spoken = dict.fromkeys(each for study in studies for each in study.report.statements)
    eta = [
        {"text": item.text, "eta": shares.share(item.meaning)}
        for item in sorted(spoken, key=lambda item: (item.kind, item.text))
    ]
    shown = [_ids(item) | _shown(item) for item in images]
    return {TRUTH: csv_bytes(shown), "truth/eta.csv": csv_bytes(eta)}


def _summarize(patients: Sequence[Patient]) -> _Row:
    images = [item for patient in patients for item in patient.items()]
    studies = [study for patient in patients for study in patient.studies]
    frontal = Counter(item.patient.split for item in images if item.image.is_frontal)
    texts = {statement.text for study in studies for statement in study.report.statements}
    return {
        "patients": len(patients),
        "studies": len(studies),
        "images": len(images),
        "frontal_train": frontal["train"],
        "frontal_validate": frontal["validate"],
        "frontal_test": frontal["test"],
        "distinct_sentences": len(texts),
    }


def csv_bytes(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> bytes:
    """Write rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


class _TrainingShares:
    """Shares of frontal training images of which a meaning is true."""

    def __init__(self, images: Sequence[Item]) -> None:
        self._sets: Counter[frozenset[reports.FineFinding]] = Counter(
            frozenset(item.study.findings)
            for item in images
            if item.image.is_frontal and item.patient.split == "train"
        )
        self._shares: dict[reports.Meaning, float] = {}

    def share(self, meaning: reports.Meaning) -> float:
        if meaning not in self._shares:
            true = sum(count for shown, count in self._sets.items() if meaning.holds(shown))
            self._shares[meaning] = round(true / max(self._sets.total(), 1), 6)
        return self._shares[meaning]


def _ids(item: Item) -> _Row:
    return {
        "dicom_id": item.image.dicom_id,
        "study_id": item.study.study_id,
        "subject_id": item.patient.subject_id,
    }


def _metadata(item: Item, drawn: Drawn) -> _Row:
    size = drawn[item.image.dicom_id]
    portable = item.image.view == "AP"
    procedure = "CHEST (PORTABLE AP)" if portable else "CHEST (PA AND LAT)"
    return {
        "dicom_id": item.image.dicom_id,
        "subject_id": item.patient.subject_id,
        "study_id": item.study.study_id,
        "PerformedProcedureStepDescription": procedure,
        "ViewPosition": item.image.view,
        "Rows": size["height"],
        "Columns": size["width"],
        "StudyDate": item.study.date,
        "StudyTime": item.study.time,
        "ProcedureCodeSequence_CodeMeaning": procedure,
        "ViewCodeSequence_CodeMeaning": _VIEW_NAMES[item.image.view],
        "PatientOrientationCodeSequence_CodeMeaning": "Recumbent" if portable else "Erect",
    }


def _box_rows(images: Sequence[Item], drawn: Drawn) -> Iterator[dict[str, Any]]:
    """Make the rows of the box table of some images."""
    for item in images:
        image = drawn[item.image.dicom_id]
        for finding in item.study.findings:
            labels = reports.TYPES[finding.type].labels
            for x, y, w, h in image["boxes"].get(finding.name, ()):
                category = labels[0] if labels else finding.type.capitalize()
                size = image["width"], image["height"]
                values = category, reports.gallery_sentence(finding), item.path, x, y, w, h, *size
                yield dict(zip(_BOX_COLUMNS, (*values, item.image.dicom_id, "test"), strict=True))


def _shown(item: Item) -> _Row:
    findings = item.study.findings
    return {
        "types": json.dumps([finding.type for finding in findings]),
        "findings": json.dumps([finding.name for finding in findings]),
    }
