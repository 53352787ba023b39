"""Any table with mapped columns -> images and studies, or studies alone."""

import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import get_args

from medclip_dcl.data.sources.labels import label_table, read_row_labels
from medclip_dcl.data.sources.records import (
    SPLITS,
    Column,
    ImageRecord,
    RawStudies,
    Reject,
    Resolve,
    SourceConfig,
    Study,
    Text,
    find_file,
    read_any,
    take_rows,
)
from medclip_dcl.errors import ConfigError, StudyError
from medclip_dcl.text.sections import read_loose_sections

_ROLES = [role for role in get_args(Column) if role != "labels"]
_FIELD = re.compile(r"\{([^{}]+)\}")
_SPELLINGS = {"val": "validate", "valid": "validate", "validation": "validate", "dev": "validate"}


def read_mapped_table(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Read a table by the columns that the settings map; images alone without a column of text.

    Raises:
        ConfigError: a column that is needed is not mapped.
        StudyError: the table cannot be read, lacks a column, or holds a split, a label or a
            size of an image that is none.
    """
    path = find_file("table", settings.table, root, resolve)
    names = {role: str(settings.columns.get(role, "")) for role in _ROLES}
    file = names.pop("path")
    has_reports = bool(names["findings"] or names["impression"] or names["report"])
    if not names["subject_id"] or not (has_reports or file):
        raise ConfigError(
            "source.columns must name subject_id, and path, findings, impression or report"
        )
    parts = _FIELD.findall(file) or ([file] if file else [])
    wanted = [*(name for name in names.values() if name), *parts]
    table = read_any(path, settings.fallback_encoding)
    rows = take_rows(table, path.name, wanted)
    total = len(rows[names["subject_id"]])
    blank = [""] * total
    columns = {role: rows[name] if name else blank for role, name in names.items()}
    ids = _ids(columns, names, total)
    images: list[ImageRecord] = []
    rejects: list[Reject] = []
    studies: dict[str, Study] = {}
    splits: dict[str, set[str]] = {}
    for row, (image_id, study_id) in enumerate(ids):
        subject = columns["subject_id"][row].strip()
        if not image_id.strip() or not study_id.strip():
            rejects.append(Reject(f"row-{row:06d}", "bad_id"))
            continue
        if not subject:
            rejects.append(Reject(image_id, "no_subject"))
            continue
        if file:
            view, where = columns["view"][row].strip(), _file(file, rows, row)
            size = (_pixels(columns[side][row], row) for side in ("width", "height"))
            images.append(ImageRecord(image_id, study_id, subject, view, where, *size))
        text = _text(columns, row, study_id)
        if study_id not in studies or not any(studies[study_id].report):
            studies[study_id] = Study(study_id, subject, text)
        if columns["split"][row]:
            splits.setdefault(subject, set()).add(_split(columns["split"][row], row))
    labels = None
    if settings.columns.get("labels") and not settings.labels:
        labels = label_table(
            (study_id for _, study_id in ids), read_row_labels(table, path.name, settings)
        )
    return RawStudies(
        root,
        images,
        list(studies.values()) if has_reports else [],
        has_images=bool(file),
        has_reports=has_reports,
        splits=splits,
        labels=labels,
        rejects=rejects,
        tables={"table": path},
    )


def _ids(
    columns: dict[str, list[str]], names: Mapping[str, str], total: int
) -> list[tuple[str, str]]:
    """Give image and study id of every row, made up where the table has none."""
    images, studies = columns["image_id"], columns["study_id"]
    if not names["image_id"] and not names["study_id"]:
        made = [f"row-{row:06d}" for row in range(total)]
        return [(name, name) for name in made]
    if not names["image_id"]:
        counters: dict[str, count[int]] = {}
        return [(f"{s}-{next(counters.setdefault(s, count()))}", s) for s in studies]
    return [(image, study or image) for image, study in zip(images, studies, strict=True)]


def _file(pattern: str, rows: dict[str, list[str]], row: int) -> str:
    """Give the image path of a row, which may be made up from several columns."""
    if pattern in rows:
        return rows[pattern][row].strip()
    return _FIELD.sub(lambda match: rows[match[1]][row].strip(), pattern)


def _pixels(value: str, row: int) -> int:
    """Give a side of an image; 0 where the table leaves it blank."""
    try:
        side = float(value or 0)
    except ValueError:
        side = -1.0
    if not (side >= 0 and side.is_integer()):
        raise StudyError(
            f"row {row} of the table states no size of its image; correct it, or leave "
            "source.columns.width and height empty"
        )
    return int(side)


def _text(columns: dict[str, list[str]], row: int, study_id: str) -> Text:
    findings, impression = columns["findings"][row].strip(), columns["impression"][row].strip()
    if findings or impression:
        return Text(findings, impression, "")
    report = columns["report"][row].replace("\r\n", "\n").replace("\r", "\n")
    return Text(*read_loose_sections(report, study_id))


def _split(name: str, row: int) -> str:
    split = _SPELLINGS.get(name.strip().lower(), name.strip().lower())
    if split not in SPLITS:
        raise StudyError(
            f"row {row} of the table names no split; source.columns.split must hold one of {SPLITS}"
        )
    return split
