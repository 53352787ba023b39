"""One patient: studies, images and reports, all a function of the seed and a number."""

from dataclasses import dataclass

import numpy as np

from medclip_dcl.data.synthetic.anatomy import Body, draw_body
from medclip_dcl.data.synthetic.dicom_files import Storage, Tags, draw_storage, encode_image
from medclip_dcl.data.synthetic.findings import FINE_FINDINGS, FineFinding, draw_findings
from medclip_dcl.data.synthetic.radiograph import DrawnImage, draw_frontal, draw_lateral
from medclip_dcl.data.synthetic.reports import Report, draw_report, lay_out
from medclip_dcl.data.synthetic.settings import GenerateConfig

NATURAL, COVERAGE = "natural", "coverage"

_ID_RANGE = 10_000_000
_PATIENT_STEP, _STUDY_STEP = 6_700_417, 4_444_441  # coprime to the range: distinct ids, spread out
_MAX_STUDIES = 4
_STREAMS = {NATURAL: 0, COVERAGE: 1}


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
class Study:
    """A study: what it shows, what its report says, and its images to be drawn."""

    study_id: str
    date: str
    time: str
    findings: dict[FineFinding, float]
    report: Report
    text: str
    images: tuple[ImagePlan, ...]


@dataclass(frozen=True)
class Patient:
    """A patient with all studies; `origin` says how the findings were drawn."""

    subject_id: str
    split: str
    origin: str
    body: Body
    studies: tuple[Study, ...]


def draw_patient(origin: str, number: int, seed: int, settings: GenerateConfig) -> Patient:
    """Draw a patient; no pixel is computed yet.

    `NATURAL` patients have findings as they fall and any split; a `COVERAGE` patient is in the test
    split and has one study of one fine finding, in turn.

    Returns:
        The patient; the same for the same arguments, whoever else is drawn.
    """
    generator = np.random.default_rng((seed, _STREAMS[origin], number))
    slot = 2 * number + _STREAMS[origin]
    split = _split(float(generator.random()), settings) if origin == NATURAL else "test"
    body = draw_body(generator)
    count = 1 + int(generator.binomial(_MAX_STUDIES - 1, 0.12)) if origin == NATURAL else 1
    studies = []
    for index in range(count):
        findings: tuple[FineFinding, ...] = (FINE_FINDINGS[number % len(FINE_FINDINGS)],)
        if origin == NATURAL:
            findings = draw_findings(generator)
        study_id = str(50_000_000 + (slot * _MAX_STUDIES + index) * _STUDY_STEP % _ID_RANGE)
        studies.append(_study(study_id, findings, (seed, slot, index), settings, generator))
    subject_id = str(_ID_RANGE + slot * _PATIENT_STEP % _ID_RANGE)
    return Patient(subject_id, split, origin, body, tuple(studies))


def draw_image(patient: Patient, study: Study, plan: ImagePlan, size_px: int) -> DrawnImage:
    """Draw intensities and boxes of an image.

    Args:
        patient: whose image it is.
        study: the study that it belongs to.
        plan: the image.
        size_px: longer side, pixels.
    """
    generator = np.random.default_rng(plan.seed)
    if plan.is_frontal:
        return draw_frontal(patient.body, study.findings, size_px, generator)
    return draw_lateral(patient.body, size_px, generator)


def image_bytes(patient: Patient, study: Study, plan: ImagePlan, image: DrawnImage) -> bytes:
    """Encode a drawn image.

    Args:
        patient: whose image it is.
        study: the study that it belongs to.
        plan: ids, view and storage.
        image: the pixels.
    """
    return encode_image(image.pixels, plan.storage, image_tags(patient, study, plan))


def image_tags(patient: Patient, study: Study, plan: ImagePlan) -> Tags:
    """Give what the header of an image says."""
    return Tags(
        plan.dicom_id, study.study_id, patient.subject_id, plan.view, study.date, study.time
    )


def image_path(patient: Patient, study: Study, plan: ImagePlan) -> str:
    """Give an image's path in the tree: `files/p1x/p1xxxxxxx/s5xxxxxxx/<dicom_id>.dcm`."""
    return f"{_study_path(patient, study)}/{plan.dicom_id}.dcm"


def report_path(patient: Patient, study: Study) -> str:
    """Give a report's path in the tree: `files/p1x/p1xxxxxxx/s5xxxxxxx.txt`."""
    return f"{_study_path(patient, study)}.txt"


def _study_path(patient: Patient, study: Study) -> str:
    folder = f"p{patient.subject_id}"
    return f"files/{folder[:3]}/{folder}/s{study.study_id}"


def _split(draw: float, settings: GenerateConfig) -> str:
    if draw < settings.test_share:
        return "test"
    return "validate" if draw < settings.test_share + settings.validate_share else "train"


def _study(
    study_id: str,
    findings: tuple[FineFinding, ...],
    seed: tuple[int, ...],
    settings: GenerateConfig,
    generator: np.random.Generator,
) -> Study:
    shown = {finding: float(generator.random()) for finding in findings}
    view = "AP" if generator.random() < 0.55 else "PA"
    views = [view]
    if generator.random() < settings.second_image_share:
        views.append("LATERAL" if generator.random() < 0.6 else view)
    images = tuple(
        ImagePlan(
            _dicom_id(generator),
            name,
            draw_storage(settings.compressed_share, generator),
            (*seed, index),
        )
        for index, name in enumerate(views)
    )
    report = draw_report(shown, generator)
    text = lay_out(report, view, generator)
    year, month, day = (int(generator.integers(*span)) for span in ((2110, 2200), (1, 13), (1, 29)))
    hour, minute, second = (int(generator.integers(top)) for top in (24, 60, 60))
    return Study(
        study_id,
        f"{year}{month:02d}{day:02d}",
        f"{hour:02d}{minute:02d}{second:02d}",
        shown,
        report,
        text,
        images,
    )


def _dicom_id(generator: np.random.Generator) -> str:
    return "-".join(f"{int(word):08x}" for word in generator.integers(2**32, size=5))
