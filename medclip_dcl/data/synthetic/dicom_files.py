"""From intensities to the bytes of a DICOM file, with the variety of a hospital's archive."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import imagecodecs
import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.filewriter import dcmwrite
from pydicom.uid import (
    UID,
    DigitalXRayImageStorageForPresentation,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLossless,
    JPEGLSLossless,
    RLELossless,
    generate_uid,
)

from medclip_dcl.data.synthetic.anatomy import Field

_DETECTOR_MM = 430.0


@dataclass(frozen=True)
class Storage:
    """How one image is stored.

    Attributes:
        bits: bits stored, 12 to 16.
        monochrome1: whether low values are bright.
        syntax: native, rle, jpeg2000, jpegls or jpeg_lossless.
        black: stored value of intensity 0, as a share of the range.
        white: stored value of intensity 1, as a share of the range.
    """

    bits: int
    monochrome1: bool
    syntax: str
    black: float
    white: float


def draw_storage(compressed_share: float, generator: np.random.Generator) -> Storage:
    """Draw how an image is stored: mostly 12 bits, MONOCHROME2 and uncompressed."""
    syntax = "native"
    if generator.random() < compressed_share:
        syntax = sorted(_ENCODERS)[int(generator.integers(len(_ENCODERS)))]
    bits = int(generator.choice([12, 14, 16], p=[0.7, 0.15, 0.15]))
    return Storage(
        bits=16 if syntax == "jpegls" else bits,  # its encoder always codes all 16 bits
        monochrome1=bool(generator.random() < 0.1),
        syntax=syntax,
        black=float(generator.uniform(0.0, 0.1)),
        white=float(generator.uniform(0.85, 1.0)),
    )


@dataclass(frozen=True)
class Tags:
    """What the header of an image says besides its pixels."""

    dicom_id: str
    study_id: str
    subject_id: str
    view: str
    date: str
    time: str
    burned_in: bool = False


def encode_image(pixels: Field, storage: Storage, tags: Tags) -> bytes:
    """Write an image as a DICOM file.

    Args:
        pixels: intensities in [0, 1], bright where little passes.
        storage: how it is stored.
        tags: ids, view, date and time.

    Source: DICOM PS3.5 Annex A (transfer syntaxes) and Annex G (RLE), PS3.10 7.1.
    """
    stored = quantize(pixels, storage)
    dataset = _header(tags, storage, stored.shape)
    syntax = ExplicitVRLittleEndian
    dataset.PixelData = stored.astype("<u2").tobytes()
    if storage.syntax != "native":
        syntax, encode = _ENCODERS[storage.syntax]
        frame = encode(stored, storage.bits)
        dataset.PixelData = encapsulate([frame + b"\0" * (len(frame) % 2)])
        dataset["PixelData"].VR = "OB"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    stream = io.BytesIO()
    dcmwrite(stream, dataset, enforce_file_format=True)
    return stream.getvalue()


def quantize(pixels: Field, storage: Storage) -> NDArray[np.uint16]:
    """Turn intensities into stored values, below 2 ** bits.

    Args:
        pixels: intensities in [0, 1].
        storage: bits, exposure window and photometric interpretation.
    """
    top = 2**storage.bits - 1
    scaled = (storage.black + (storage.white - storage.black) * pixels) * top
    stored = np.clip(np.rint(scaled), 0, top).astype(np.uint16)
    return np.asarray(top - stored if storage.monochrome1 else stored, dtype=np.uint16)


def _header(tags: Tags, storage: Storage, shape: tuple[int, ...]) -> Dataset:
    dataset = Dataset()
    dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
    dataset.SOPInstanceUID = generate_uid(entropy_srcs=[tags.dicom_id])
    dataset.StudyInstanceUID = generate_uid(entropy_srcs=[tags.study_id])
    dataset.SeriesInstanceUID = generate_uid(entropy_srcs=[tags.dicom_id, "series"])
    dataset.StudyDate, dataset.StudyTime = tags.date, tags.time
    dataset.Modality = "DX"
    dataset.PatientID, dataset.PatientName = tags.subject_id, ""
    dataset.StudyID, dataset.AccessionNumber = tags.study_id, ""
    dataset.BodyPartExamined = "CHEST"
    dataset.ViewPosition = tags.view
    dataset.PatientOrientation = ["A", "F"] if tags.view == "LATERAL" else ["L", "F"]
    dataset.BurnedInAnnotation = "YES" if tags.burned_in else "NO"
    dataset.Rows, dataset.Columns = shape
    spacing = round(_DETECTOR_MM / max(shape), 5)
    dataset.PixelSpacing = [spacing, spacing]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME1" if storage.monochrome1 else "MONOCHROME2"
    dataset.PresentationLUTShape = "INVERSE" if storage.monochrome1 else "IDENTITY"
    dataset.BitsAllocated, dataset.BitsStored = 16, storage.bits
    dataset.HighBit, dataset.PixelRepresentation = storage.bits - 1, 0
    middle = (storage.black + storage.white) / 2
    centre = 1 - middle if storage.monochrome1 else middle
    dataset.WindowCenter = round(centre * (2**storage.bits - 1))
    dataset.WindowWidth = round((storage.white - storage.black) * (2**storage.bits - 1))
    dataset.RescaleIntercept, dataset.RescaleSlope, dataset.RescaleType = 0, 1, "US"
    return dataset


def _rle(stored: NDArray[np.uint16], _bits: int) -> bytes:
    """One RLE frame: high bytes, then low bytes, each row packed on its own."""
    planes = ((stored >> 8).astype(np.uint8), (stored & 255).astype(np.uint8))
    segments = []
    for plane in planes:
        data = b"".join(imagecodecs.packbits_encode(row.tobytes()) for row in plane)
        segments.append(data + b"\0" * (len(data) % 2))
    offsets = [64, 64 + len(segments[0])]
    head = np.array([len(segments), *offsets, *[0] * 13], dtype="<u4").tobytes()
    return head + b"".join(segments)


def _jpeg2000(stored: NDArray[np.uint16], bits: int) -> bytes:
    return bytes(
        imagecodecs.jpeg2k_encode(
            stored, level=0, codecformat="j2k", reversible=True, bitspersample=bits
        )
    )


def _jpegls(stored: NDArray[np.uint16], _bits: int) -> bytes:
    return bytes(imagecodecs.jpegls_encode(stored))


def _jpeg_lossless(stored: NDArray[np.uint16], bits: int) -> bytes:
    return bytes(imagecodecs.ljpeg_encode(stored, bitspersample=bits))


_ENCODERS: dict[str, tuple[UID, Callable[[NDArray[np.uint16], int], bytes]]] = {
    "rle": (RLELossless, _rle),
    "jpeg2000": (JPEG2000Lossless, _jpeg2000),
    "jpegls": (JPEGLSLossless, _jpegls),
    "jpeg_lossless": (JPEGLossless, _jpeg_lossless),
}
