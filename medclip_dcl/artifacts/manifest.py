"""Manifest: the usable frontal films, their reports, labels and boxes, and what was rejected."""

import pyarrow as pa

from medclip_dcl.artifacts.frame import Kind
from medclip_dcl.artifacts.tables import Column, TableFormat

KIND = Kind("manifest", 1, "build_manifest")

SPLITS = ("train", "validate", "test")

LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)
"""The 14 CheXpert labels, as MIMIC-CXR-JPG's table names them."""

IMAGES = TableFormat(
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the film: MIMIC's dicom_id, or the table's"),
        Column("study_id", pa.string(), "id of the study that the film belongs to"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test; one per patient"),
        Column("view", pa.string(), "view position; empty where the source has none"),
        Column("path", pa.string(), "path of the file, relative to the source's root"),
    ),
)
"""One row per usable frontal film, in order of image_id."""

REPORTS = TableFormat(
    "reports.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column("split", pa.string(), "train, validate or test; one per patient"),
        Column("findings", pa.string(), "text of the findings section; empty where there is none"),
        Column("impression", pa.string(), "text of the impression; empty where there is none"),
        Column("last_paragraph", pa.string(), "text that stands in where both are empty"),
    ),
)
"""One row per study with text, in order of study_id."""

STUDY_LABELS = TableFormat(
    "labels.parquet",
    (
        Column("study_id", pa.string(), "id of the study"),
        *(
            Column(name, pa.int8(), "1 present, 0 absent, -1 uncertain, null: not mentioned")
            for name in LABELS
        ),
    ),
)
"""CheXpert labels per study, where the source has them; in order of study_id."""

BOXES = TableFormat(
    "boxes.parquet",
    (
        Column("image_id", pa.string(), "id of the film"),
        Column("subject_id", pa.string(), "id of the patient; none of these trains"),
        Column("category", pa.string(), "finding"),
        Column("phrase", pa.string(), "the sentence that the box belongs to"),
        Column("x", pa.float64(), "left edge, pixels of the original film"),
        Column("y", pa.float64(), "top edge, pixels of the original film"),
        Column("width", pa.float64(), "width, pixels of the original film"),
        Column("height", pa.float64(), "height, pixels of the original film"),
        Column("image_width", pa.int32(), "width of the original film, pixels"),
        Column("image_height", pa.int32(), "height of the original film, pixels"),
    ),
)
"""Boxes with their sentences (MS-CXR), one row per box."""

REJECTS = TableFormat(
    "rejects.parquet",
    (
        Column("id", pa.string(), "id of the film or study"),
        Column("stage", pa.string(), "job that rejected it"),
        Column("reason", pa.string(), "reason code"),
    ),
)
"""What was left out, one row per film or study and reason."""
