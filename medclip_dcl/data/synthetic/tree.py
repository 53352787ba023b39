"""A MIMIC-CXR-shaped tree of generated studies, written by many processes, resumable."""

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from medclip_dcl.artifact import ArtifactType, ArtifactWriter
from medclip_dcl.data.synthetic.faults import (
    FAULT_LIST,
    Planted,
    choose_faults,
    describe_image,
    plant_faults,
    table_faults,
    write_fault_list,
)
from medclip_dcl.data.synthetic.findings import FINE_FINDINGS
from medclip_dcl.data.synthetic.patients import (
    COVERAGE,
    NATURAL,
    Patient,
    draw_image,
    draw_patient,
    image_bytes,
    image_path,
    report_path,
)
from medclip_dcl.data.synthetic.settings import GenerateConfig
from medclip_dcl.data.synthetic.tables import release_tables, summarize, truth_tables
from medclip_dcl.distributed import available_cores
from medclip_dcl.files import write_bytes, write_text
from medclip_dcl.progress import Progress

ARTIFACT = ArtifactType("studies", 2, "generate_studies")

UNIT_PATIENTS = 50
"""Patients in one unit of work: what a kill can lose, some seconds of one core."""

_PARTS = "parts"
_THREADS = 1  # threads of BLAS a process: small products lose time by sharing cores


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


def content_settings(settings: GenerateConfig) -> dict[str, Any]:
    """Give the settings that a tree's content depends on: not where, nor how fast it is written."""
    return settings.model_dump(mode="json", exclude={"root", "workers"})


def write_tree(writer: ArtifactWriter, seed: int, settings: GenerateConfig) -> dict[str, Any]:
    """Write the tree into a draft, going on where a killed run stopped."""
    folder = writer.directory
    for leftover in folder.rglob(".*"):  # files that a kill left half-written
        leftover.unlink()
    (folder / _PARTS).mkdir(exist_ok=True)
    units = list(plan_units(settings))
    pending = [unit for unit in units if not (folder / unit.note).is_file()]
    total = sum(unit.stop - unit.start for unit in units)
    left = sum(unit.stop - unit.start for unit in pending)
    with Progress("patients drawn", total, "patient", done=total - left) as progress:
        _draw_units(folder, pending, seed, settings, progress)
    drawn: dict[str, Any] = {}
    for unit in units:
        drawn |= json.loads((folder / unit.note).read_text(encoding="utf-8"))
    patients = [patient for unit in units for patient in _patients(unit, seed, settings)]
    planted: list[Planted] = []
    if settings.faults:
        planted = choose_faults(patients, drawn, settings.faults, seed)
        patients = plant_faults(folder, patients, drawn, planted, settings.size_px)
    (folder / "truth").mkdir(exist_ok=True)
    spoilt = table_faults(patients, planted)
    tables = release_tables(patients, drawn, spoilt) | truth_tables(patients, drawn)
    if planted:
        tables[FAULT_LIST] = write_fault_list(planted)
    for name, content in tables.items():
        write_bytes(folder / name, content)
    shutil.rmtree(folder / _PARTS)
    return summarize(patients) | ({"faults": len(planted)} if planted else {})


def plan_units(settings: GenerateConfig) -> Iterator[Unit]:
    """Cut the patients into units of work: natural patients, then coverage patients."""
    counts = {
        NATURAL: settings.patients,
        COVERAGE: settings.coverage_images * len(FINE_FINDINGS),
    }
    for origin, count in counts.items():
        for start in range(0, count, UNIT_PATIENTS):
            yield Unit(origin, start, min(start + UNIT_PATIENTS, count))


def write_unit(folder: Path, unit: Unit, seed: int, settings: GenerateConfig) -> Unit:
    """Draw and write the images and reports of one unit, then its note."""
    drawn: dict[str, Any] = {}
    for patient in _patients(unit, seed, settings):
        for study in patient.studies:
            report = folder / report_path(patient, study)
            report.with_suffix("").mkdir(parents=True, exist_ok=True)
            write_text(report, study.text)
            for plan in study.images:
                image = draw_image(patient, study, plan, settings.size_px)
                path = folder / image_path(patient, study, plan)
                write_bytes(path, image_bytes(patient, study, plan, image))
                drawn[plan.dicom_id] = describe_image(image)
    write_text(folder / unit.note, json.dumps(drawn))
    return unit


def _patients(unit: Unit, seed: int, settings: GenerateConfig) -> Iterator[Patient]:
    for number in range(unit.start, unit.stop):
        yield draw_patient(unit.origin, number, seed, settings)


def _draw_units(
    folder: Path, units: list[Unit], seed: int, settings: GenerateConfig, progress: Progress
) -> None:
    workers = min(settings.workers or available_cores(), len(units))
    if workers <= 1:
        with threadpool_limits(_THREADS):
            for unit in units:
                write_unit(folder, unit, seed, settings)
                progress.advance(unit.stop - unit.start)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the parent's BLAS threads
    executor: Executor = ProcessPoolExecutor(
        workers, mp_context=context, initializer=threadpool_limits, initargs=(_THREADS,)
    )
    try:
        futures = [executor.submit(write_unit, folder, unit, seed, settings) for unit in units]
        for future in as_completed(futures):
            unit = future.result()
            progress.advance(unit.stop - unit.start)
    finally:
        executor.shutdown(cancel_futures=True)
