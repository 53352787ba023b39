"""A tiny MIMIC-CXR-shaped release: tables, reports and images for a few patients."""

from dataclasses import dataclass, field
from pathlib import Path

from medclip_dcl.text.labeler.lexicon import LABELS
from tests.support.dicom import dicom_bytes, ramp
from tests.support.public_sets import write_csv

REPORT = """                                 FINAL REPORT
 EXAMINATION:  CHEST (PA AND LAT)

 FINDINGS:

 The lungs are clear.
 No pleural effusion.

 IMPRESSION:

 No acute process.
"""


@dataclass
class Release:
    """Rows to write; tests add, drop or spoil some first."""

    images: list[tuple[str, str, str, str]] = field(default_factory=list)
    """dicom_id, subject_id, study_id, ViewPosition."""
    splits: dict[str, str] = field(default_factory=dict)
    """dicom_id -> split."""
    boxes: list[str] = field(default_factory=list)
    """Rows of the box table."""
    report: dict[str, bytes | None] = field(default_factory=dict)
    """study_id -> bytes of its report, where they are not REPORT; None: no file."""
    image: dict[str, bytes | None] = field(default_factory=dict)
    """dicom_id -> bytes of its image, where they are not a ramp; None: no file."""

    def write(self, root: Path) -> None:
        subjects = {study: subject for _, subject, study, _ in self.images}
        states = (1.0, 0.0, -1.0, *[""] * (len(LABELS) - 3))
        tables = {
            "metadata,dicom_id,subject_id,study_id,ViewPosition,Rows,Columns": [
                (*row, 40, 50) for row in self.images
            ],
            "split,dicom_id,study_id,subject_id,split": [
                (image, study, subject, self.splits.get(image, "train"))
                for image, subject, study, _ in self.images
            ],
            f"chexpert,subject_id,study_id,{','.join(LABELS)}": [
                (subject, study, *states) for study, subject in subjects.items()
            ],
        }
        for name, rows in tables.items():
            file, _, header = name.partition(",")
            write_csv(root / f"mimic-cxr-2.0.0-{file}.csv.gz", header, rows)
        header = "category_name,label_text,path,x,y,w,h,dicom_id,image_width,image_height"
        (root / "boxes.csv").write_text("\n".join([header, *self.boxes]) + "\n", encoding="utf-8")
        for number, (image, subject, study, _) in enumerate(self.images):
            patient = root / f"files/p{subject[:2]}/p{subject}"
            (patient / f"s{study}").mkdir(parents=True, exist_ok=True)
            report = self.report.get(study, REPORT.encode())
            if report is not None:
                (patient / f"s{study}.txt").write_bytes(report)
            data = self.image.get(image, dicom_bytes(ramp(40 + number % 3, 50)))
            if data is not None:
                (patient / f"s{study}" / f"{image}.dcm").write_bytes(data)


def release(patients: int) -> Release:
    """One study with one frontal image per patient, and no faults."""
    return Release(
        [
            (f"{number:08x}-image", f"1{number:07d}", f"5{number:07d}", ("AP", "PA")[number % 2])
            for number in range(patients)
        ]
    )
