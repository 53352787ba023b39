"""One patient: studies, images and reports, all a function of the seed and a number.

Images are stored as DICOM files, with the variety of a hospital's archive.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filewriter import dcmwrite
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

from medclip_dcl.synthetic import reports
from medclip_dcl.synthetic.anatomy import ChestShape, Field, draw_body
from medclip_dcl.synthetic.radiograph import DrawnImage, draw_frontal, draw_lateral

NATURAL, COVERAGE = "natural", "coverage"

_ID_RANGE = 10_000_000
_PATIENT_STEP, _STUDY_STEP = 6_700_417, 4_444_441  # coprime to the range: distinct ids, spread out
_SEED_STEP = 123_457  # numbers of patients between two seeds
_MAX_STUDIES = 4
_STREAMS = {NATURAL: 0, COVERAGE: 1}
_DETECTOR_MM = 430.0
_TEST_SHARE = 0.12  # of the natural patients
_SECOND_IMAGE_SHARE = 0.12  # of studies, lateral or frontal: enough to try how they are chosen
_WIDE_SHARE, _WIDE = 0.04, 2  # one of four in this share of the images has 16 bits


@dataclass(frozen=True)
class Storage:
    """Pixel encoding of one image."""

    bits: int  # stored, 12 to 16
    monochrome1: bool  # whether low values are bright
    black: float  # stored value of intensity 0, as a share of the range
    white: float  # and of intensity 1


@dataclass(frozen=True)
class ImagePlan:
    """An image before it is drawn."""

    dicom_id: str
    view: str
    storage: Storage
    seed: tuple[int, ...]

    @property
    def is_frontal(self) -> bool:
        """Whether it shows the chest from the front or the back."""
        return self.view in {"AP", "PA"}


@dataclass(frozen=True)
class GeneratedStudy:
    """A study: what it shows with which severity, what its report says, its images to be drawn."""

    study_id: str
    path: str  # folder of its images in the tree; its report is next to it
    date: str
    time: str
    findings: dict[reports.FineFinding, float]
    report: reports.Report
    text: str
    images: tuple[ImagePlan, ...]

    @property
    def report_path(self) -> str:
        """Its report in the tree: `files/p1x/p1xxxxxxx/s5xxxxxxx.txt`."""
        return f"{self.path}.txt"


@dataclass(frozen=True)
class Patient:
    """A patient with all studies; `origin` says how the findings were drawn."""

    subject_id: str
    split: str
    origin: str
    body: ChestShape
    studies: tuple[GeneratedStudy, ...]

    def items(self) -> Iterator["Item"]:
        """Walk over all images."""
        for study in self.studies:
            for image in study.images:
                yield Item(self, study, image)


@dataclass(frozen=True)
class Item:
    """One image with everything that it belongs to."""

    patient: Patient
    study: GeneratedStudy
    image: ImagePlan

    @property
    def path(self) -> str:
        """Its file in the tree: `files/p1x/p1xxxxxxx/s5xxxxxxx/<dicom_id>.dcm`."""
        return f"{self.study.path}/{self.image.dicom_id}.dcm"

    def draw(self, size_px: int) -> DrawnImage:
        """Draw intensities and boxes; the longer side has `size_px` pixels."""
        generator = np.random.default_rng(self.image.seed)
        if self.image.is_frontal:
            return draw_frontal(self.patient.body, self.study.findings, size_px, generator)
        return draw_lateral(self.patient.body, size_px, generator)

    def encode(self, pixels: Field) -> bytes:
        """Write intensities as this image's DICOM file.

        Source: DICOM PS3.5 Annex A (transfer syntaxes), PS3.10 7.1.
        """
        storage = self.image.storage
        stored = quantize(pixels, storage)
        dataset = self._header(stored.shape)
        dataset.BurnedInAnnotation = "NO"
        dataset.PixelData = stored.astype("<u2").tobytes()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        stream = io.BytesIO()
        dcmwrite(stream, dataset, enforce_file_format=True)
        return stream.getvalue()

    def _header(self, shape: tuple[int, ...]) -> Dataset:
        study, image, storage = self.study, self.image, self.image.storage
        dataset = Dataset()
        dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
        dataset.SOPInstanceUID = generate_uid(entropy_srcs=[image.dicom_id])
        dataset.StudyInstanceUID = generate_uid(entropy_srcs=[study.study_id])
        dataset.SeriesInstanceUID = generate_uid(entropy_srcs=[image.dicom_id, "series"])
        dataset.StudyDate, dataset.StudyTime = study.date, study.time
        dataset.Modality = "DX"
        dataset.PatientID, dataset.PatientName = self.patient.subject_id, ""
        dataset.StudyID, dataset.AccessionNumber = study.study_id, ""
        dataset.BodyPartExamined = "CHEST"
        dataset.ViewPosition = image.view
        dataset.PatientOrientation = ["A", "F"] if image.view == "LATERAL" else ["L", "F"]
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


def draw_patient(origin: str, number: int, seed: int, validate_share: float = 0.05) -> Patient:
    """Draw a patient, the same for the same arguments; no pixel is computed yet.

    `NATURAL` patients have findings as they fall and any split; a `COVERAGE` patient is in the test
    split and has one study of one fine finding, in turn.
    """
    generator = np.random.default_rng((seed, _STREAMS[origin], number))
    slot = 2 * number + _STREAMS[origin]
    split = _split(float(generator.random()), validate_share) if origin == NATURAL else "test"
    body = draw_body(generator)
    count = 1 + int(generator.binomial(_MAX_STUDIES - 1, 0.12)) if origin == NATURAL else 1
    own = slot + seed * _SEED_STEP  # other seeds draw other patients, who have other ids
    subject_id = str(_ID_RANGE + own * _PATIENT_STEP % _ID_RANGE)
    studies = []
    for index in range(count):
        findings: tuple[reports.FineFinding, ...] = (
            reports.FINE_FINDINGS[number % len(reports.FINE_FINDINGS)],
        )
        if origin == NATURAL:
            findings = reports.draw_findings(generator)
        study_id = str(50_000_000 + (own * _MAX_STUDIES + index) * _STUDY_STEP % _ID_RANGE)
        path = f"files/p{subject_id[:2]}/p{subject_id}/s{study_id}"
        studies.append(_study(study_id, path, findings, (seed, slot, index), generator))
    return Patient(subject_id, split, origin, body, tuple(studies))


def _split(draw: float, validate_share: float) -> str:
    if draw < _TEST_SHARE:
        return "test"
    return "validate" if draw < _TEST_SHARE + validate_share else "train"


def _study(
    study_id: str,
    path: str,
    findings: tuple[reports.FineFinding, ...],
    seed: tuple[int, ...],
    generator: np.random.Generator,
) -> GeneratedStudy:
    shown = {finding: float(generator.random()) for finding in findings}
    view = "AP" if generator.random() < 0.55 else "PA"
    views = [view]
    if generator.random() < _SECOND_IMAGE_SHARE:
        views.append("LATERAL" if generator.random() < 0.6 else view)
    images = tuple(
        ImagePlan(_dicom_id(generator), name, draw_storage(generator), (*seed, index))
        for index, name in enumerate(views)
    )
    report = reports.draw_report(shown, generator)
    text = reports.lay_out(report, view, generator)
    year, month, day = (int(generator.integers(*span)) for span in ((2110, 2200), (1, 13), (1, 29)))
    hour, minute, second = (int(generator.integers(top)) for top in (24, 60, 60))
    date, time = f"{year}{month:02d}{day:02d}", f"{hour:02d}{minute:02d}{second:02d}"
    return GeneratedStudy(study_id, path, date, time, shown, report, text, images)


def _dicom_id(generator: np.random.Generator) -> str:
    return "-".join(f"{int(word):08x}" for word in generator.integers(2**32, size=5))


def draw_storage(generator: np.random.Generator) -> Storage:
    """Draw how an image is stored: mostly 12 bits and MONOCHROME2."""
    # Once the choice among encoders: without it every later number would be another.
    is_wide = generator.random() < _WIDE_SHARE and generator.integers(4) == _WIDE
    bits = int(generator.choice([12, 14, 16], p=[0.7, 0.15, 0.15]))
    return Storage(
        bits=16 if is_wide else bits,
        monochrome1=bool(generator.random() < 0.1),
        black=float(generator.uniform(0.0, 0.1)),
        white=float(generator.uniform(0.85, 1.0)),
    )


def quantize(pixels: Field, storage: Storage) -> NDArray[np.uint16]:
    """Turn intensities in [0, 1] into stored values, below 2 ** bits."""
    top = 2**storage.bits - 1
    scaled = (storage.black + (storage.white - storage.black) * pixels) * top
    stored = np.clip(np.rint(scaled), 0, top).astype(np.uint16)
    return np.asarray(top - stored if storage.monochrome1 else stored, dtype=np.uint16)
