"""The usable images, their reports, labels and boxes, and a reason for what is left out.

One split per patient; patients with boxes never train.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.tables import Column, TableFormat, damage_named, read_table
from medclip_dcl.data.source_settings import LABEL_KEY
from medclip_dcl.text.labeler.lexicon import LABELS

ARTIFACT = ArtifactType("manifest", 2, "build_manifest")

IMAGES = TableFormat(  # one row per usable image, in order of image_id
    "images.parquet",
    (
        Column("image_id", pa.string(), "id of the image: MIMIC's dicom_id, or the table's"),
        Column("study_id", pa.string(), "id of the study that the image belongs to"),
        Column("subject_id", pa.string(), "id of the patient"),
        Column(
            "split",
            pa.string(),
            "train, validate or test; one per patient, but for `pretrain`: a lateral image of a "
            "training patient, seen by `pretrain_images` alone",
        ),
        Column("view", pa.string(), "view position; empty where the source has none"),
        Column(
            "path",
            pa.string(),
            "path of the file, relative to the source's root; of kind huggingface to `rows`",
        ),
    ),
)

REPORTS = TableFormat(  # one row per study with text, in order of study_id
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


def label_format(findings: Sequence[str]) -> TableFormat:
    """Make the format of the table of labels of a source with these findings."""
    meaning = "1 present, 0 absent, -1 uncertain, null: not mentioned"
    columns = (Column(name, pa.int8(), meaning) for name in findings)
    return TableFormat(
        "labels.parquet", (Column(LABEL_KEY, pa.string(), "id of the study"), *columns)
    )


STUDY_LABELS = label_format(LABELS)
"""Labels per study, where the source has them, in order of study_id; of a source with other
`source.findings` the columns are those."""

BOXES = TableFormat(  # boxes with their sentences (MS-CXR), one row per box
    "boxes.parquet",
    (
        Column("image_id", pa.string(), "id of the image"),
        Column("subject_id", pa.string(), "id of the patient; none of these trains"),
        Column("category", pa.string(), "finding"),
        Column("phrase", pa.string(), "the sentence that the box belongs to"),
        Column("x", pa.float64(), "left edge, pixels of the original image"),
        Column("y", pa.float64(), "top edge, pixels of the original image"),
        Column("width", pa.float64(), "width, pixels of the original image"),
        Column("height", pa.float64(), "height, pixels of the original image"),
        Column(
            "image_width",
            pa.int32(),
            "width of the original image, pixels; 1: the box is in fractions of it, 0: in pixels "
            "of its file",
        ),
        Column("image_height", pa.int32(), "height of the original image, pixels; likewise"),
    ),
)

DATASET = "dataset.json"
"""What a dataset's own card says: name, commit, licence, terms (kind `huggingface`)."""

REJECTS = TableFormat(  # what was left out, one row per image or study and reason
    "rejects.parquet",
    (
        Column("id", pa.string(), "id of the image or study"),
        Column("stage", pa.string(), "job that rejected it"),
        Column("reason", pa.string(), "reason code"),
    ),
)


def read_labels(listed: Artifact) -> pa.Table:
    """Read the labels of a manifest, by its own findings; without a row where it has none.

    Raises:
        ArtifactCorrupt: the table cannot be read, or is none of labels.
    """
    if STUDY_LABELS.file not in listed.files:
        return STUDY_LABELS.schema.empty_table()
    path = listed.path / STUDY_LABELS.file
    with damage_named(path):
        # The findings are the source's own, and this table alone says which.
        names = pq.read_schema(path).names
    return read_table(listed.path, label_format(names[1:]))


def label_names(labels: pa.Table) -> tuple[str, ...]:
    """Name the findings of a table of labels, in order."""
    return tuple(name for name in labels.column_names if name != LABEL_KEY)
