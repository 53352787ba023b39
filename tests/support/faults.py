"""Faults planted in a generated tree, each in a fault list: what a check must find, and no more.

    write_spoilt_tree(path, GenerateConfig(patients=38, size_px=64), each=1, seed=0)

Every fault falls on a patient of its own, so that none hides another. What each spoils
is written again from the plan of the study, so a killed run plants the same again.
"""

import csv
import gzip
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from medclip_dcl.core.artifact import Artifact, make_fingerprint, open_artifact
from medclip_dcl.core.artifact_writer import write_artifact
from medclip_dcl.core.files import write_bytes
from medclip_dcl.core.tables import read_table
from medclip_dcl.data import manifest
from medclip_dcl.synthetic import tree
from medclip_dcl.synthetic.patients import NATURAL, Item, Patient
from medclip_dcl.synthetic.radiograph import DrawnImage
from medclip_dcl.synthetic.settings import GenerateConfig
from medclip_dcl.synthetic.tree import BOX_TABLE, plan_patients
from pipelines.report import preflight
from pipelines.report.preflight import read_preflight

FAULT_LIST = "truth/faults.csv"
"""The fault list, relative to the tree's root."""

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


_METADATA, _SPLIT = "mimic-cxr-2.0.0-metadata.csv.gz", "mimic-cxr-2.0.0-split.csv.gz"
# Patients of the test split have boxes: put in train they would be a second fault.
_OTHER_SPLIT = {"train": "test", "validate": "train", "test": "validate"}


def write_spoilt_tree(path: Path, settings: GenerateConfig, each: int, seed: int) -> Artifact:
    """Write a generated tree with `each` faults of every kind, and their list."""

    def spoil(
        folder: Path, patients: Sequence[Patient], drawn: dict[str, Any]
    ) -> tuple[Sequence[Patient], dict[str, bytes]]:
        planted = choose_faults(patients, drawn, each, seed)
        shown = plant_faults(folder, patients, drawn, planted, settings.size_px)
        tables = tree.release_tables(shown, drawn) | tree.truth_tables(shown, drawn)
        tables |= _spoilt_tables(tables, shown, drawn, planted)
        rows = [item._asdict() | {"code": item.code} for item in planted]
        return shown, tables | {FAULT_LIST: tree.csv_bytes(rows)}

    made = {"generate": settings, "seed": seed, "faults": each}
    fingerprint = make_fingerprint(tree.ARTIFACT, made, {})
    with write_artifact(path, tree.ARTIFACT, fingerprint) as writer:
        return writer.commit(tree.write_tree(writer, seed, settings, 0, spoil))


def _spoilt_tables(
    tables: Mapping[str, bytes],
    patients: Sequence[Patient],
    drawn: tree.Drawn,
    planted: Sequence[Planted],
) -> dict[str, bytes]:
    fault_of = {entry.image_id: entry.fault for entry in planted}

    def rows(name: str) -> list[dict[str, str]]:
        text = gzip.decompress(tables[name]).decode()
        return list(csv.DictReader(io.StringIO(text, newline="")))

    listed, split = rows(_METADATA), rows(_SPLIT)
    listed += [row for row in listed if fault_of.get(row["dicom_id"]) == "repeated_row"]
    for row in split:
        if fault_of.get(row["dicom_id"]) == "wrong_split":
            row["split"] = _OTHER_SPLIT[row["split"]]
    images = [item for patient in patients for item in patient.items()]
    boxed = [item for item in images if fault_of.get(item.image.dicom_id) == "trained_box"]
    more = tree.csv_bytes(list(tree.box_rows(boxed, drawn)) or [{}]).partition(b"\n")[2]
    return {
        _METADATA: gzip.compress(tree.csv_bytes(listed), mtime=0),
        _SPLIT: gzip.compress(tree.csv_bytes(split), mtime=0),
        tree.BOX_TABLE: tables[tree.BOX_TABLE] + more,
    }


def choose_faults(
    patients: Sequence[Patient], drawn: Mapping[str, Any], each: int, seed: int
) -> list[Planted]:
    """Choose where `each` faults of every kind are planted, no two on one patient.

    Raises:
        ValueError: the tree has too few patients that fit.
    """
    generator = np.random.default_rng((seed, _STREAM))
    order = [patients[int(entry)] for entry in generator.permutation(len(patients))]
    free = {patient.subject_id: patient for patient in order if patient.origin == NATURAL}
    fitting = {
        "wrong_split": lambda patient: len(patient.studies) > 1,
        "trained_box": lambda patient: _has_box_in_train(patient, drawn),
    }
    planted = []
    for fault in FAULTS:
        for _ in range(each):
            patient = _take(free, fitting.get(fault, _is_plain))
            other = _image_id(_take(free, _is_plain)) if fault == "copied_study" else ""
            ids = patient.subject_id, patient.studies[-1].study_id, _image_id(patient)
            planted.append(Planted(fault, *ids, other))
    return planted


def plant_faults(
    folder: Path,
    patients: Sequence[Patient],
    drawn: dict[str, Any],
    planted: Sequence[Planted],
    size_px: int,
) -> list[Patient]:
    """Spoil the files that `choose_faults` names; give the patients as they are then.

    All images and reports stand in the draft's `folder`. What `drawn` holds of an image that is
    drawn again, its size and boxes, is replaced.
    """
    shown = {patient.subject_id: patient for patient in patients}
    items = {item.image.dicom_id: item for patient in patients for item in patient.items()}
    for entry in planted:
        item = items[entry.image_id]
        if entry.fault in _REPORTS:
            _write(folder / item.study.report_path, _REPORTS[entry.fault](item))
        elif entry.fault in _FILES:
            _write(folder / item.path, _FILES[entry.fault](item, item.draw(size_px)))
        elif entry.fault in _PLANS:
            item, image = _PLANS[entry.fault](item, items.get(entry.other, item), size_px)
            _write(folder / item.path, item.encode(image.pixels))
            _write(folder / item.study.report_path, item.study.text.encode())
            drawn[item.image.dicom_id] = image.facts()
            study = replace(item.study, images=(item.image,))
            shown[item.patient.subject_id] = replace(item.patient, studies=(study,))
    return list(shown.values())


def read_fault_list(root: Path) -> list[Planted]:
    """Read the fault list of a generated tree; none where it has no list."""
    path = root / FAULT_LIST
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [Planted(*(row[name] for name in Planted._fields)) for row in rows]


def _take(free: dict[str, Patient], fits: Callable[[Patient], bool]) -> Patient:
    for subject, patient in free.items():
        if fits(patient):
            return free.pop(subject)
    raise ValueError("there are fewer patients than faults; draw more")


def _is_plain(patient: Patient) -> bool:
    """Whether the one study has one frontal image."""
    return len(list(patient.items())) == 1


def _has_box_in_train(patient: Patient, drawn: Mapping[str, Any]) -> bool:
    plain = patient.split == "train" and _is_plain(patient)
    return plain and bool(drawn[_image_id(patient)]["boxes"])


def _image_id(patient: Patient) -> str:
    return patient.studies[-1].images[0].dicom_id


def _write(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    else:
        write_bytes(path, data)


def _stored_natively(item: Item) -> Item:
    storage = replace(item.image.storage, syntax="native")
    return replace(item, image=replace(item.image, storage=storage))


def _truncated(item: Item, image: DrawnImage) -> bytes:
    data = _stored_natively(item).encode(image.pixels)
    return data[: len(data) * 2 // 3]


def _lateral(item: Item, _other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    item = replace(item, image=replace(item.image, view="LATERAL"))
    return item, item.draw(size_px)


def _blank_view(item: Item, _other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    return replace(item, image=replace(item.image, view="")), item.draw(size_px)


def _copied(item: Item, other: Item, size_px: int) -> tuple[Item, DrawnImage]:
    """Put the other study under this one's ids, its image the other way round in the file."""
    storage = _stored_natively(other).image.storage
    storage = replace(storage, monochrome1=not storage.monochrome1)
    image = replace(item.image, view=other.image.view, storage=storage)
    shown = other.study
    study = replace(item.study, findings=shown.findings, report=shown.report, text=shown.text)
    return Item(item.patient, study, image), other.draw(size_px)


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
    "constant_image": lambda item, image: item.encode(np.full_like(image.pixels, 0.5)),
    "burned_in_image": lambda item, image: item.encode(image.pixels, burned_in=True),
}
# Faults that change what the tables say about the image, too.
_PLANS: dict[str, Callable[[Item, Item, int], tuple[Item, DrawnImage]]] = {
    "lateral_view": _lateral,
    "blank_view": _blank_view,
    "copied_study": _copied,
}


# --- What a manifest and a check name, against the fault list

SEED = 0
"""Of the trees that `compare` looks at."""
Named = set[tuple[str, str]]
"""Code and id."""
_TEXT_FAULTS = {"missing_report", "pointer_report", "empty_report", "foreign_report"}
_GATE = {"truncated", "unknown_format", "constant", "burned_in"}
_CHECK_ALONE = _GATE | {"same_pixels", "two_splits", "boxed_training"}
"""Codes that no reject of the manifest bears."""


def expected_rejects(planted: Sequence[Planted], images: Sequence[dict[str, str]]) -> Named:
    """Give reason and id of what the manifest must leave out.

    That is what was planted, every lateral image that was drawn, and the images of studies whose
    report is spoilt.
    """
    named = {(item.code, item.id) for item in planted if item.code not in _CHECK_ALONE}
    named |= {("lateral", row["dicom_id"]) for row in images if row["view"] == "LATERAL"}
    return named | {("no_report", image) for image in _images_without_report(planted, images)}


def expected_findings(
    planted: Sequence[Planted], images: Sequence[dict[str, str]], same_text: Iterable[str]
) -> Named:
    """Give code and id of what the check must find; `same_text` repeat an earlier study's text."""
    split_of = {row["dicom_id"]: row["split"] for row in images}
    named = {(item.code, item.id) for item in planted if item.code != "same_pixels"}
    for item in planted:
        if item.code == "same_pixels":
            later = max(item.image_id, item.other)
            named.add(("same_pixels", later))
            if split_of[item.image_id] != split_of[item.other]:
                named.add(("pixels_across_splits", later))
    named |= {("lateral", row["dicom_id"]) for row in images if row["view"] == "LATERAL"}
    gone = _images_without_report(planted, images)
    named |= {("image_without_report", image) for image in gone}
    closed = {p.image_id for p in planted if p.code in _GATE - {"constant"}}
    closed |= gone | {p.image_id for p in planted if p.fault in {"missing_image", "pointer_image"}}
    named |= {
        ("monochrome1", row["dicom_id"])
        for row in images
        if row["monochrome1"] == "1"
        and row["view"] in {"AP", "PA"}
        and row["dicom_id"] not in closed
    }
    return named | {("same_text", study) for study in same_text}


def studies_with_same_text(
    planted: Sequence[Planted], images: Sequence[dict[str, str]], usable: set[str], patients: int
) -> set[str]:
    """Find studies that repeat an earlier one's text, from the plan and not from the files.

    `usable` are those in the manifest; the first of each text is left out.
    """
    settings = GenerateConfig(patients=patients)
    texts = {
        study.study_id: " ".join(" ".join(study.report.sections.values()).split())
        for unit in plan_patients(settings)
        for patient in unit.patients(SEED, settings.validate_share)
        for study in patient.studies
    }
    study_of = {row["dicom_id"]: row["study_id"] for row in images}
    for item in planted:
        if item.other:
            texts[item.study_id] = texts[study_of[item.other]]
    groups: dict[str, list[str]] = defaultdict(list)
    for study in sorted(usable):
        groups[texts[study]].append(study)
    return {study for group in groups.values() for study in group[1:]}


def compare(work: Path, patients: int) -> tuple[dict[str, float], list[str]]:
    """Hold what both jobs named against the fault list and the truth.

    Gives figures, and the lines of a table: per code what was there and what was found.
    """
    planted = read_fault_list(work / "studies")
    with (work / "studies/truth/images.csv").open(encoding="utf-8", newline="") as stream:
        drawn_images = list(csv.DictReader(stream))
    images, reports, left_out = (
        read_table(manifest.ARTIFACT.at(work), form).to_pylist()
        for form in (manifest.IMAGES, manifest.REPORTS, manifest.REJECTS)
    )
    rejects = {(row["reason"], row["id"]) for row in left_out}
    artifact = open_artifact(preflight.ARTIFACT.at(work), preflight.ARTIFACT)
    table = read_table(artifact.path, preflight.FOUND).to_pylist()
    found = {(row["code"], row["id"]) for row in table}
    usable = {row["study_id"] for row in reports}
    same_text = studies_with_same_text(planted, drawn_images, usable, patients)
    wanted = expected_findings(planted, drawn_images, same_text)
    wanted_rejects = expected_rejects(planted, drawn_images)
    lines = [f"{'code':24}{'there':>8}{'found':>8}{'missed':>8}{'invented':>10}"]
    for code in sorted({code for code, _ in wanted | found}):
        there, seen = ({i for c, i in named if c == code} for named in (wanted, found))
        lines.append(
            f"{code:24}{len(there):8}{len(seen):8}{len(there - seen):8}{len(seen - there):10}"
        )
    tree = read_preflight(artifact)
    looked_at = read_table(artifact.path, preflight.IMAGES).to_pylist()
    opened = {row["image_id"] for row in looked_at if row["source"]}
    bits = Counter(row["bits_stored"] for row in drawn_images if row["dicom_id"] in opened)
    figures = {
        "studies": len({row["study_id"] for row in drawn_images}),
        "images": len(drawn_images),
        "planted": len(planted),
        "kinds_of_fault": len({item.fault for item in planted}),
        "manifest_missed": len(wanted_rejects - rejects),
        "manifest_invented": len(rejects - wanted_rejects),
        "check_missed": len(wanted - found),
        "check_invented": len(found - wanted),
        "bit_depths_differ": float(dict(bits) != tree["images"]["bits"]),
        "leaks": leaks(work, images, reports),
    }
    return figures, lines


def leaks(work: Path, images: Sequence[dict[str, Any]], reports: Sequence[dict[str, Any]]) -> int:
    """Count patients in two splits of the manifest, and patients of the box table that train."""
    splits: dict[str, set[str]] = defaultdict(set)
    for row in (*images, *reports):
        splits[row["subject_id"]].add(row["split"])
    with (work / "studies" / BOX_TABLE).open(encoding="utf-8", newline="") as stream:
        boxed = {row["path"].split("/")[2][1:] for row in csv.DictReader(stream)}
    both = sum(len(found) > 1 for found in splits.values())
    return both + sum("train" in splits[subject] for subject in boxed & splits.keys())


def _images_without_report(
    planted: Sequence[Planted], images: Sequence[dict[str, str]]
) -> set[str]:
    spoilt = {item.study_id for item in planted if item.fault in _TEXT_FAULTS}
    return {
        row["dicom_id"]
        for row in images
        if row["study_id"] in spoilt and row["view"] in {"AP", "PA"}
    }
