"""Boxes, MS-CXR's, another CSV or a column: phrases with boxes, patients that must not train."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.data import table_files
from medclip_dcl.data.records import BoxTable, ImageRecord
from medclip_dcl.data.source_settings import BoxColumn, SourceConfig, relative_to_root

# The image's id may also be the path of its file as `source.columns.path` gives it, and the phrase
# may be the column of the finding.
MS_CXR_COLUMNS: dict[BoxColumn, str] = {  # role -> column of a box table, as MS-CXR names it
    "image_id": "dicom_id",
    "category": "category_name",
    "phrase": "label_text",
    "x": "x",
    "y": "y",
    "width": "w",
    "height": "h",
    "image_width": "image_width",
    "image_height": "image_height",
}

_NUMBERS = ("x", "y", "width", "height", "image_width", "image_height")
_SUBJECT = re.compile(r"(?:^|/)p(\d{3,})(?:/|$)")
_ROUNDED = 1e-3  # by which a fraction may be outside its image
_BOUNDLESS = ("1e9", "1e9")  # pixels; nobody knows the image of this box

_Row = tuple[str, ...]


def read_boxes(
    path: Path,
    images: Iterable[ImageRecord],
    settings: SourceConfig | None = None,
    root: Path | None = None,
) -> BoxTable:
    """Read a box table, such as MS-CXR's CSV.

    The table names `images`, all of the source, by id or by path, which may begin with the root.
    The settings name its columns, where they are not MS-CXR's, and its form. A row that has no box
    at all, such as "No finding", is left out.

    Raises:
        ConfigError: a role that needs a column has none.
        StudyError: a column is missing, a box is not inside its image, or nobody
            states the size of that image.

    Source: PhysioNet, MS-CXR 1.0 and 1.1: x, y, w, h in pixels of the original image.
    """
    settings = settings or SourceConfig()
    relative = relative_to_root(root or path.parent, settings)
    table = list(_table_rows(path, settings))
    images = tuple(images)
    # An id goes before a path of the same name.
    image_of = {image.path: image for image in images if image.path}
    image_of |= {image.image_id: image for image in images}
    rows: list[dict[str, Any]] = []
    subjects: set[str] = set()
    unknown = 0
    for index, (where, values) in enumerate(table):
        name, category, phrase = table_files.clean_id(values[0]), *values[1:3]
        image = image_of.get(name) or image_of.get(relative(name))
        numbers = _numbers((*values[3:7], *_sides(values[7:], image, index)), index)
        # the patient counts also where the image is not at hand: it must not train
        match = _SUBJECT.search(where)
        subject = image.subject_id if image else match[1] if match else ""
        if subject:
            subjects.add(subject)
        if image is None:
            unknown += 1
            continue
        rows.append(_box_row(image, category, phrase, numbers))
    # Boxes of some other images are usual, as of another release; of other images alone, a fault.
    if table and unknown == len(table):
        alike = table_files.would_join(
            (table_files.clean_id(values[0]) for _, values in table), image_of
        )
        if alike:
            raise StudyError(
                f"none of the {unknown} boxes of {path.name} names an image of the source{alike}; "
                "write ids in both tables alike"
            )
    return BoxTable(rows, subjects, unknown)


def boxes_of_image(
    image: ImageRecord,
    boxes: Any,
    phrase: Any,
    category: Any,
    settings: SourceConfig,
    row_number: int,
) -> tuple[list[dict[str, Any]], int]:
    """Read the boxes of an image in a row of a table, and count phrases that have none.

    `boxes`: a list of boxes, or a list of such lists where several belong to a phrase; `phrase`
    and `category`: lists parallel to the outer one, or what all have in common.

    Raises:
        ValueError: the lists differ in length.
        StudyError: a box is not inside its image, or nobody states the size of that image.
    """
    groups = [item or [] for item in boxes or ()]
    if any(group and not isinstance(group[0], list) for group in groups):  # boxes themselves
        groups = [[group] if group else [] for group in groups]
    # An image without boxes still has phrases, which are counted.
    groups = groups or [[] for _ in (phrase if isinstance(phrase, list) else [phrase])]
    words = [
        [str(value or "")] * len(groups)
        if not isinstance(value, list)
        else [str(item or "") for item in value]
        for value in (category, phrase)
    ]
    rows: list[dict[str, Any]] = []
    without = 0
    for kind, text, group in zip(*words, groups, strict=True):
        without += bool(text.strip()) and not group
        for box in group:
            numbers = _numbers(_placed(box, image, settings, row_number), row_number)
            rows.append(_box_row(image, kind, text, numbers))
    return rows, without


def _box_row(
    image: ImageRecord, category: str, phrase: str, numbers: Sequence[float]
) -> dict[str, Any]:
    return {
        "image_id": image.image_id,
        "subject_id": image.subject_id,
        "category": category,
        "phrase": " ".join(phrase.split()),
        **dict(zip(_NUMBERS, numbers, strict=True)),
    }


def _placed(
    box: Any, image: ImageRecord, settings: SourceConfig, row_number: int
) -> Sequence[str | float]:
    # As a row of a box table: left, top, width and height, and the size of the image.
    try:
        x, y, width, height = (n + 0.0 for n in box)
    except (TypeError, ValueError) as error:
        raise _no_box(row_number) from error
    if settings.box_form.startswith("xyxy"):
        width, height = width - x, height - y
    if not settings.box_form.endswith("_fraction"):
        return x, y, width, height, *_sides(("", ""), image, row_number)
    # Where nobody states the size, the image is one wide and one high.
    across, down = (image.width_px, image.height_px) if image.width_px * image.height_px else (1, 1)
    if not (min(x, y) >= -_ROUNDED and max(x + width, y + height) <= 1 + _ROUNDED):
        raise _no_box(row_number)
    # Rounding puts edges a little outside: what is left is the part inside.
    left, top = max(x, 0.0), max(y, 0.0)
    width, height = min(width, 1 - left), min(height, 1 - top)
    return left * across, top * down, width * across, height * down, across, down


def _no_box(row_number: int) -> StudyError:
    return StudyError(
        f"row {row_number} of the box table is not a box inside its image; correct it, or "
        "source.box_form"
    )


def _table_rows(path: Path, settings: SourceConfig) -> Iterator[tuple[str, _Row]]:
    """Yield the path of each row's image, empty where the table has none, and its values."""
    roles = MS_CXR_COLUMNS | settings.box_columns
    empty = [role for role, name in roles.items() if not name and role not in _NUMBERS[4:]]
    if empty:
        raise ConfigError(f"source.box_columns names no column for {empty}; give each one")
    table = table_files.read_any(path, settings.fallback_encoding)
    names = ["path" if "path" in table.column_names else "", *roles.values()]
    named = [column for name in names for column in table_files.pattern_columns(name)]
    table = table_files.take_columns(table, path.name, named)
    paths, *columns = (table_files.fill_pattern(table, path.name, name) for name in names)
    for where, *values in zip(paths, *columns, strict=True):
        row = tuple(values)
        if any(row[3:7]):
            yield where, _from_edges(row) if settings.box_form == "xyxy" else row


def _from_edges(row: _Row) -> _Row:
    # Right and bottom -> width and height; anything but numbers is refused later.
    with suppress(ValueError):
        x, y, right, bottom = (float(value) for value in row[3:7])
        return (*row[:5], str(right - x), str(bottom - y), *row[7:])
    return row


def _sides(stated: _Row, image: ImageRecord | None, row_number: int) -> _Row:
    """Return width and height of a box's image: what its table states, else its image's own."""
    if any(stated):
        return stated
    if image is None:
        return _BOUNDLESS
    if not image.width_px * image.height_px:
        raise StudyError(
            f"row {row_number} of the box table has no size of its image; name it in "
            "source.box_columns, or in source.columns"
        )
    return (str(image.width_px), str(image.height_px))


def _numbers(values: Sequence[str | float], row_number: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except ValueError as error:
        raise StudyError(
            f"row {row_number} of the box table holds no number; correct it"
        ) from error
    x, y, width, height, image_width, image_height = numbers
    # An edge may be rounded up by a pixel.
    is_known = image_width * image_height > 0  # 0: pixels of the image's file
    inside = not is_known or (x + width <= image_width + 1 and y + height <= image_height + 1)
    if not all(math.isfinite(n) and n >= 0 for n in numbers) or not inside or not width * height:
        raise _no_box(row_number)
    return *numbers[:4], int(image_width), int(image_height)
