"""DICOM files without tables or reports -> images, by their headers."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from medclip_dcl.core.errors import StudyError
from medclip_dcl.data.dicom.metadata import read_header
from medclip_dcl.data.limits import PREAMBLE, is_dicom
from medclip_dcl.data.records import ImageRecord, RawStudies, Reject
from medclip_dcl.data.source_settings import Resolve, SourceConfig, find_file

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
            continue
        elif header.modality not in settings.modalities:  # not asked for, and so no fault
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
    secret = hashlib.sha256(key).digest()
    return hashlib.blake2b(patient, key=secret, digest_size=10).hexdigest()


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():  # a link may lead out of the root
                yield path
