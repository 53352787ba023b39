"""List the usable frontal images with their reports, labels and boxes, and what was rejected.

Reads a MIMIC-CXR(-JPG) tree, Open-i, any mapped table or a folder of DICOM files; writes
`manifest`. A run takes seconds to minutes and starts anew when killed.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifact import ArtifactWriter
from medclip_dcl.config import Config, resolve_path
from medclip_dcl.data import manifest
from medclip_dcl.data.boxes import BoxTable, read_boxes
from medclip_dcl.data.manifest import Selection, assign_splits, select, stamp
from medclip_dcl.data.sources.dicom_folder import read_dicom_folder
from medclip_dcl.data.sources.mimic_cxr import find_tables, read_mimic_cxr
from medclip_dcl.data.sources.open_i import find_open_i, read_open_i
from medclip_dcl.data.sources.records import RawStudies
from medclip_dcl.data.sources.table import read_mapped_table
from medclip_dcl.errors import StudyError
from medclip_dcl.files import sha256_file
from medclip_dcl.tables import write_table
from medclip_dcl.text.sections import read_loose_sections, read_sections
from pipelines.job import Job, run_job

_NO_BOXES = BoxTable([], set(), 0)
PLACES = {"root", "tables", "reports", "patient_key", "max_reject_share"}
"""Settings that say where files lie, not what they hold; and a threshold."""


@dataclass(frozen=True)
class Source:
    """A source of studies as it was read: its tables, their rows and its boxes."""

    tables: dict[str, Path]
    raw: RawStudies
    boxes: BoxTable

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of the tables and a stamp of the report and image files."""
        digests = {name: sha256_file(path) for name, path in self.tables.items()}
        return digests | {"reports": stamp(self.raw)}


def read_source(config: Config) -> Source:
    """Read the source that a recipe names; no image is decoded.

    Args:
        config: the recipe.

    Returns:
        Its rows.

    Raises:
        StudyError: a table is missing or cannot be read.
    """
    root = resolve_path(config.source.root, config)
    tables = _tables(config, root)
    raw = _read(config, root, tables)
    boxes = _NO_BOXES
    if "boxes" in tables:
        boxes = read_boxes(tables["boxes"], raw.images, config.source.box_columns)
    return Source(tables, raw, boxes)


def build(job: Job) -> None:
    """Build the manifest of a recipe.

    Args:
        job: the job.
    """
    source = job.config.source
    found = read_source(job.config)
    raw, boxes = found.raw, found.boxes

    def write(writer: ArtifactWriter) -> Mapping[str, Any]:
        selection = select(raw, source, read_sections)
        _require_few_rejects(selection, source.max_reject_share)
        return _write(writer.directory, job.config, raw, selection, boxes)

    settings = source.model_dump(mode="json", exclude=PLACES)
    job.make(manifest.ARTIFACT, {"source": settings}, found.inputs, write)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        argv: arguments; None: those of the process.

    Returns:
        The exit code.
    """
    return run_job("build_manifest", build, argv)


def _tables(config: Config, root: Path) -> dict[str, Path]:
    source = config.source
    if source.kind == "mimic_cxr":
        tables = find_tables(resolve_path(source.tables, config) if source.tables else root)
    elif source.kind == "open_i":
        tables = find_open_i(root)
    elif source.kind == "table":
        tables = {"table": _beside(root, resolve_path(source.table, config))}
    else:
        tables = {}
    if source.boxes:
        tables["boxes"] = _beside(root, resolve_path(source.boxes, config))
    if source.patient_key:
        tables["patient_key"] = resolve_path(source.patient_key, config)
    for name, path in tables.items():
        if not path.is_file():
            raise StudyError(f"the file of source.{name} is missing; set it, or source.root")
    return tables


def _beside(root: Path, path: Path) -> Path:
    """Read a relative path from the current folder where it exists there, else from the root."""
    return path if path.is_file() else root / path


def _read(config: Config, root: Path, tables: dict[str, Path]) -> RawStudies:
    source = config.source
    if source.kind == "mimic_cxr":
        reports = resolve_path(source.reports, config) if source.reports else root
        return read_mimic_cxr(tables, root, reports, source)
    if source.kind == "open_i":
        return read_open_i(tables, root, source)
    if source.kind == "dicom":
        key = tables["patient_key"].read_bytes() if "patient_key" in tables else b""
        return read_dicom_folder(root, source, key)
    return read_mapped_table(tables["table"], root, source, read_loose_sections)


def _require_few_rejects(selection: Selection, allowed: float) -> None:
    share = selection.lost / selection.candidates if selection.candidates else 1.0
    if share > allowed or not (selection.texts or selection.images):
        reasons = dict(Counter(item.reason for item in selection.rejects))
        raise StudyError(
            f"{selection.lost} of {selection.candidates} rows are unusable ({reasons}), "
            f"{len(selection.images)} images and {len(selection.texts)} reports are left; "
            f"source.max_reject_share is {allowed}: mend the source or raise it"
        )


def _write(
    folder: Path, config: Config, raw: RawStudies, selection: Selection, boxes: BoxTable
) -> dict[str, Any]:
    source = config.source
    split_of = assign_splits(
        sorted({*selection.subjects.values(), *(image.subject_id for image in selection.images)}),
        raw.splits,
        boxes.subjects,
        source.validate_share,
        source.test_share,
    )
    images = [
        {
            "image_id": image.image_id,
            "study_id": image.study_id,
            "subject_id": image.subject_id,
            "split": split_of[image.subject_id],
            "view": image.view,
            "path": image.path,
        }
        for image in selection.images
    ]
    reports = [
        {
            "study_id": study,
            "subject_id": selection.subjects[study],
            "split": split_of[selection.subjects[study]],
            **selection.texts[study]._asdict(),
        }
        for study in sorted(selection.texts)
    ]
    rejects = [
        {"id": item.id, "stage": "build_manifest", "reason": item.reason}
        for item in selection.rejects
    ]
    kept = {row["image_id"] for row in images}
    shown = [row for row in boxes.rows if row["image_id"] in kept]
    labels = _labels(raw, list(selection.texts))
    write_table(folder, manifest.IMAGES, images)
    write_table(folder, manifest.REPORTS, reports)
    write_table(folder, manifest.STUDY_LABELS, labels)
    write_table(folder, manifest.BOXES, shown)
    write_table(folder, manifest.REJECTS, rejects)
    return {
        "images": len(images),
        "reports": len(reports),
        "patients": len(split_of),
        "labelled": labels.num_rows,
        "boxes": len(shown),
        "boxes_without_image": len(boxes.rows) - len(shown) + boxes.unknown,
        "splits": dict(sorted(Counter(row["split"] for row in reports).items())),
        "split_conflicts": sum(len(splits) > 1 for splits in raw.splits.values()),
        "rejected": len(rejects),
        "reasons": dict(sorted(Counter(item.reason for item in selection.rejects).items())),
    }


def _labels(raw: RawStudies, studies: list[str]) -> pa.Table:
    if raw.labels is None:
        return manifest.STUDY_LABELS.schema.empty_table()
    wanted = raw.labels.filter(pc.is_in(raw.labels["study_id"], pa.array(studies, pa.string())))
    first: dict[str, int] = {}
    for row, study in enumerate(wanted["study_id"].to_pylist()):
        first.setdefault(study, row)
    return wanted.take([first[study] for study in sorted(first)])


if __name__ == "__main__":
    sys.exit(main())
