"""Any table with mapped columns -> images and studies, or studies alone."""

import re
from itertools import count
from pathlib import Path

from medclip_dcl.data.sources.records import (
    SPLITS,
    ColumnsConfig,
    ImageRecord,
    RawStudies,
    ReadSections,
    Reject,
    SourceConfig,
    Study,
    Text,
)
from medclip_dcl.data.tabular import read_rows
from medclip_dcl.errors import ConfigError, StudyError

_FIELD = re.compile(r"\{([^{}]+)\}")
_SPELLINGS = {"val": "validate", "valid": "validate", "validation": "validate", "dev": "validate"}


def read_mapped_table(
    path: Path, root: Path, settings: SourceConfig, read_sections: ReadSections
) -> RawStudies:
    """Read a table by the columns that the settings map.

    Args:
        path: CSV, Parquet or JSON lines.
        root: folder that image paths are relative to.
        settings: settings of the source.
        read_sections: finds sections in the text of a whole report.

    Returns:
        One image per row with a path, and the studies in the order of their first row; images
        alone where no column of text is mapped.

    Raises:
        ConfigError: a column that is needed is not mapped.
        StudyError: the table cannot be read, lacks a column, or holds a split or a size
            of an image that is none.
    """
    names = settings.columns
    has_reports = bool(names.findings or names.impression or names.report)
    if not names.subject_id or not (has_reports or names.path):
        raise ConfigError(
            "source.columns must name subject_id, and path, findings, impression or report"
        )
    fields = names.model_dump(exclude={"path"})
    parts = _FIELD.findall(names.path) or ([names.path] if names.path else [])
    wanted = [*(name for name in fields.values() if name), *parts]
    rows = read_rows(path, wanted, settings.fallback_encoding)
    total = len(rows[names.subject_id])
    blank = [""] * total
    columns = {field: rows[name] if name else blank for field, name in fields.items()}
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
        if names.path:
            view, file = columns["view"][row].strip(), _file(names.path, rows, row)
            size = (_pixels(columns[side][row], row) for side in ("width", "height"))
            images.append(ImageRecord(image_id, study_id, subject, view, file, *size))
        text = _text(columns, row, study_id, read_sections)
        if study_id not in studies or not any(studies[study_id].report):
            studies[study_id] = Study(study_id, subject, text)
        if columns["split"][row]:
            splits.setdefault(subject, set()).add(_split(columns["split"][row], row))
    return RawStudies(
        images=images,
        studies=list(studies.values()) if has_reports else [],
        splits=splits,
        labels=None,
        root=root,
        reports_root=root,
        has_images=bool(names.path),
        rejects=rejects,
        has_reports=has_reports,
    )


def _ids(columns: dict[str, list[str]], names: ColumnsConfig, total: int) -> list[tuple[str, str]]:
    """Give image and study id of every row, made up where the table has none."""
    images, studies = columns["image_id"], columns["study_id"]
    if not names.image_id and not names.study_id:
        made = [f"row-{row:06d}" for row in range(total)]
        return [(name, name) for name in made]
    if not names.image_id:
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
            f"row {row} of the table states no size of its image; mend it, or leave "
            "source.columns.width and height empty"
        )
    return int(side)


def _text(
    columns: dict[str, list[str]], row: int, study_id: str, read_sections: ReadSections
) -> Text:
    findings, impression = columns["findings"][row].strip(), columns["impression"][row].strip()
    if findings or impression:
        return Text(findings, impression, "")
    report = columns["report"][row].replace("\r\n", "\n").replace("\r", "\n")
    return Text(*read_sections(report, study_id))


def _split(name: str, row: int) -> str:
    split = _SPELLINGS.get(name.strip().lower(), name.strip().lower())
    if split not in SPLITS:
        raise StudyError(
            f"row {row} of the table names no split; source.columns.split must hold one of {SPLITS}"
        )
    return split
