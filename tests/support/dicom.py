"""DICOM, PNG and JPEG files made in memory, sound and otherwise."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from medclip_dcl.core.errors import ImageError
from medclip_dcl.data.images import open_image
from medclip_dcl.data.limits import REASONS, ImagesConfig

COMPUTED_RADIOGRAPHY = "1.2.840.10008.5.1.4.1.1.1"
DEFLATED, BIG_ENDIAN, BASELINE, SV1, JPEG_LS, J2K, RLE = (
    f"1.2.840.10008.1.2.{tail}" for tail in ("1.99", "2", "4.50", "4.70", "4.80", "4.90", "5")
)
"""Transfer syntaxes."""


def ramp(rows: int = 40, columns: int = 50, top: int = 4095) -> np.ndarray:
    """An image whose shades rise from 0 to `top` along the rows."""
    steps = np.linspace(0, top, rows * columns)
    return np.rint(steps).astype(np.uint16).reshape(rows, columns)


def dicom_bytes(
    pixels: np.ndarray,
    *,
    photometric: str = "MONOCHROME2",
    bits_stored: int = 12,
    syntax: str = ExplicitVRLittleEndian,
    frame: bytes | None = None,
    padding: bytes = b"",
    **tags: Any,
) -> bytes:
    """A DICOM file around the pixels; `frame` is put in their place as a compressed frame."""
    data = Dataset()
    data.SOPClassUID = COMPUTED_RADIOGRAPHY
    data.SOPInstanceUID = generate_uid(entropy_srcs=["image"])
    data.Modality, data.ViewPosition = "CR", "PA"
    data.SamplesPerPixel = 1
    data.PhotometricInterpretation = photometric
    data.Rows, data.Columns = pixels.shape
    data.BitsAllocated = 8 * pixels.dtype.itemsize
    data.BitsStored = min(bits_stored, data.BitsAllocated)
    data.HighBit = data.BitsStored - 1
    data.PixelRepresentation = int(pixels.dtype.kind == "i")
    with config.disable_value_validation():
        for name, value in tags.items():
            if isinstance(value, tuple):  # VR and value, where the tag allows several VRs
                data.add_new(name, *value)
            else:
                setattr(data, name, value)
        stored = pixels.astype(pixels.dtype.newbyteorder(">")) if syntax == BIG_ENDIAN else pixels
        data.PixelData = stored.tobytes() + padding if frame is None else encapsulate([frame])
    data["PixelData"].VR = "OW" if frame is None else "OB"
    data["PixelData"].is_undefined_length = frame is not None
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = syntax
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    stream = io.BytesIO()
    data.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def raster_bytes(pixels: np.ndarray, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


def refusal(source: bytes | str | Path, **settings: Any) -> str:
    """Open an image that has to be refused, and give the code of the reason."""
    try:
        open_image(source, ImagesConfig(**settings))
    except ImageError as error:
        code = error.code
    else:
        raise AssertionError("the image is not refused")
    assert code in REASONS
    return code


def scaled(pixels: np.ndarray) -> np.ndarray:
    """Scale stored values as `open_image` does: the darkest 0, the brightest 65535."""
    low, high = float(pixels.min()), float(pixels.max())
    return np.rint((pixels.astype(np.float64) - low) / (high - low) * 65535).astype(np.uint16)
