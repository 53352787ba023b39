"""`source.kind: dicomweb`: the images of an archive, fetched into a folder and listed."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from medclip_dcl.core.errors import ConfigError, ImageError
from medclip_dcl.core.files import disk_faults_named, remove_staged, write_bytes
from medclip_dcl.core.progress import Progress
from medclip_dcl.data.records import RawStudies, Reject
from medclip_dcl.data.source_settings import MODALITIES, Resolve, SourceConfig
from medclip_dcl.data.sources.readers import read_dicom_folder

from .dicomweb import CONNECTIONS, ArchivedImage, DicomWeb


def read_dicomweb(root: Path, settings: SourceConfig, resolve: Resolve) -> RawStudies:
    """Fetch the images of an archive into a folder, and list them as `read_dicom_folder` does.

    Images that are there are not fetched again, so a killed run goes on. What comes in the place of
    an image is a reject, and not kept. ConfigError where `source.archive` is empty; ServiceError
    where the archive cannot be reached or refuses; ArtifactUnwritable where the disk is full, or
    fails, or may not be written to.
    """
    if not settings.archive:
        raise ConfigError("source.kind dicomweb needs source.archive, the URL of its DICOMweb")
    key = resolve(settings.archive_key) if settings.archive_key else None
    with disk_faults_named(root), DicomWeb(settings.archive, key) as archive:
        root.mkdir(parents=True, exist_ok=True)
        remove_staged(root)  # of a run that was killed: half an image, or a whole one twice
        listed = archive.images(MODALITIES, settings.archive_dates)

        def mirror(image: ArchivedImage) -> Reject | None:
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
            ThreadPoolExecutor(CONNECTIONS) as threads,
        ):
            rejects = []
            for reject in threads.map(mirror, listed):
                rejects += [reject] if reject else []
                progress.advance(1)
    folder = read_dicom_folder(root, settings, resolve)
    wanted = {image.instance for image in listed}  # the folder may hold what another query fetched
    images = [image for image in folder.images if image.image_id in wanted]
    return replace(folder, images=images, rejects=[*folder.rejects, *rejects])
