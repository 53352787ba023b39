"""Readers of sources of studies, one per kind, and what they read, with its boxes and labels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from medclip_dcl.data.records import BoxTable, RawStudies, Source
from medclip_dcl.data.row_images import Bucket
from medclip_dcl.data.source_settings import Resolve, SourceConfig, find_file
from medclip_dcl.errors import ConfigError
from medclip_dcl.plugins import SOURCES
from medclip_sources import dicom_folder, huggingface, mimic_cxr, open_i, table, table_parts
from medclip_sources.boxes import read_boxes
from medclip_sources.labels import join_labels
from medclip_sources.object_store import open_root

READERS: dict[str, Callable[[Any, SourceConfig, Resolve], RawStudies]] = {
    "mimic_cxr": mimic_cxr.read_mimic_cxr,
    "open_i": lambda root, _settings, _resolve: open_i.read_open_i(root),
    "table": table.read_mapped_table,
    "dicom": dicom_folder.read_dicom_folder,
    "huggingface": huggingface.read_huggingface,
}
"""`source.kind` -> its reader, of those that are built in; see `plugins.SOURCES`."""


def read_source(settings: SourceConfig, resolve: Resolve, *, in_parts: bool = False) -> Source:
    """Read a source; no image is decoded. With `in_parts`, studies are read by `Source.parts`.

    Raises:
        ConfigError: a setting that the kind of source needs is empty.
        StudyError: a table is missing or cannot be read.
    """
    root = open_root(settings, resolve)
    if in_parts and table_parts.has_parts(settings):
        return Source(
            table_parts.read_table_in_parts(root, settings, resolve), BoxTable([], set(), 0)
        )
    raw = (READERS | dict(SOURCES))[settings.kind](root, settings, resolve)
    if settings.labels:
        raw.tables["labels"] = find_file("labels", settings.labels, root, resolve)
        raw = replace(raw, labels=join_labels(raw, raw.tables["labels"], settings))
    elif raw.labels is not None:
        _require_findings(raw.labels, settings)
    if not settings.boxes:
        return Source(raw, raw.boxes or BoxTable([], set(), 0))
    raw.tables["boxes"] = find_file("boxes", settings.boxes, root, resolve)
    read = read_boxes(raw.tables["boxes"], raw.images, settings, root)
    return Source(raw, read)


def _require_findings(labels: pa.Table, settings: SourceConfig) -> None:
    # The labels of MIMIC-CXR and Open-i are CheXpert's, whatever the settings call them.
    if lacking := sorted(set(settings.findings) - set(labels.column_names)):
        raise ConfigError(
            f"source.findings names {lacking}, which the labels of kind {settings.kind} do not "
            "have; name a table that has them in source.labels"
        )


def images_root(settings: SourceConfig, resolve: Resolve) -> Path | Bucket:
    """Give the folder or bucket that the image paths of a manifest are relative to."""
    is_copied = settings.kind == "huggingface" and settings.materialise
    return huggingface.ROWS.at(resolve("${WORK}")) if is_copied else open_root(settings, resolve)
