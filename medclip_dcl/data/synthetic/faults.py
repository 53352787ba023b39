"""Faults planted in a generated tree, each in a ledger: what a check must find, and no more.

Every fault falls on a patient of its own, so that none hides another. What each spoils
is written anew from the plan of the study, so a killed run plants the same again.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from medclip_dcl.data.synthetic.dicom_files import encode_film
from medclip_dcl.data.synthetic.patients import (
    NATURAL,
    FilmPlan,
    Patient,
    Study,
    draw_film,
    film_bytes,
    film_path,
    film_tags,
    report_path,
)
from medclip_dcl.data.synthetic.radiograph import Film
from medclip_dcl.data.synthetic.tables import Item, Row, TableFaults, to_csv
from medclip_dcl.errors import ConfigError
from medclip_dcl.files import write_bytes

LEDGER = "truth/faults.csv"
"""The ledger, relative to the tree's root."""

_OTHER_SPLIT = {"train": "test", "validate": "train", "test": "validate"}
"""Patients of the test split have boxes: put in train they would be a second fault."""

_STREAM = 2  # beside those of natural and coverage patients
_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 5242880\n"
_WEB_PAGE = b"<!DOCTYPE html>\n<html><head><title>503 Service Unavailable</title></head></html>\n"
_HEADERS_ALONE = "%s FINAL REPORT\n EXAMINATION:  CHEST\n \n FINDINGS:\n \n IMPRESSION:\n" % (
    " " * 32
)


class Fault(NamedTuple):
    """A kind of fault: by which code a check names it, on which id, and what it is."""

    code: str
    on: str
    meaning: str


FAULTS: dict[str, Fault] = {
    "trained_box": Fault("boxed_training", "subject_id", "a patient with boxes is put in train"),
    "wrong_split": Fault("two_splits", "subject_id", "one film of a patient is in another split"),
    "copied_study": Fault("same_pixels", "image_id", "another patient's film and report, reused"),
    "lateral_view": Fault("lateral", "image_id", "the only film of the study is a lateral one"),
    "blank_view": Fault("no_view", "image_id", "the table and the file name no view"),
    "repeated_row": Fault("duplicate_id", "image_id", "the metadata table lists the film twice"),
    "missing_film": Fault("missing_image", "image_id", "the film's file is not there"),
    "pointer_film": Fault("pointer_file", "image_id", "a git-LFS pointer stands for the film"),
    "page_for_film": Fault("unknown_format", "image_id", "a web page was saved as the film"),
    "truncated_film": Fault("truncated", "image_id", "the file ends within its pixels"),
    "constant_film": Fault("constant", "image_id", "all pixels are equal"),
    "burned_in_film": Fault("burned_in", "image_id", "BurnedInAnnotation says YES"),
    "missing_report": Fault("no_report", "study_id", "the report's file is not there"),
    "pointer_report": Fault("pointer_file", "study_id", "a git-LFS pointer stands for the report"),
    "empty_report": Fault("empty_report", "study_id", "the report has headers and no text"),
    "foreign_report": Fault("not_utf8", "study_id", "the report is UTF-16 text"),
}
"""Every kind of fault, in the order in which they are planted."""


class Planted(NamedTuple):
    """One planted fault; `other` is the film that was copied, empty for all other kinds."""

    fault: str
    subject_id: str
    study_id: str
    image_id: str
    other: str = ""

    @property
    def code(self) -> str:
        """Code by which a check names it."""
        return FAULTS[self.fault].code

    @property
    def id(self) -> str:
        """Id of the film, study or patient that a check names."""
        return str(getattr(self, FAULTS[self.fault].on))


def choose_faults(
    patients: Sequence[Patient], drawn: Mapping[str, Any], each: int, seed: int
) -> list[Planted]:
    """Choose where faults are planted.

    Args:
        patients: all patients.
        drawn: size and boxes of every film.
        each: faults of each kind.
        seed: seed of the recipe.

    Returns:
        `each` faults of every kind, no two on one patient.

    Raises:
        ConfigError: the tree has too few patients that fit.
    """
    generator = np.random.default_rng((seed, _STREAM))
    order = [patients[int(place)] for place in generator.permutation(len(patients))]
    free = {patient.subject_id: patient for patient in order if patient.origin == NATURAL}
    planted = []
    for fault in FAULTS:
        for _ in range(each):
            item = _take(free, _FITS.get(fault, _is_plain), drawn)
            donor = _take(free, _is_plain, drawn) if fault == "copied_study" else None
            ids = item.patient.subject_id, item.study.study_id, item.film.dicom_id
            planted.append(Planted(fault, *ids, donor.film.dicom_id if donor else ""))
    return planted


def plant_faults(
    folder: Path,
    patients: Sequence[Patient],
    drawn: dict[str, Any],
    planted: Sequence[Planted],
    size_px: int,
) -> list[Patient]:
    """Spoil the files that the ledger names.

    Args:
        folder: the draft's directory, all films and reports written.
        patients: all patients.
        drawn: size and boxes of every film; those of films drawn anew are replaced.
        planted: from `choose_faults`.
        size_px: longer side of a film, pixels.

    Returns:
        The patients as the tables shall describe them.
    """
    found = {patient.subject_id: patient for patient in patients}
    owner = {
        film.dicom_id: Item(patient, study, film)
        for patient in patients
        for study in patient.studies
        for film in study.films
    }
    for place in planted:
        item = owner[place.image_id]
        if place.fault in _REPORTS:
            _write(folder / report_path(item.patient, item.study), _REPORTS[place.fault](item))
        elif place.fault in _FILES:
            data = _FILES[place.fault](item, _drawn_film(item, size_px))
            _write(folder / film_path(item.patient, item.study, item.film), data)
        elif place.fault in _PLANS:
            item, film = _PLANS[place.fault](item, owner.get(place.other, item), size_px)
            path = film_path(item.patient, item.study, item.film)
            _write(folder / path, film_bytes(item.patient, item.study, item.film, film))
            _write(folder / report_path(item.patient, item.study), item.study.text.encode())
            drawn[item.film.dicom_id] = describe_film(film)
            study = replace(item.study, films=(item.film,))
            found[item.patient.subject_id] = replace(item.patient, studies=(study,))
    return list(found.values())


def describe_film(film: Film) -> Row:
    """Say of a drawn film what the tables need.

    Args:
        film: the film.

    Returns:
        Height and width, pixels, and boxes by the name of their finding.
    """
    height, width = film.pixels.shape
    boxes = {finding.name: found for finding, found in film.boxes.items()}
    return {"height": height, "width": width, "boxes": boxes}


def table_faults(patients: Sequence[Patient], planted: Sequence[Planted]) -> TableFaults:
    """Say what is wrong with the tables.

    Args:
        patients: all patients.
        planted: from `choose_faults`.

    Returns:
        Rows to repeat, films to move to another split, films to give boxes.
    """
    split_of = {patient.subject_id: patient.split for patient in patients}
    return TableFaults(
        repeated=frozenset(p.image_id for p in planted if p.fault == "repeated_row"),
        boxed=frozenset(p.image_id for p in planted if p.fault == "trained_box"),
        split_of={
            p.image_id: _OTHER_SPLIT[split_of[p.subject_id]]
            for p in planted
            if p.fault == "wrong_split"
        },
    )


def write_ledger(planted: Sequence[Planted]) -> bytes:
    """Write the ledger.

    Args:
        planted: from `choose_faults`.

    Returns:
        UTF-8 CSV: fault, ids, the copied film, and the code by which a check names it.
    """
    return to_csv([place._asdict() | {"code": place.code} for place in planted])


def read_ledger(root: Path) -> list[Planted]:
    """Read the ledger of a generated tree.

    Args:
        root: folder of the tree.

    Returns:
        The planted faults; none where the tree has no ledger.
    """
    path = root / LEDGER
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [Planted(*(row[name] for name in Planted._fields)) for row in rows]


Fits = Callable[[Patient, Mapping[str, Any]], Item | None]


def _take(free: dict[str, Patient], fits: Fits, drawn: Mapping[str, Any]) -> Item:
    for subject, patient in free.items():
        item = fits(patient, drawn)
        if item is not None:
            del free[subject]
            return item
    raise ConfigError(
        "generate.faults asks for more faults than there are patients to plant them on; "
        "raise generate.patients or lower it"
    )


def _is_plain(patient: Patient, _drawn: Mapping[str, Any]) -> Item | None:
    """Fit patients whose one study has one frontal film."""
    (study, *more) = patient.studies
    if more or len(study.films) != 1:
        return None
    return Item(patient, study, study.films[0])


def _has_two_studies(patient: Patient, _drawn: Mapping[str, Any]) -> Item | None:
    if len(patient.studies) == 1:
        return None
    study = patient.studies[-1]
    return Item(patient, study, study.films[0])


def _has_box_in_train(patient: Patient, drawn: Mapping[str, Any]) -> Item | None:
    item = _is_plain(patient, drawn)
    if item is None or patient.split != "train":
        return None
    return item if drawn[item.film.dicom_id]["boxes"] else None


_FITS: dict[str, Fits] = {"wrong_split": _has_two_studies, "trained_box": _has_box_in_train}


def _drawn_film(item: Item, size_px: int) -> Film:
    return draw_film(item.patient, item.study, item.film, size_px)


def _write(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, data)


def _truncated(item: Item, film: Film) -> bytes:
    storage = replace(item.film.storage, syntax="native")
    data = encode_film(film.pixels, storage, film_tags(item.patient, item.study, item.film))
    return data[: len(data) * 2 // 3]


def _constant(item: Item, film: Film) -> bytes:
    flat = replace(film, pixels=np.full_like(film.pixels, 0.5))
    return film_bytes(item.patient, item.study, item.film, flat)


def _burned_in(item: Item, film: Film) -> bytes:
    tags = replace(film_tags(item.patient, item.study, item.film), burned_in=True)
    return encode_film(film.pixels, item.film.storage, tags)


def _lateral(item: Item, _other: Item, size_px: int) -> tuple[Item, Film]:
    item = replace(item, film=replace(item.film, view="LATERAL"))
    return item, _drawn_film(item, size_px)


def _blank_view(item: Item, _other: Item, size_px: int) -> tuple[Item, Film]:
    film = _drawn_film(item, size_px)
    return replace(item, film=replace(item.film, view="")), film


def _copied(item: Item, other: Item, size_px: int) -> tuple[Item, Film]:
    """Put the other study under this one's ids, its film the other way round in the file."""
    storage = replace(
        other.film.storage, monochrome1=not other.film.storage.monochrome1, syntax="native"
    )
    plan: FilmPlan = replace(item.film, view=other.film.view, storage=storage)
    study: Study = replace(
        item.study, findings=other.study.findings, report=other.study.report, text=other.study.text
    )
    return Item(item.patient, study, plan), _drawn_film(other, size_px)


_REPORTS: dict[str, Callable[[Item], bytes | None]] = {
    "missing_report": lambda _item: None,
    "pointer_report": lambda item: _POINTER % int(item.study.study_id),
    "empty_report": lambda _item: _HEADERS_ALONE.encode(),
    "foreign_report": lambda item: item.study.text.encode("utf-16"),
}
_FILES: dict[str, Callable[[Item, Film], bytes | None]] = {
    "missing_film": lambda _item, _film: None,
    "pointer_film": lambda item, _film: _POINTER % int(item.study.study_id),
    "page_for_film": lambda _item, _film: _WEB_PAGE,
    "truncated_film": _truncated,
    "constant_film": _constant,
    "burned_in_film": _burned_in,
}
_PLANS: dict[str, Callable[[Item, Item, int], tuple[Item, Film]]] = {
    "lateral_view": _lateral,
    "blank_view": _blank_view,
    "copied_study": _copied,
}
"""Faults that change what the tables say of the film, too."""
