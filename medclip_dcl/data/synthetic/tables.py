"""The tables of a generated tree: MIMIC-CXR's own, an MS-CXR-shaped one, and the truth."""

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medclip_dcl.data.synthetic.findings import FINE_FINDINGS, TYPES, FineFinding
from medclip_dcl.data.synthetic.patients import ImagePlan, Patient, Study, image_path, report_path
from medclip_dcl.data.synthetic.reports import Meaning, Statement, gallery_sentences, study_labels
from medclip_dcl.text.labeler.lexicon import LABELS

Row = dict[str, Any]
Drawn = Mapping[str, Mapping[str, Any]]
"""dicom_id -> height, width and boxes (finding name -> list of x, y, w, h)."""

BOX_TABLE = "MS_CXR_Local_Alignment_v1.1.0.csv"

_VIEW_NAMES = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "": ""}


@dataclass(frozen=True)
class Item:
    """One image with everything that it belongs to."""

    patient: Patient
    study: Study
    image: ImagePlan


@dataclass(frozen=True)
class TableFaults:
    """What is wrong with the tables of a tree that has planted faults.

    Attributes:
        repeated: images that the metadata table lists twice.
        boxed: images of training patients that get boxes.
        split_of: image -> split that differs from its patient's.
    """

    repeated: frozenset[str] = frozenset()
    boxed: frozenset[str] = frozenset()
    split_of: Mapping[str, str] = field(default_factory=dict)


def items(patients: Iterable[Patient]) -> Iterator[Item]:
    """Walk over all images."""
    for patient in patients:
        for study in patient.studies:
            for image in study.images:
                yield Item(patient, study, image)


def release_tables(
    patients: Sequence[Patient],
    drawn: Drawn,
    faults: TableFaults = TableFaults(),
) -> dict[str, bytes]:
    """Make the tables that MIMIC-CXR, MIMIC-CXR-JPG and MS-CXR ship.

    Returns:
        File name, relative to the tree's root -> content.
    """
    images = list(items(patients))
    studies = [(patient, study) for patient in patients for study in patient.studies]
    chexpert = [_labels(patient, study) for patient, study in studies]
    records = [
        _ids(item) | {"path": image_path(item.patient, item.study, item.image)} for item in images
    ]
    reports = [
        {
            "subject_id": patient.subject_id,
            "study_id": study.study_id,
            "path": report_path(patient, study),
        }
        for patient, study in studies
    ]
    split = [
        _ids(item) | {"split": faults.split_of.get(item.image.dicom_id, item.patient.split)}
        for item in images
    ]
    twice = [item for item in images if item.image.dicom_id in faults.repeated]
    metadata = [_metadata(item, drawn) for item in (*images, *twice)]
    boxed = [
        item
        for item in images
        if item.patient.split == "test" or item.image.dicom_id in faults.boxed
    ]
    return {
        "mimic-cxr-2.0.0-metadata.csv.gz": _zipped(metadata),
        "mimic-cxr-2.0.0-split.csv.gz": _zipped(split),
        "mimic-cxr-2.0.0-chexpert.csv.gz": _zipped(chexpert),
        "cxr-record-list.csv.gz": _zipped(records),
        "cxr-study-list.csv.gz": _zipped(reports),
        BOX_TABLE: to_csv(list(_box_rows(boxed, drawn)), _BOX_COLUMNS),
    }


def truth_tables(patients: Sequence[Patient], drawn: Drawn) -> dict[str, bytes]:
    """Make the tables of the truth, which no release has.

    Returns:
        File name, relative to the tree's root -> content.

    Source: ours; rho is the exact share of frontal training images.
    """
    images = list(items(patients))
    shares = _TrainingShares(images)
    counts: Counter[Statement] = Counter()
    spoken: dict[Statement, None] = {}
    for patient in patients:
        for study in patient.studies:
            spoken |= dict.fromkeys(study.report.statements)
            if patient.split == "train":
                counts.update(study.report.statements)
    for finding in FINE_FINDINGS:
        meaning = Meaning(asserted=((finding.type, finding.side, finding.zone),))
        spoken |= dict.fromkeys(Statement(t, "fine", meaning) for t in gallery_sentences(finding))
    statements = [_statement_row(item, shares, counts) for item in spoken]
    statements.sort(key=lambda row: (row["kind"], row["text"]))
    fine = [_fine_row(finding, shares) for finding in FINE_FINDINGS]
    eta = [{"text": row["text"], "eta": row["rho"]} for row in statements]
    gallery = "\n".join(gallery_sentences(finding)[0] for finding in FINE_FINDINGS) + "\n"
    return {
        "truth/images.csv": to_csv([_image_row(item) for item in images]),
        "truth/findings.csv": to_csv(list(_finding_rows(images, drawn)), _FINDING_COLUMNS),
        "truth/statements.csv": to_csv(statements),
        "truth/eta.csv": to_csv(eta),
        "truth/fine.csv": to_csv(fine),
        "truth/gallery.txt": gallery.encode(),
    }


def summarize(patients: Sequence[Patient]) -> Row:
    """Count what a tree holds.

    Returns:
        Counts of patients, studies and images, and frontal images per split.
    """
    images = list(items(patients))
    frontal = Counter(item.patient.split for item in images if item.image.is_frontal)
    texts = {
        statement.text
        for patient in patients
        for study in patient.studies
        for statement in study.report.statements
    }
    return {
        "patients": len(patients),
        "studies": sum(len(patient.studies) for patient in patients),
        "images": len(images),
        "frontal_train": frontal["train"],
        "frontal_validate": frontal["validate"],
        "frontal_test": frontal["test"],
        "distinct_sentences": len(texts),
    }


def to_csv(rows: Sequence[Row], columns: Sequence[str] = ()) -> bytes:
    """Write rows as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(columns or rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


class _TrainingShares:
    """Shares of frontal training images of which a meaning is true."""

    def __init__(self, images: Sequence[Item]) -> None:
        self._sets: Counter[frozenset[FineFinding]] = Counter(
            frozenset(item.study.findings)
            for item in images
            if item.image.is_frontal and item.patient.split == "train"
        )
        self._known: dict[Meaning, float] = {}

    def share(self, meaning: Meaning) -> float:
        if meaning not in self._known:
            true = sum(count for found, count in self._sets.items() if meaning.holds(found))
            self._known[meaning] = true / max(self._sets.total(), 1)
        return self._known[meaning]


_BOX_COLUMNS = (
    "category_name label_text path x y w h image_width image_height dicom_id split".split()  # noqa: SIM905 (a line, not eleven)
)
_FINDING_COLUMNS = "dicom_id study_id finding type side zone severity x y w h".split()  # noqa: SIM905


def _zipped(rows: Sequence[Row]) -> bytes:
    return gzip.compress(to_csv(rows), mtime=0)


def _ids(item: Item) -> Row:
    return {
        "dicom_id": item.image.dicom_id,
        "study_id": item.study.study_id,
        "subject_id": item.patient.subject_id,
    }


def _metadata(item: Item, drawn: Drawn) -> Row:
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


def _labels(patient: Patient, study: Study) -> Row:
    found = study_labels(study.report)
    row: Row = {"subject_id": patient.subject_id, "study_id": study.study_id}
    return row | {name: f"{found[name]:.1f}" if name in found else "" for name in LABELS}


def _box_rows(images: Sequence[Item], drawn: Drawn) -> Iterator[Row]:
    for item in images:
        image = drawn[item.image.dicom_id]
        for finding in item.study.findings:
            labels = TYPES[finding.type].labels
            for x, y, w, h in image["boxes"].get(finding.name, ()):
                category = labels[0] if labels else finding.type.capitalize()
                path = image_path(item.patient, item.study, item.image)
                size = image["width"], image["height"]
                values = category, gallery_sentences(finding)[0], path, x, y, w, h, *size
                yield dict(zip(_BOX_COLUMNS, (*values, item.image.dicom_id, "test"), strict=True))


def _finding_rows(images: Sequence[Item], drawn: Drawn) -> Iterator[Row]:
    for item in images:
        for finding, severity in item.study.findings.items():
            for x, y, w, h in drawn[item.image.dicom_id]["boxes"].get(finding.name, ()):
                named = finding.name, finding.type, finding.side, finding.zone
                ids = item.image.dicom_id, item.study.study_id
                values = *ids, *named, round(severity, 4), x, y, w, h
                yield dict(zip(_FINDING_COLUMNS, values, strict=True))


def _image_row(item: Item) -> Row:
    storage = item.image.storage
    return _ids(item) | {
        "split": item.patient.split,
        "origin": item.patient.origin,
        "view": item.image.view,
        "findings": json.dumps([finding.name for finding in item.study.findings]),
        "syntax": storage.syntax,
        "bits_stored": storage.bits,
        "monochrome1": int(storage.monochrome1),
    }


def _statement_row(
    statement: Statement, shares: _TrainingShares, counts: Counter[Statement]
) -> Row:
    return {
        "text": statement.text,
        "kind": statement.kind,
        "rho": round(shares.share(statement.meaning), 6),
        "count": counts[statement],
        "meaning": statement.meaning.to_json(),
    }


def _fine_row(finding: FineFinding, shares: _TrainingShares) -> Row:
    meaning = Meaning(asserted=((finding.type, finding.side, finding.zone),))
    return {
        "finding": finding.name,
        "type": finding.type,
        "side": finding.side,
        "zone": finding.zone,
        "rho": round(shares.share(meaning), 6),
        "sentences": json.dumps(gallery_sentences(finding)),
    }
