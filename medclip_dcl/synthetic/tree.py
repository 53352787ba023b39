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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any

from medclip_dcl.core.artifact import ArtifactType
from medclip_dcl.core.artifact_writer import ArtifactWriter
from medclip_dcl.core.files import remove_staged, write_bytes, write_text
from medclip_dcl.core.progress import Progress, available_cores
from medclip_dcl.data.records import TRUTH
from medclip_dcl.synthetic import GenerateConfig, reports
from medclip_dcl.synthetic.patients import GeneratedImage, draw_patient
from medclip_dcl.synthetic.radiograph import DrawnImage
from medclip_dcl.text.labeler.lexicon import LABELS

ARTIFACT = ArtifactType("studies", 4, "generate_studies")

UNIT_PATIENTS = 50  # patients in one unit of work: what a kill can lose, some seconds of one core

BOX_TABLE = "MS_CXR_Local_Alignment_v1.1.0.csv"
"""Phrases and boxes of test images, relative to the tree's root."""

_PARTS = "parts"
_BOX_COLUMNS = (
    *("category_name", "label_text", "path", "x", "y", "w", "h"),
    *("image_width", "image_height", "dicom_id", "split"),
)

_Row = dict[str, Any]


def write_tree(
    writer: ArtifactWriter, seed: int, settings: GenerateConfig, workers: int
) -> dict[str, Any]:
    """Write the tree into a draft, continuing where a killed run stopped; return its counts."""
    folder = writer.directory
    remove_staged(folder)
    (folder / _PARTS).mkdir(exist_ok=True)
    everyone = range(settings.patients)
    units = [everyone[start : start + UNIT_PATIENTS] for start in everyone[::UNIT_PATIENTS]]
    pending = [unit for unit in units if not _note(folder, unit).is_file()]
    done = len(everyone) - sum(map(len, pending))
    with Progress("patients drawn", len(everyone), "patient", done=done) as progress:
        _draw_units(partial(_write_unit, folder, seed, settings), pending, progress, workers)
    notes = [json.loads(_note(folder, unit).read_text(encoding="utf-8")) for unit in units]
    drawn, boxes = ([row for note in notes for row in note[name]] for name in ("images", "boxes"))
    images = [image for number in everyone for image in draw_patient(number, seed)]
    tables = _release_tables(images, drawn) | _truth_tables(images)
    tables[BOX_TABLE] = _csv_bytes(boxes, _BOX_COLUMNS)
    (folder / "truth").mkdir(exist_ok=True)
    for name, content in tables.items():
        write_bytes(folder / name, content)
    shutil.rmtree(folder / _PARTS)
    studies = len({image.study for image in images})
    return {"patients": len(everyone), "studies": studies, "images": len(images)}


def _note(folder: Path, unit: range) -> Path:
    """File that says a unit is done."""
    return folder / _PARTS / f"{unit.start:07d}-{unit.stop:07d}.json"


def _write_unit(folder: Path, seed: int, settings: GenerateConfig, unit: range) -> int:
    """Draw and write the images and reports of one unit, then its note; count its patients."""
    contents: dict[Path, bytes] = {}
    note: dict[str, list[_Row]] = {"images": [], "boxes": []}  # rows of the tables
    for image in (image for number in unit for image in draw_patient(number, seed)):
        (folder / image.study.path).mkdir(parents=True, exist_ok=True)
        contents[folder / f"{image.study.path}.txt"] = image.study.text.encode()
        picture = image.draw(settings.size_px)
        contents[folder / image.path] = image.encode(picture.pixels)
        height, width = picture.pixels.shape
        row = _ids(image) | {"ViewPosition": image.view, "Rows": height, "Columns": width}
        note["images"].append(row | {"StudyDate": image.study.date})
        if image.study.split == "test":
            note["boxes"] += _box_rows(image, picture)
    with ThreadPoolExecutor() as pool:  # several wait for the disk as long as one
        list(pool.map(write_bytes, contents, contents.values()))
    write_text(_note(folder, unit), json.dumps(note))
    return len(unit)


def _draw_units(
    write: Callable[[range], int], units: list[range], progress: Progress, workers: int
) -> None:
    workers = min(workers or available_cores(), len(units))
    if workers <= 1:
        for unit in units:
            progress.advance(write(unit))
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the parent's threads
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    try:
        futures = [executor.submit(write, unit) for unit in units]
        for future in as_completed(futures):
            progress.advance(future.result())
    finally:
        executor.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this worker where the process that it draws for was killed: nobody else would."""

    def wait() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _release_tables(images: Sequence[GeneratedImage], drawn: list[_Row]) -> dict[str, bytes]:
    """Make the tables that MIMIC-CXR and MIMIC-CXR-JPG ship, by name."""
    labels, listed = [], []
    for study in dict.fromkeys(image.study for image in images):
        own = reports.study_labels(study.statements)
        ids = {"subject_id": study.subject_id, "study_id": study.study_id}
        labels.append(ids | {name: f"{own[name]:.1f}" if name in own else "" for name in LABELS})
        listed.append(ids | {"path": f"{study.path}.txt"})
    zipped = {
        "mimic-cxr-2.0.0-metadata": drawn,
        "mimic-cxr-2.0.0-split": [_ids(image) | {"split": image.study.split} for image in images],
        "mimic-cxr-2.0.0-chexpert": labels,
        "cxr-record-list": [_ids(image) | {"path": image.path} for image in images],
        "cxr-study-list": listed,
    }
    return {
        f"{name}.csv.gz": gzip.compress(_csv_bytes(rows), mtime=0) for name, rows in zipped.items()
    }


def _box_rows(image: GeneratedImage, picture: DrawnImage) -> Iterator[_Row]:
    height, width = picture.pixels.shape
    for finding, boxes in picture.boxes.items():
        category = (*reports.TYPES[finding.type].labels, finding.type.capitalize())[0]
        for box in boxes:
            values = category, reports.gallery_sentence(finding), image.path, *box, width, height
            yield dict(zip(_BOX_COLUMNS, (*values, image.dicom_id, "test"), strict=True))


def _truth_tables(images: Sequence[GeneratedImage]) -> dict[str, bytes]:
    """Make the tables that no release has: what images show, and each sentence's true eta.

    The true eta is the share of frontal training images of which the sentence is true.
    """
    shown = [
        _ids(image)
        | {"types": json.dumps([finding.type for finding in image.study.findings])}
        | {"findings": json.dumps([finding.name for finding in image.study.findings])}
        for image in images
    ]
    training = Counter(
        frozenset(image.study.findings)
        for image in images
        if image.study.split == "train" and image.view != "LATERAL"
    )

    @cache
    def share(meaning: reports.Meaning) -> float:
        true = sum(count for shown, count in training.items() if meaning.holds(shown))
        return round(true / max(training.total(), 1), 6)

    statements = dict.fromkeys(each for image in images for each in image.study.statements)
    eta = [{"text": each.text, "eta": share(each.meaning)} for each in statements]
    return {TRUTH: _csv_bytes(shown), "truth/eta.csv": _csv_bytes(eta)}


def _csv_bytes(rows: Sequence[_Row], columns: Sequence[str] = ()) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def _ids(image: GeneratedImage) -> _Row:
    study = image.study
    return {"dicom_id": image.dicom_id, "study_id": study.study_id, "subject_id": study.subject_id}
