"""Any table with mapped columns -> images and studies, or studies alone."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pyarrow as pa

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.tables import SPLITS
from medclip_dcl.data import table_files
from medclip_dcl.data.records import (
    BoxTable,
    ImageRecord,
    RawStudies,
    Reject,
    ReportText,
    Study,
    TableRows,
    Text,
)
from medclip_dcl.data.source_settings import (
    Column,
    Resolve,
    SourceConfig,
    find_file,
    relative_to_root,
)
from medclip_dcl.data.sources.boxes import boxes_of_image
from medclip_dcl.data.sources.labels import label_table, read_row_labels

_BOXES: tuple[Column, ...] = ("boxes", "phrase", "category")
_ROLES: list[Column] = [role for role in get_args(Column) if role not in {"labels", *_BOXES}]
_IDS = ("image_id", "study_id", "subject_id")
_OF_IMAGES = ("image_id", "view", "width", "height")  # may be lists, parallel to the images
SPELLINGS = {"val": "validate", "valid": "validate", "validation": "validate", "dev": "validate"}
"""Name of a split -> ours."""

_Cell = str | list[str]


class RowFile(NamedTuple):
    """A file of rows; `name`: how ids that are made up begin, `split`: ours, or empty."""

    path: Path
    name: str = "row"
    split: str = ""


def read_mapped_table(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Read the table `source.table` as `read_row_files`."""
    named = settings.table if isinstance(settings.table, dict) else {"": settings.table}
    files = [
        RowFile(find_file("table", name, root, resolve), split=split)
        for split, name in named.items()
    ]
    return read_row_files(root, files, settings)


def read_row_files(root: Path, files: Sequence[RowFile], settings: SourceConfig) -> RawStudies:
    """Read rows by the columns that the settings map; images alone without a column of text.

    Several files with one name are read as one, in order. Of a file no more than a part is in
    memory at a time, next to the records made of it.

    Raises:
        ConfigError: a column that is needed is not mapped, or a setting that goes with it.
        StudyError: a file cannot be read, lacks a column, or holds a split, a label, a box or a
            size of an image that is none.
    """
    names, boxed, of_labels = _mapped_roles(settings)
    _require_roles(names, boxed, settings, has_splits=all(file.split for file in files))
    wanted, image = mapped_columns(settings)
    wanted += [image] if image else []
    # Both say where images are; the other roles, what is said of them.
    names["image"] = names.pop("path") or image
    has_images = bool(names["image"])
    listed = {*_OF_IMAGES, *(["image"] if image else [])}
    records = _RowRecords(settings, relative_to_root(root, settings))
    labels: list[pa.Table] = []
    for file in files:
        # Rows are counted over all files, so that a fault can be shown in its own file.
        records.rows.files.append((records.total, file.path.name))
        for part in table_files.read_columns(file.path, wanted, settings.fallback_encoding):
            columns = {
                role: _role_values(part, name, file.path.name, listed=role in listed)
                for role, name in names.items()
                if name
            }
            columns |= {role: [*map(_cleaned, columns[role])] for role in _IDS if role in columns}
            lists = {role: part.column(name) for role, name in boxed.items() if name}
            for row in range(part.num_rows):
                values = {role: column[row] for role, column in columns.items()}
                records.add(file, values, {role: x[row].as_py() for role, x in lists.items()})
            labels += [part.select(of_labels)] if of_labels else []
    has_reports = bool(names["findings"] or names["impression"] or names["report"])
    found_labels = None
    if labels:
        # Permissive: a part whose labels are all blank has another type than the others.
        joined = pa.concat_tables(labels, promote_options="permissive")
        read = read_row_labels(joined, files[0].path.name, settings, records.counts)
        found_labels = label_table(records.study_of_row, read, settings.findings)
    several = len(files) > 1
    return RawStudies(
        root,
        records.images,
        list(records.studies.values()) if has_reports else [],
        has_images=has_images,
        has_reports=has_reports,
        splits=records.splits,
        labels=found_labels,
        rejects=records.rejects,
        tables={f"{x.name}/{x.path.name}" if several else "table": x.path for x in files},
        rows=records.rows,
        boxes=records.boxes if boxed["boxes"] else None,
        counts=dict(records.counts),
        by_patient=not settings.is_anonymous,
    )


def _role_values(table: pa.Table, name: str, file: str, *, listed: bool = False) -> list[_Cell]:
    """Make a value for each row, or a list: of a column, made from several, or the same in all."""
    column = table.column(name) if listed and name in table.column_names else None
    if column is None or not table_files.is_list(column.type):
        return list(table_files.fill_pattern(table, file, name))
    if pa.types.is_nested(column.type.value_type):
        raise StudyError(f"column {name!r} of {file} holds lists of lists; map a simpler column")
    lists = column.cast(pa.list_(pa.string())).to_pylist()
    return [[value or "" for value in values or ()] for values in lists]


def mapped_columns(settings: SourceConfig) -> tuple[list[str], str]:
    """Name the columns that the settings map, and that of images."""
    names, boxed, of_labels = _mapped_roles(settings)
    image = names.pop("image")
    named = (*names.values(), *boxed.values())
    columns = [column for name in named for column in table_files.pattern_columns(name)]
    return list(dict.fromkeys([*columns, *of_labels])), image


def _mapped_roles(settings: SourceConfig) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Map role -> column, of rows and of boxes, and the columns of labels."""
    names: dict[str, str] = {role: str(settings.columns.get(role, "")) for role in _ROLES}
    boxed: dict[str, str] = {role: str(settings.columns.get(role, "")) for role in _BOXES}
    named = "" if settings.labels else settings.columns.get("labels", "")
    of_labels = [named] if isinstance(named, str) else list(dict.fromkeys(named.values()))
    return names, boxed, [name for name in of_labels if name]


def _require_roles(
    names: Mapping[str, str], boxed: Mapping[str, str], settings: SourceConfig, *, has_splits: bool
) -> None:
    """Refuse settings that name no column of a role which is needed; ConfigError."""
    needed = ("path", "image", "findings", "impression", "report")
    if not any(names[role] for role in needed):
        raise ConfigError(f"source.columns must name one of {', '.join(needed)}")
    if names["path"] and names["image"]:
        raise ConfigError("source.columns names path and image; name one of them")
    if not names["subject_id"] and not settings.is_anonymous:
        raise ConfigError(
            "source.columns must name subject_id, since splits are made by patient; where the "
            'table names no patients at all, set it to ""'
        )
    if settings.is_anonymous and not (has_splits or names["split"]):
        raise ConfigError(
            'source.columns.subject_id is "": without patients the table\'s own splits alone are '
            "taken; name source.columns.split"
        )
    if boxed["boxes"] and not settings.box_form:
        raise ConfigError("source.columns.boxes needs source.box_form, such as xywh or xyxy")
    if boxed["boxes"] and settings.boxes:
        raise ConfigError("source.columns.boxes and source.boxes both name boxes; name one")
    if bool(boxed["boxes"]) != bool(boxed["phrase"] or boxed["category"]):
        raise ConfigError("source.columns must name boxes with phrase or category, or none of them")


@dataclass
class _RowRecords:
    """Records made of the rows so far."""

    settings: SourceConfig
    relative: Callable[[str], str]  # path as the table has it -> relative to the root
    images: list[ImageRecord] = field(default_factory=list)
    studies: dict[str, Study] = field(default_factory=dict)
    splits: dict[str, set[str]] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    study_of_row: list[str] = field(default_factory=list)
    boxes: BoxTable = field(default_factory=lambda: BoxTable([], set(), 0))
    counts: Counter[str] = field(default_factory=Counter)
    rows: TableRows = field(default_factory=TableRows)
    total: int = 0  # rows so far
    rows_of: Counter[str] = field(default_factory=Counter)  # name of files -> rows so far
    images_of: Counter[str] = field(default_factory=Counter)  # study -> images so far

    def add(self, file: RowFile, values: Mapping[str, _Cell], lists: Mapping[str, Any]) -> None:
        """Add a row; `values` by role, `lists`: boxes and what is parallel to them."""
        number = self.rows_of[file.name]
        self.rows_of[file.name] += 1
        self.total += 1
        # Ids that are made up depend on the row alone: they stay when the table grows at its end.
        made = f"{file.name}-{number:06d}"
        text = {role: value for role, value in values.items() if isinstance(value, str)}
        paths = values.get("image", "")
        several = isinstance(paths, list)
        count = len(paths) if several else 1
        if "study_id" not in values and "image_id" not in text:
            study_id = made
        else:
            study_id = text.get("study_id", "") or text.get("image_id", "")
        # Also of rows that are rejected below: labels are joined row by row.
        self.study_of_row.append(study_id)
        self.rows.note(study_id, self.total - 1)
        # Nobody can say which of the images a shorter list leaves out.
        if any(isinstance(value, list) and len(value) != count for value in values.values()):
            self._reject(made, "bad_row")
            return
        of_images = [_of_image(values, k) for k in range(count)]
        image_ids = [
            self._image_id(values, own, f"-{k}" if several else "", study_id, made)
            for k, own in enumerate(of_images)
        ]
        for name in image_ids:
            self.rows.note(name, self.total - 1)
        subject = study_id if self.settings.is_anonymous else text.get("subject_id", "")
        if not study_id or not all(image_ids):
            self._reject(f"row-{number:06d}", "bad_id")
            return
        if not subject:
            for name in image_ids or [made]:
                self._reject(name, "no_subject")
            return
        images = [
            ImageRecord(
                name,
                study_id,
                subject,
                own.get("view", "").strip(),
                self.relative(own.get("image", "").strip()),
                *(_pixels(own.get(side, "").strip(), number) for side in ("width", "height")),
            )
            for name, own in zip(image_ids, of_images, strict=True)
        ]
        if lists and not self._add_boxes(images, lists, number, several=several):
            self._reject(made, "bad_row")
            return
        if "image" in values:
            self._add_images(images, made)
        self._add_study(study_id, subject, _text(text))
        # The file's split is the source's word; a column counts where files have none.
        split = file.split or (text.get("split") and _split_name(text["split"], number))
        if split:
            self.splits.setdefault(subject, set()).add(split)

    def _add_images(self, images: Sequence[ImageRecord], made: str) -> None:
        if "image" not in self.settings.columns:  # a path that is blank is missing
            self.images += images
            return
        self.images += [image for image in images if image.path]
        missing = [image.image_id for image in images if not image.path]
        for name in missing if images else [made]:
            self._reject(name, "no_image")

    def _reject(self, name: str, reason: str) -> None:
        self.rejects.append(Reject(name, reason))
        self.rows.note(name, self.total - 1)

    def _image_id(
        self, values: Mapping[str, _Cell], own: Mapping[str, str], end: str, study: str, made: str
    ) -> str:
        # Where the table has none: of the study and a number in it, or of the row.
        if "image_id" in values:
            return own["image_id"] + ("" if isinstance(values["image_id"], list) else end)
        if "study_id" not in values:
            return f"{made}{end}"
        self.images_of[study] += 1
        return f"{study}-{self.images_of[study] - 1}"

    def _add_study(self, study_id: str, subject: str, text: Text | ReportText) -> None:
        # A study has a row for each image: its report is mostly repeated, or stands in one of them.
        before = self.studies.get(study_id)
        if before is None or not any(before.report):
            self.studies[study_id] = Study(study_id, subject, text)
        elif any(text) and text != before.report:
            self.counts["report_conflicts"] += 1

    def _add_boxes(
        self,
        images: Sequence[ImageRecord],
        lists: Mapping[str, Any],
        number: int,
        *,
        several: bool,
    ) -> bool:
        # Whether the lists are as long as they must be.
        boxes: list[dict[str, Any]] = []
        # One image: its boxes are the row's. Several: the row lists them image by image.
        if several and any(isinstance(x, list) and len(x) != len(images) for x in lists.values()):
            return False
        for k, image in enumerate(images):
            own = _of_image(lists, k) if several else lists
            try:
                rows, without = boxes_of_image(
                    image,
                    own["boxes"],
                    own.get("phrase", own.get("category")),
                    own.get("category"),
                    self.settings,
                    number,
                )
            except ValueError:
                return False
            boxes += rows
            self.counts["phrases_without_box"] += without
        self.boxes.rows.extend(boxes)
        self.boxes.subjects.update(row["subject_id"] for row in boxes)
        return True


def _of_image(values: Mapping[str, Any], k: int) -> dict[str, Any]:
    return {role: x[k] if isinstance(x, list) else x for role, x in values.items()}


def _cleaned(cell: _Cell) -> _Cell:
    if isinstance(cell, str):
        return table_files.clean_id(cell)
    return [table_files.clean_id(name) for name in cell]


def _pixels(value: str, row: int) -> int:
    """Read a side of an image; 0 where the table leaves it blank."""
    try:
        side = float(value or 0)
    except ValueError:
        side = -1.0
    # pandas writes 512 as 512.0 where another row is blank.
    if not (side >= 0 and side.is_integer()):
        raise StudyError(
            f"row {row} of the table states no size of its image; correct it, or leave "
            "source.columns.width and height empty"
        )
    return int(side)


def _text(columns: Mapping[str, str]) -> Text | ReportText:
    findings, impression = (columns.get(name, "").strip() for name in ("findings", "impression"))
    if findings or impression:
        return Text(findings, impression, "")
    return ReportText(columns.get("report", "").replace("\r\n", "\n").replace("\r", "\n"))


def _split_name(name: str, row: int) -> str:
    """Return our name of a row's split; StudyError where it has none."""
    split = SPELLINGS.get(name.strip().lower(), name.strip().lower())
    if split not in SPLITS:
        raise StudyError(
            f"row {row} of the table names no split; source.columns.split must hold one of {SPLITS}"
        )
    return split
