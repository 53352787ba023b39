"""MIMIC-CXR and MIMIC-CXR-JPG: the release's tables -> films and studies."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifacts.manifest import LABELS, SPLITS
from medclip_dcl.config.studies import SourceConfig
from medclip_dcl.errors import StudyError
from medclip_dcl.studies.records import Film, RawStudies, Reject, Study
from medclip_dcl.studies.tabular import read_any, read_rows

_TABLES = {"metadata": True, "split": False, "chexpert": False}
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")


def find_tables(root: Path) -> dict[str, Path]:
    """Find the release's tables in its root.

    Args:
        root: folder that holds `files/` and the tables.

    Returns:
        `metadata`, and `split` and `chexpert` where they exist -> path.

    Raises:
        StudyError: the metadata table is missing, or a table exists twice.
    """
    found = {}
    for name, required in _TABLES.items():
        paths = sorted(
            path for suffix in ("csv", "csv.gz") for path in root.glob(f"*-{name}.{suffix}")
        )
        if len(paths) > 1:
            raise StudyError(f"{root} holds {len(paths)} tables named {name}; keep one")
        if not paths and required:
            raise StudyError(f"{root} holds no table *-{name}.csv or .csv.gz; set source.root")
        if paths:
            found[name] = paths[0]
    return found


def read_mimic_cxr(
    tables: dict[str, Path], root: Path, reports_root: Path, settings: SourceConfig
) -> RawStudies:
    """Read the tables of a release; no film and no report is opened.

    Args:
        tables: from `find_tables`.
        root: folder of the release.
        reports_root: folder whose `files/` holds the reports.
        settings: settings of the source.

    Returns:
        Every film with a sound id, in the order of the metadata table, and its study.

    Raises:
        StudyError: a table cannot be read or lacks a column.

    Source: PhysioNet, MIMIC-CXR 2.1 and MIMIC-CXR-JPG 2.1. Views come from ViewPosition: the
        code-meaning columns of the metadata table can be shifted.
    """
    rows = read_rows(tables["metadata"], ["dicom_id", "subject_id", "study_id", "ViewPosition"])
    films: list[Film] = []
    rejects: list[Reject] = []
    studies: dict[str, Study] = {}
    for image_id, subject, study, view in zip(
        rows["dicom_id"], rows["subject_id"], rows["study_id"], rows["ViewPosition"], strict=True
    ):
        if not all(_ID.fullmatch(name) for name in (image_id, subject, study)):
            rejects.append(Reject(image_id, "bad_id"))
            continue
        folder = f"files/p{subject[:2]}/p{subject}/s{study}"
        path = f"{folder}/{image_id}{settings.image_suffix}"
        films.append(Film(image_id, study, subject, view.strip(), path))
        studies.setdefault(study, Study(study, subject, f"{folder}.txt"))
    return RawStudies(
        films=films,
        studies=list(studies.values()),
        splits=_splits(tables.get("split")),
        labels=_labels(tables.get("chexpert")),
        root=root,
        reports_root=reports_root,
        has_films=True,
        rejects=rejects,
    )


def _splits(path: Path | None) -> dict[str, set[str]]:
    splits: dict[str, set[str]] = {}
    if path is None:
        return splits
    rows = read_rows(path, ["subject_id", "split"])
    for subject, split in zip(rows["subject_id"], rows["split"], strict=True):
        if split not in SPLITS:
            raise StudyError(f"table {path.name} names split {split!r}; it must be one of {SPLITS}")
        splits.setdefault(subject, set()).add(split)
    return splits


def _labels(path: Path | None) -> pa.Table | None:
    if path is None:
        return None
    table = read_any(path)
    missing = {"study_id", *LABELS} - set(table.column_names)
    if missing:
        raise StudyError(f"table {path.name} lacks {sorted(missing)}; give CheXpert's 14 labels")
    columns = {"study_id": table.column("study_id")}
    for name in LABELS:
        values = pc.cast(pc.cast(table.column(name), pa.float64()), pa.int8())
        columns[name] = values
    return pa.table(columns)
