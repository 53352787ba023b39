"""Readers of sources of studies, one per kind, and what they read, with its boxes and labels."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from medclip_dcl.core.errors import ConfigError
from medclip_dcl.core.plugins import SOURCES
from medclip_dcl.data.records import BoxTable, RawStudies, Source
from medclip_dcl.data.source_settings import Resolve, SourceConfig, find_file
from medclip_dcl.data.sources import dicom_folder, huggingface, mimic_cxr, open_i, table
from medclip_dcl.data.sources.boxes import read_boxes
from medclip_dcl.data.sources.labels import join_labels

READERS: dict[str, Callable[[Any, SourceConfig, Resolve], RawStudies]] = {
    "mimic_cxr": mimic_cxr.read_mimic_cxr,
    "open_i": lambda root, _settings, _resolve: open_i.read_open_i(root),
    "table": table.read_mapped_table,
    "dicom": dicom_folder.read_dicom_folder,
    "huggingface": huggingface.read_huggingface,
}
"""`source.kind` -> its reader, of those that are built in; see `plugins.SOURCES`."""


def read_source(settings: SourceConfig, resolve: Resolve) -> Source:
    """Read a source; no image is decoded.

    Raises:
        ConfigError: a setting that the kind of source needs is empty.
        StudyError: a table is missing or cannot be read.
    """
    root = resolve(settings.root)
    raw = (READERS | dict(SOURCES))[settings.kind](root, settings, resolve)
    if settings.labels:
        raw.tables["labels"] = find_file("labels", settings.labels, root, resolve)
        raw = replace(raw, labels=join_labels(raw, raw.tables["labels"], settings))
    elif raw.labels is not None:
        _require_findings(raw.labels, settings)
    if not settings.boxes:
        return Source(raw, raw.boxes or BoxTable([], set(), 0))
    raw.tables["boxes"] = find_file("boxes", settings.boxes, root, resolve)
    read = read_boxes(raw.tables["boxes"], raw.images, settings, raw.root)
    return Source(raw, read)


def _require_findings(labels: pa.Table, settings: SourceConfig) -> None:
    # The labels of MIMIC-CXR and Open-i are CheXpert's, whatever the settings call them.
    if lacking := sorted(set(settings.findings) - set(labels.column_names)):
        raise ConfigError(
            f"source.findings names {lacking}, which the labels of kind {settings.kind} do not "
            "have; name a table that has them in source.labels"
        )


def images_root(settings: SourceConfig, resolve: Resolve) -> Path:
    """Return the folder that the image paths of a manifest are relative to."""
    if settings.kind == "huggingface":
        return huggingface.ROWS.at(resolve("${WORK}"))
    return resolve(settings.root)
