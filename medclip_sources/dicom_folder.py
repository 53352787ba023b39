"""DICOM files without tables or reports -> images, by their headers; of a folder, or an archive.

The images of a DICOMweb archive are mirrored into the folder first.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_dcl.data.dicom.metadata import read_header
from medclip_dcl.data.limits import PREAMBLE, is_dicom
from medclip_dcl.data.records import ImageRecord, RawStudies, Reject
from medclip_dcl.data.source_settings import Resolve, SourceConfig, find_file
from medclip_dcl.errors import ConfigError, ImageError, StudyError
from medclip_dcl.files import disk_faults_named, remove_staged, write_bytes
from medclip_dcl.progress import Progress

if TYPE_CHECKING:
    from medclip_hospital.dicomweb import ArchivedImage

_CONNECTIONS = 4  # to an archive
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


def read_dicomweb(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Fetch the images of an archive into a folder, and list them as `read_dicom_folder` does.

    Images that are there are not fetched again, so a killed run goes on. What comes in the place of
    an image is a reject, and not kept.

    Raises:
        ConfigError: `source.archive` is empty.
        ServiceError: the archive cannot be reached or refuses.
        ArtifactUnwritable: the disk is full, or fails, or may not be written to.
    """
    if not settings.archive:
        raise ConfigError("source.kind dicomweb needs source.archive, the URL of its DICOMweb")
    from medclip_hospital.dicomweb import DicomWeb  # httpx: the service has none

    key = resolve(settings.archive_key) if settings.archive_key else None
    with disk_faults_named(root), DicomWeb(settings.archive, key) as archive:
        root.mkdir(parents=True, exist_ok=True)
        remove_staged(root)  # of a run that was killed: half an image, or a whole one twice
        listed = archive.images(settings.modalities, settings.archive_dates)

        def mirror(image: "ArchivedImage") -> Reject | None:
            path = root / image.study / f"{image.instance}.dcm"
            try:
                if not path.exists():
                    data = archive.fetch(image)
                    path.parent.mkdir(exist_ok=True)
                    write_bytes(path, data)
            except ImageError as error:
                reason = "wrong_image" if error.code == "wrong_image" else "missing_image"
                return Reject(image.instance, reason)
            return None

        with (
            Progress("fetch images", len(listed), "image") as progress,
            ThreadPoolExecutor(_CONNECTIONS) as threads,
        ):
            rejects = []
            for reject in threads.map(mirror, listed):
                rejects += [reject] if reject else []
                progress.advance(1)
    listed_files = read_dicom_folder(root, settings, resolve)
    wanted = {image.instance for image in listed}  # the folder may hold what another query fetched
    images = [image for image in listed_files.images if image.image_id in wanted]
    return replace(listed_files, images=images, rejects=[*listed_files.rejects, *rejects])


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
