"""One patient: studies, images as DICOM files and reports, a function of seed and number."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.filewriter import dcmwrite
from pydicom.uid import DigitalXRayImageStorageForPresentation, ExplicitVRLittleEndian, generate_uid

from medclip_dcl.synthetic import reports
from medclip_dcl.synthetic.anatomy import ChestShape, Field, draw_body
from medclip_dcl.synthetic.radiograph import DrawnImage, draw_frontal, draw_lateral

_ID_RANGE, _ID_STEP = 10_000_000, 6_700_417  # coprime: distinct ids, spread out
_SEED_STEP = 123_457  # numbers of patients between two seeds
_MAX_STUDIES = 4
_SHARES = {"test": 0.2, "validate": 0.1, "train": 0.7}  # of the patients
_SECOND_IMAGE_SHARE = 0.12  # of studies, lateral or frontal: enough to try how they are chosen
_STORAGES = ((12, False), (12, True), (14, False), (16, False))  # bits, whether low is bright


@dataclass(frozen=True, eq=False)
class GeneratedStudy:
    """A study: whose it is, what it shows with which severity, and what its report says."""

    subject_id: str
    split: str
    body: ChestShape
    study_id: str
    date: str
    findings: dict[reports.FineFinding, float]
    text: str
    statements: list[reports.Statement]

    @property
    def path(self) -> str:
        """Folder of its images in the tree; its report is next to it."""
        return f"files/p{self.subject_id[:2]}/p{self.subject_id}/s{self.study_id}"


@dataclass(frozen=True, eq=False)
class GeneratedImage:
    """An image before it is drawn."""

    study: GeneratedStudy
    dicom_id: str
    view: str
    bits: int
    is_inverted: bool
    seed: int

    @property
    def path(self) -> str:
        """Its file in the tree: `files/p1x/p1xxxxxxx/s5xxxxxxx/<dicom_id>.dcm`."""
        return f"{self.study.path}/{self.dicom_id}.dcm"

    def draw(self, size_px: int) -> DrawnImage:
        """Draw intensities and boxes; the longer side has `size_px` pixels."""
        generator = np.random.default_rng(self.seed)
        if self.view == "LATERAL":
            return draw_lateral(self.study.body, size_px, generator)
        return draw_frontal(self.study.body, self.study.findings, size_px, generator)

    def encode(self, pixels: Field) -> bytes:
        """Write intensities as this image's DICOM file.

        Source: DICOM PS3.5 Annex A (transfer syntaxes), PS3.10 7.1.
        """
        stored = quantize(pixels, self.bits, is_inverted=self.is_inverted)
        dataset = Dataset()
        dataset.SOPClassUID = DigitalXRayImageStorageForPresentation
        dataset.SOPInstanceUID = generate_uid(entropy_srcs=[self.dicom_id])
        dataset.StudyInstanceUID = generate_uid(entropy_srcs=[self.study.study_id])
        dataset.SeriesInstanceUID = generate_uid(entropy_srcs=[self.dicom_id, "series"])
        dataset.StudyDate, dataset.StudyTime = self.study.date, ""
        dataset.Modality, dataset.BodyPartExamined = "DX", "CHEST"
        dataset.PatientID, dataset.PatientName = self.study.subject_id, ""
        dataset.StudyID, dataset.AccessionNumber = self.study.study_id, ""
        dataset.ViewPosition, dataset.BurnedInAnnotation = self.view, "NO"
        dataset.PatientOrientation = ["A" if self.view == "LATERAL" else "L", "F"]
        dataset.Rows, dataset.Columns = stored.shape
        dataset.SamplesPerPixel, dataset.PixelRepresentation = 1, 0
        dataset.PhotometricInterpretation = "MONOCHROME1" if self.is_inverted else "MONOCHROME2"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, self.bits, self.bits - 1
        dataset.WindowCenter, dataset.WindowWidth = 2 ** (self.bits - 1), 2**self.bits
        dataset.PixelData = stored.astype("<u2").tobytes()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        stream = io.BytesIO()
        dcmwrite(stream, dataset, enforce_file_format=True)
        return stream.getvalue()


def draw_patient(number: int, seed: int) -> list[GeneratedImage]:
    """List a patient's images, the same for the same arguments; no pixel is computed yet."""
    generator = np.random.default_rng((seed, number))
    split = str(generator.choice([*_SHARES], p=[*_SHARES.values()]))
    body = draw_body(generator)
    own = number + seed * _SEED_STEP  # other seeds draw other patients, who have other ids
    images = []
    for index in range(1 + generator.binomial(_MAX_STUDIES - 1, 0.12)):
        # Rare findings are less rare in `test`, or there were nothing to measure of them.
        findings = reports.draw_findings(generator, 0.5 if split == "test" else 1.0)
        view = "AP" if generator.random() < 0.55 else "PA"
        text, statements = reports.draw_report(findings, view, generator)
        study = GeneratedStudy(
            subject_id=str(_ID_RANGE + own * _ID_STEP % _ID_RANGE),
            split=split,
            body=body,
            study_id=str(50_000_000 + (own * _MAX_STUDIES + index) * _ID_STEP % _ID_RANGE),
            date="{}{:02d}{:02d}".format(*generator.integers((2110, 1, 1), (2200, 13, 29))),
            findings=findings,
            text=text,
            statements=statements,
        )
        views = [view]
        if generator.random() < _SECOND_IMAGE_SHARE:
            views.append("LATERAL" if generator.random() < 0.6 else view)
        for name in views:
            dicom_id = "-".join(f"{word:08x}" for word in generator.integers(2**32, size=5))
            storage = _STORAGES[generator.integers(len(_STORAGES))]
            seed_of_pixels = int(generator.integers(2**32))
            images.append(GeneratedImage(study, dicom_id, name, *storage, seed_of_pixels))
    return images


def quantize(pixels: Field, bits: int, *, is_inverted: bool) -> NDArray[np.uint16]:
    """Turn intensities in [0, 1] into stored values, below 2 ** bits."""
    stored = np.rint(pixels * np.float32(2**bits - 1)).astype(np.uint16)
    return np.asarray(2**bits - 1 - stored if is_inverted else stored)
