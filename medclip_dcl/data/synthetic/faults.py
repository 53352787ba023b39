"""Faults planted in a generated tree, each in a fault list: what a check must find, and no more.

Every fault falls on a patient of its own, so that none hides another. What each spoils
is written again from the plan of the study, so a killed run plants the same again.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from medclip_dcl.data.synthetic.dicom_files import encode_image
from medclip_dcl.data.synthetic.patients import (
    NATURAL,
    ImagePlan,
    Patient,
    Study,
    draw_image,
    image_bytes,
    image_path,
    image_tags,
    report_path,
)
from medclip_dcl.data.synthetic.radiograph import DrawnImage
from medclip_dcl.data.synthetic.tables import Item, Row, TableFaults, to_csv
from medclip_dcl.errors import ConfigError
from medclip_dcl.files import write_bytes

FAULT_LIST = "truth/faults.csv"
"""The fault list, relative to the tree's root."""

_OTHER_SPLIT = {"train": "test", "validate": "train", "test": "validate"}
"""Patients of the test split have boxes: put in train they would be a second fault."""

_STREAM = 2  # next to those of natural and coverage patients
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
    "wrong_split": Fault("two_splits", "subject_id", "one image of a patient is in another split"),
    "copied_study": Fault("same_pixels", "image_id", "another patient's image and report, reused"),
    "lateral_view": Fault("lateral", "image_id", "the only image of the study is a lateral one"),
    "blank_view": Fault("no_view", "image_id", "the table and the file name no view"),
    "repeated_row": Fault("duplicate_id", "image_id", "the metadata table lists the image twice"),
    "missing_image": Fault("missing_image", "image_id", "the image's file is not there"),
    "pointer_image": Fault("pointer_file", "image_id", "a git-LFS pointer stands for the image"),
    "page_for_image": Fault("unknown_format", "image_id", "a web page was saved as the image"),
    "truncated_image": Fault("truncated", "image_id", "the file ends within its pixels"),
    "constant_image": Fault("constant", "image_id", "all pixels are equal"),
    "burned_in_image": Fault("burned_in", "image_id", "BurnedInAnnotation says YES"),
    "missing_report": Fault("no_report", "study_id", "the report's file is not there"),
    "pointer_report": Fault("pointer_file", "study_id", "a git-LFS pointer stands for the report"),
    "empty_report": Fault("empty_report", "study_id", "the report has headers and no text"),
    "foreign_report": Fault("not_utf8", "study_id", "the report is UTF-16 text"),
}
"""Every kind of fault, in the order in which they are planted."""


class Planted(NamedTuple):
    """One planted fault; `other` is the image that was copied, empty for all other kinds."""

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
        """Id of the image, study or patient that a check names."""
        return str(getattr(self, FAULTS[self.fault].on))


def choose_faults(
    patients: Sequence[Patient], drawn: Mapping[str, Any], each: int, seed: int
) -> list[Planted]:
    """Choose where faults are planted.

    Returns:
        `each` faults of every kind, no two on one patient.

    Raises:
        ConfigError: the tree has too few patients that fit.
    """
    generator = np.random.default_rng((seed, _STREAM))
    order = [patients[int(entry)] for entry in generator.permutation(len(patients))]
    free = {patient.subject_id: patient for patient in order if patient.origin == NATURAL}
    planted = []
    for fault in FAULTS:
        for _ in range(each):
            item = _take(free, _FITS.get(fault, _is_plain), drawn)
            donor = _take(free, _is_plain, drawn) if fault == "copied_study" else None
            ids = item.patient.subject_id, item.study.study_id, item.image.dicom_id
            planted.append(Planted(fault, *ids, donor.image.dicom_id if donor else ""))
    return planted


def plant_faults(
    folder: Path,
    patients: Sequence[Patient],
    drawn: dict[str, Any],
    planted: Sequence[Planted],
    size_px: int,
) -> list[Patient]:
    """Spoil the files that the fault list names.

    Args:
        folder: the draft's directory, all images and reports written.
        patients: all patients.
        drawn: size and boxes of every image; those of images drawn again are replaced.
        planted: from `choose_faults`.
        size_px: longer side of an image, pixels.
    """
    found = {patient.subject_id: patient for patient in patients}
    owner = {
        image.dicom_id: Item(patient, study, image)
        for patient in patients
        for study in patient.studies
        for image in study.images
    }
    for entry in planted:
        item = owner[entry.image_id]
        if entry.fault in _REPORTS:
            _write(folder / report_path(item.patient, item.study), _REPORTS[entry.fault](item))
        elif entry.fault in _FILES:
            data = _FILES[entry.fault](item, _drawn_image(item, size_px))
            _write(folder / image_path(item.patient, item.study, item.image), data)
        elif entry.fault in _PLANS:
            item, image = _PLANS[entry.fault](item, owner.get(entry.other, item), size_px)
            path = image_path(item.patient, item.study, item.image)
            _write(folder / path, image_bytes(item.patient, item.study, item.image, image))
            _write(folder / report_path(item.patient, item.study), item.study.text.encode())
            drawn[item.image.dicom_id] = describe_image(image)
            study = replace(item.study, images=(item.image,))
            found[item.patient.subject_id] = replace(item.patient, studies=(study,))
    return list(found.values())


def describe_image(image: DrawnImage) -> Row:
    """Say of a drawn image what the tables need.

    Returns:
        Height and width, pixels, and boxes by the name of their finding.
    """
    height, width = image.pixels.shape
    boxes = {finding.name: found for finding, found in image.boxes.items()}
    return {"height": height, "width": width, "boxes": boxes}


def table_faults(patients: Sequence[Patient], planted: Sequence[Planted]) -> TableFaults:
    """Say what is wrong with the tables.

    Returns:
        Rows to repeat, images to move to another split, images to give boxes.
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


def write_fault_list(planted: Sequence[Planted]) -> bytes:
    """Write the fault list.

    Returns:
        UTF-8 CSV: fault, ids, the copied image, and the code by which a check names it.
    """
    return to_csv([item._asdict() | {"code": item.code} for item in planted])


def read_fault_list(root: Path) -> list[Planted]:
    """Read the fault list of a generated tree.

    Returns:
        The planted faults; none where the tree has no fault list.
    """
    path = root / FAULT_LIST
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
    """Fit patients whose one study has one frontal image."""
    (study, *more) = patient.studies
    if more or len(study.images) != 1:
        return None
    return Item(patient, study, study.images[0])


def _has_two_studies(patient: Patient, _drawn: Mapping[str, Any]) -> Item | None:
    if len(patient.studies) == 1:
        return None
    study = patient.studies[-1]
    return Item(patient, study, study.images[0])


def _has_box_in_train(patient: Patient, drawn: Mapping[str, Any]) -> Item | None:
    item = _is_plain(patient, drawn)
    if item is None or patient.split != "train":
        return None
    return item if drawn[item.image.dicom_id]["boxes"] else None


_FITS: dict[str, Fits] = {"wrong_split": _has_two_studies, "trained_box": _has_box_in_train}


def _drawn_image(item: Item, size_px: int) -> DrawnImage:
    return draw_image(item.patient, item.study, item.image, size_px)


def _write(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, data)


def _truncated(item: Item, image: DrawnImage) -> bytes:
    storage = replace(item.image.storage, syntax="native")
    data = encode_image(image.pixels, storage, image_tags(item.patient, item.study, item.image))
    return data[: len(data) * 2 // 3]


def _constant(item: Item, image: DrawnImage) -> bytes:
    flat = replace(image, pixels=np.full_like(image.pixels, 0.5))
    return image_bytes(item.patient, item.study, item.image, flat)


def _burned_in(item: Item, image: DrawnImage) -> bytes:
    tags = replace(image_tags(item.patient, item.study, item.image), burned_in=True)
    return encode_image(image.pixels, item.image.storage, tags)


def _lateral(item: Item, _other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    item = replace(item, image=replace(item.image, view="LATERAL"))
    return item, _drawn_image(item, size_px)


def _blank_view(item: Item, _other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    image = _drawn_image(item, size_px)
    return replace(item, image=replace(item.image, view="")), image


def _copied(item: Item, other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    """Put the other study under this one's ids, its image the other way round in the file."""
    storage = replace(
        other.image.storage, monochrome1=not other.image.storage.monochrome1, syntax="native"
    )
    plan: ImagePlan = replace(item.image, view=other.image.view, storage=storage)
    study: Study = replace(
        item.study, findings=other.study.findings, report=other.study.report, text=other.study.text
    )
    return Item(item.patient, study, plan), _drawn_image(other, size_px)


_REPORTS: dict[str, Callable[[Item], bytes | None]] = {
    "missing_report": lambda _item: None,
    "pointer_report": lambda item: _POINTER % int(item.study.study_id),
    "empty_report": lambda _item: _HEADERS_ALONE.encode(),
    "foreign_report": lambda item: item.study.text.encode("utf-16"),
}
_FILES: dict[str, Callable[[Item, DrawnImage], bytes | None]] = {
    "missing_image": lambda _item, _image: None,
    "pointer_image": lambda item, _image: _POINTER % int(item.study.study_id),
    "page_for_image": lambda _item, _image: _WEB_PAGE,
    "truncated_image": _truncated,
    "constant_image": _constant,
    "burned_in_image": _burned_in,
}
_PLANS: dict[str, Callable[[Item, Item, int], tuple[Item, DrawnImage]]] = {
    "lateral_view": _lateral,
    "blank_view": _blank_view,
    "copied_study": _copied,
}
"""Faults that change what the tables say about the image, too."""
