"""Source of studies -> what its reader reads, with boxes and labels; a folder of DICOM files.

The readers of other kinds have modules of their own, which `plugins.SOURCES` names.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from medclip_dcl.core.errors import ConfigError, StudyError
from medclip_dcl.core.plugins import SOURCES
from medclip_dcl.data.dicom.metadata import read_header
from medclip_dcl.data.limits import PREAMBLE, is_dicom
from medclip_dcl.data.records import BoxTable, ImageRecord, RawStudies, Reject, Source
from medclip_dcl.data.source_settings import MODALITIES, Resolve, SourceConfig, find_file
from medclip_dcl.data.sources.boxes import read_boxes
from medclip_dcl.data.sources.huggingface import ROWS
from medclip_dcl.data.sources.labels import join_labels, speak_labels

_DIRECTORY = "1.2.840.10008.1.3.10"
"""SOP class of a DICOMDIR, which holds no image. Source: DICOM PS3.4, Annex B."""


def read_dicom_folder(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """List the images below a folder in order of path; headers are read, pixels are not.

    Raises:
        StudyError: the folder or the key file is missing.
    """
    if not root.is_dir():
        raise StudyError("source.root is not a folder; name the folder that holds the DICOM files")
    tables, key = {}, b""
    if settings.patient_key:
        tables["patient_key"] = find_file("patient_key", settings.patient_key, root, resolve)
        key = tables["patient_key"].read_bytes()
    images: list[ImageRecord] = []
    rejects: list[Reject] = []
    # A file without a usable id is named by its number: its path may name a patient.
    for number, path in enumerate(_files(root)):
        name = f"file-{number:06d}"
        with path.open("rb") as stream:
            if not is_dicom(stream.read(PREAMBLE)):
                rejects.append(Reject(name, "not_dicom"))
                continue
        header = read_header(path)
        if header is None:
            rejects.append(Reject(name, "bad_header"))
        elif header.sop_class == _DIRECTORY:
            continue  # a list of the folder: neither an image nor a fault
        elif header.modality not in MODALITIES:  # not asked for, and so no fault
            rejects.append(Reject(header.image_id, "modality"))
        elif not header.patient:
            rejects.append(Reject(header.image_id, "no_subject"))
        else:
            subject = hash_patient(header.patient, key)
            relative = path.relative_to(root).as_posix()
            images.append(
                ImageRecord(header.image_id, header.study_id, subject, header.view, relative)
            )
    return RawStudies(root, images, has_reports=False, rejects=rejects, tables=tables)


def hash_patient(patient: bytes, key: bytes) -> str:
    """Name a patient without saying who it is: 20 hexadecimal digits; `key`: secret, or empty."""
    # BLAKE2 takes keys of 64 bytes at most, and a key file may be longer.
    secret = hashlib.sha256(key).digest()
    return hashlib.blake2b(patient, key=secret, digest_size=10).hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()  # in place, so that `os.walk` enters them in this order
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():  # a link may lead out of the root
                yield path


def read_source(settings: SourceConfig, resolve: Resolve) -> Source:
    """Read a source; no image is decoded.

    Raises:
        ConfigError: a setting that the kind of source needs is empty.
        StudyError: a table is missing or cannot be read.
    """
    root = resolve(settings.root)
    raw: RawStudies = SOURCES[settings.kind](root, settings, resolve)
    if settings.labels:
        raw.tables["labels"] = find_file("labels", settings.labels, root, resolve)
        raw = replace(raw, labels=join_labels(raw, raw.tables["labels"], settings))
    elif raw.labels is not None and (
        lacking := sorted(set(settings.findings) - set(raw.labels.column_names))
    ):
        # The labels of MIMIC-CXR and Open-i are CheXpert's, whatever the settings call them.
        raise ConfigError(
            f"source.findings names {lacking}, which the labels of kind {settings.kind} do not "
            "have; name a table that has them in source.labels"
        )
    if settings.template:
        raw = speak_labels(raw, settings)
    if not settings.boxes:
        return Source(raw, raw.boxes or BoxTable([], set(), 0))
    raw.tables["boxes"] = find_file("boxes", settings.boxes, root, resolve)
    read = read_boxes(raw.tables["boxes"], raw.images, settings, raw.root)
    return Source(raw, read)


def images_root(settings: SourceConfig, resolve: Resolve) -> Path:
    """Return the folder that the image paths of a manifest are relative to."""
    if settings.kind == "huggingface":
        return ROWS.at(resolve("${WORK}"))
    return resolve(settings.root)
