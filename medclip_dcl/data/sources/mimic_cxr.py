"""MIMIC-CXR and MIMIC-CXR-JPG: the release's tables -> images and studies."""

import re
from pathlib import Path

import pyarrow as pa

from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data.dicom.metadata import read_header
from medclip_dcl.data.records import ImageRecord, RawStudies, Reject, Study
from medclip_dcl.data.source_settings import Resolve, SourceConfig
from medclip_dcl.data.sources.labels import read_codes
from medclip_dcl.data.table_files import clean_id, read_rows
from medclip_dcl.text.labeler.lexicon import LABELS

_IDS = ("dicom_id", "subject_id", "study_id")
_TABLES = ("metadata", "split", "chexpert")
_RECORD_LIST = "cxr-record-list"
_SUFFIXES = (".dcm", ".jpg", ".jpeg", ".png")
_LOOKED_AT = 200  # images looked for, one after the other, to learn how images end
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")


def read_mimic_cxr(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Read the tables of a release; no report is opened, and no image for its pixels.

    Raises:
        StudyError: neither metadata nor record list is there, a table exists twice, cannot be
            read or lacks a column.

    Source: PhysioNet, MIMIC-CXR 2.1, MIMIC-CXR-JPG 2.0 and 2.1. Views come from ViewPosition:
        the code-meaning columns of the metadata table can be shifted. Without that table
        they come from the headers of the DICOM files.
    """
    tables = _find_tables(resolve(settings.tables) if settings.tables else root)
    has_views = "metadata" in tables
    listed = tables["metadata"] if has_views else tables["records"]
    rows = read_rows(listed, [*_IDS, "ViewPosition"] if has_views else _IDS)
    views = rows.get("ViewPosition", [""] * len(rows["dicom_id"]))
    images: list[ImageRecord] = []
    rejects: list[Reject] = []
    studies: dict[str, Study] = {}
    suffix = ""
    for row, (image_id, subject, study, view) in enumerate(
        zip(*(map(clean_id, rows[name]) for name in _IDS), views, strict=True)
    ):
        if not all(_ID.fullmatch(name) for name in (image_id, subject, study)):
            rejects.append(Reject(f"row-{row:06d}", "bad_id"))
            continue
        # The release names no paths: they follow from the ids.
        folder = f"files/p{subject[:2]}/p{subject}/s{study}"
        # Both releases have the same tables: only a file says whether images are DICOM or JPEG.
        if not suffix and row < _LOOKED_AT:
            suffix = _suffix(root / folder / image_id)
        images.append(ImageRecord(image_id, study, subject, view.strip(), f"{folder}/{image_id}"))
        studies.setdefault(study, Study(study, subject, f"{folder}.txt"))
    # Where none was found, they are missing under any ending.
    images = [image._replace(path=f"{image.path}{suffix or _SUFFIXES[0]}") for image in images]
    if not has_views:
        images = [image._replace(view=_view(root / image.path)) for image in images]
    return RawStudies(
        root,
        images,
        list(studies.values()),
        reports_folder=resolve(settings.reports) if settings.reports else None,
        splits=_splits(tables.get("split")),
        labels=_labels(tables.get("chexpert")),
        rejects=rejects,
        tables=tables,
    )


def _find_tables(root: Path) -> dict[str, Path]:
    """Find the tables, plain or gzipped; the record list stands in for missing metadata."""
    tables = {}
    for name in (*_TABLES, _RECORD_LIST):
        shape = name if name == _RECORD_LIST else f"*-{name}"
        paths = sorted(path for end in ("csv", "csv.gz") for path in root.glob(f"{shape}.{end}"))
        # Such as tables of two versions: their rows differ, and none is the right one.
        if len(paths) > 1:
            raise StudyError(f"{root} holds {len(paths)} tables named {name}; keep one")
        if paths:
            tables["records" if name == _RECORD_LIST else name] = paths[0]
    if "metadata" in tables:
        tables.pop("records", None)
    elif "records" not in tables:
        raise StudyError(
            f"{root} holds no table *-metadata.csv and no {_RECORD_LIST}.csv, nor their .csv.gz; "
            "set source.root or source.tables"
        )
    return tables


def _suffix(stem: Path) -> str:
    return next((end for end in _SUFFIXES if stem.with_name(stem.name + end).is_file()), "")


def _view(path: Path) -> str:
    header = read_header(path) if path.is_file() else None
    return header.view if header else ""


def _splits(path: Path | None) -> dict[str, set[str]]:
    splits: dict[str, set[str]] = {}
    if path is None:
        return splits
    rows = read_rows(path, ["subject_id", "split"])
    for row, (subject, split) in enumerate(zip(rows["subject_id"], rows["split"], strict=True)):
        if split not in SPLITS:
            raise StudyError(f"row {row} of {path.name} names no split; give one of {SPLITS}")
        # The table is by image; `assign_splits` makes one split of a patient's.
        splits.setdefault(clean_id(subject), set()).add(split)
    return splits


def _labels(path: Path | None) -> pa.Table | None:
    if path is None:
        return None
    columns = read_rows(path, ["study_id", *LABELS])
    codes = read_codes(((name, columns[name]) for name in LABELS), path.name)
    labels = {name: pa.array(values, pa.int8()) for name, values in codes.items()}
    studies = pa.array(map(clean_id, columns["study_id"]), pa.string())
    return pa.table({"study_id": studies, **labels})
