"""MS-CXR-shaped box tables: phrases with boxes, and the patients that must not train."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_dcl.errors import StudyError
from medclip_dcl.studies.tabular import read_rows

_COLUMNS = (
    "dicom_id",
    "category_name",
    "label_text",
    "x",
    "y",
    "w",
    "h",
    "image_width",
    "image_height",
)
_SUBJECT = re.compile(r"(?:^|/)p(\d{3,})(?:/|$)")


@dataclass(frozen=True)
class BoxTable:
    """The boxes of known films, and every patient that the table names.

    Attributes:
        rows: one dictionary per box, with the columns of `artifacts.manifest.BOXES`.
        subjects: patients of the table, known films or not.
        unknown: boxes whose film the source does not have.
    """

    rows: list[dict[str, Any]]
    subjects: set[str]
    unknown: int


def read_boxes(path: Path, subject_of: Mapping[str, str]) -> BoxTable:
    """Read a box table; its columns are found by name.

    Args:
        path: CSV with MS-CXR's columns.
        subject_of: film -> patient, all films of the source.

    Returns:
        The boxes, in the table's order.

    Raises:
        StudyError: a column is missing, or a box is no box within its film.

    Source: PhysioNet, MS-CXR 1.1: x, y, w, h in pixels of the original film.
    """
    columns = read_rows(path, list(_COLUMNS))
    paths = _paths(path)
    rows: list[dict[str, Any]] = []
    subjects: set[str] = set()
    unknown = 0
    for place, values in enumerate(zip(*(columns[name] for name in _COLUMNS), strict=True)):
        image_id, category, phrase = values[:3]
        x, y, width, height, image_width, image_height = _numbers(values[3:], place)
        subject = subject_of.get(image_id)
        named = subject or _subject_in(paths, place)
        if named:
            subjects.add(named)
        if subject is None:
            unknown += 1
            continue
        rows.append(
            {
                "image_id": image_id,
                "subject_id": subject,
                "category": category,
                "phrase": " ".join(phrase.split()),
                "x": x,
                "y": y,
                "width": width,
                "height": height,
                "image_width": int(image_width),
                "image_height": int(image_height),
            }
        )
    return BoxTable(rows, subjects, unknown)


def _paths(path: Path) -> list[str]:
    try:
        return read_rows(path, ["path"])["path"]
    except StudyError:
        return []


def _subject_in(paths: list[str], place: int) -> str:
    match = _SUBJECT.search(paths[place]) if paths else None
    return match.group(1) if match else ""


def _numbers(values: tuple[str, ...], place: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except ValueError as error:
        raise StudyError(f"row {place} of the box table holds no number; mend it") from error
    x, y, width, height, image_width, image_height = numbers
    inside = x + width <= image_width + 1 and y + height <= image_height + 1
    if not all(math.isfinite(n) and n >= 0 for n in numbers) or not inside or not width * height:
        raise StudyError(f"row {place} of the box table is no box within its film; mend it")
    return numbers
