"""DICOM, PNG and JPEG files made in memory, sound and otherwise."""

import io
from typing import Any

import numpy as np
from PIL import Image
from pydicom import config
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

COMPUTED_RADIOGRAPHY = "1.2.840.10008.5.1.4.1.1.1"


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
        data.PixelData = pixels.tobytes() if frame is None else encapsulate([frame])
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
    """A PNG or JPEG file of the pixels."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()
