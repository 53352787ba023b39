"""The usable images, their reports, labels and boxes, and a reason for what is left out.

One split per patient; patients with boxes never train.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from medclip_dcl.core.artifact import Artifact, ArtifactType
from medclip_dcl.core.errors import ArtifactCorrupt
from medclip_dcl.core.files import write_text
from medclip_dcl.core.tables import Column, TableFormat, read_table, write_table
from medclip_dcl.data.source_settings import LABEL_KEY, SourceConfig
from medclip_dcl.text.labeler.lexicon import LABELS

if TYPE_CHECKING:  # who reads a manifest chooses no studies
    from medclip_dcl.data.records import ImageRecord, Source
    from medclip_dcl.data.selection import Selection

ARTIFACT = ArtifactType("manifest", 2, "build_manifest")

IMAGES = TableFormat(
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
"""One row per usable image, in order of image_id."""

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

BOXES = TableFormat(
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
"""Boxes with their sentences (MS-CXR), one row per box."""

DATASET = "dataset.json"
"""What a dataset's own card says: name, commit, licence, terms (kind `huggingface`)."""

REJECTS = TableFormat(
    "rejects.parquet",
    (
        Column("id", pa.string(), "id of the image or study"),
        Column("stage", pa.string(), "job that rejected it"),
        Column("reason", pa.string(), "reason code"),
    ),
)
"""What was left out, one row per image or study and reason."""

# Test before validate before train: a patient of two splits must not be trained on.
_STRICTEST = ("test", "validate", "train")


def assign_splits(
    subjects: Iterable[str],
    given: Mapping[str, Collection[str]],
    evaluated: Collection[str],
    validate_share: float,
    test_share: float,
) -> dict[str, str]:
    """Put every patient into one split, by hash, so that nobody moves when others come or go.

    `given`: patient -> splits that the source names for its images, of which the one furthest from
    training counts (test, then validate, then train); the shares are of the other patients.
    `evaluated`: patients of the box table, who are always in `test`.
    """
    chosen = {}
    for subject in subjects:
        # "split": another hash of the same id must not be a function of this one
        digest = hashlib.sha256(f"split {subject}".encode("utf-8", "surrogatepass")).digest()
        # A hash is even in all of its bits: its first eight bytes are a number between 0 and 1.
        fraction = int.from_bytes(digest[:8], "big") / 2**64
        named = given.get(subject, ())
        if subject in evaluated:
            chosen[subject] = "test"
        elif named:
            chosen[subject] = next(split for split in _STRICTEST if split in named)
        elif fraction < test_share:
            chosen[subject] = "test"
        else:
            chosen[subject] = "validate" if fraction < test_share + validate_share else "train"
    return chosen


def read_labels(listed: Artifact) -> pa.Table:
    """Read the labels of a manifest, by its own findings; without a row where it has none.

    Raises:
        ArtifactCorrupt: the table cannot be read, or is none of labels.
    """
    if STUDY_LABELS.file not in listed.files:
        return STUDY_LABELS.schema.empty_table()
    path = listed.path / STUDY_LABELS.file
    try:
        # The findings are the source's own, and this table alone says which.
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise ArtifactCorrupt(f"table {path} is missing or damaged; rerun its job") from error
    return read_table(listed.path, label_format(names[1:]))


def label_names(labels: pa.Table) -> tuple[str, ...]:
    """Name the findings of a table of labels, in order."""
    return tuple(name for name in labels.column_names if name != LABEL_KEY)


def split_patients(source: "Source", chosen: "Selection", settings: SourceConfig) -> dict[str, str]:
    """Put every patient of a selection into one split: `assign_splits` with the source's own."""
    return assign_splits(
        sorted({*chosen.subjects.values(), *(image.subject_id for image in chosen.images)}),
        source.raw.splits,
        source.boxes.subjects,
        settings.validate_share,
        settings.test_share,
    )


def write_manifest(folder: Path, source: "Source", settings: SourceConfig) -> dict[str, Any]:
    """Write every table of the manifest.

    Raises:
        StudyError: more rows are unusable than `max_reject_share` allows, or all.
    """
    from medclip_dcl.data.selection import by_reason, require_few_rejects, select

    raw, chosen = source.raw, select(source.raw, settings)
    require_few_rejects(chosen, settings.max_reject_share)
    split_of = split_patients(source, chosen, settings)
    listed = {image.image_id for image in chosen.images}
    # The patients of boxes left out here stay in `test`: `split_patients` has seen all of them.
    boxes = [row for row in source.boxes.rows if row["image_id"] in listed]
    form = label_format(settings.findings)
    labels = form.schema.empty_table()
    if raw.labels is not None:
        labels = labels_of(raw.labels, chosen.subjects)
    write_table(folder, form, labels)
    write_table(folder, IMAGES, _image_rows(chosen.images, split_of))
    write_table(folder, REPORTS, _report_rows(chosen, split_of))
    write_table(folder, BOXES, boxes)
    write_table(
        folder, REJECTS, (item._asdict() | {"stage": ARTIFACT.job} for item in chosen.rejects)
    )
    if raw.card:
        write_text(folder / DATASET, json.dumps(raw.card, indent=1, sort_keys=True) + "\n")
    splits = Counter(split_of[chosen.subjects[study]] for study in chosen.texts)
    return {
        "images": len(chosen.images),
        "reports": len(chosen.texts),
        "patients": len(split_of),
        "labelled": labels.num_rows,
        "boxes": len(boxes),
        "boxes_without_image": len(source.boxes.rows) - len(boxes) + source.boxes.unknown,
        "splits": dict(sorted(splits.items())),
        "split_conflicts": sum(len(named) > 1 for named in raw.splits.values()),
        **raw.counts,
        **({} if raw.by_patient else {"splits_by_patient": False}),
        "rejected": len(chosen.rejects),
        "reasons": dict(sorted(by_reason(chosen.rejects).items())),
    }


def _image_rows(
    images: "Iterable[ImageRecord]", split_of: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    for image in images:
        # Sizes are for boxes: a prepared image has its own.
        shown = {name: value for name, value in image._asdict().items() if name[-3:] != "_px"}
        yield shown | {"split": split_of[image.subject_id]}


def _report_rows(chosen: "Selection", split_of: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for study in sorted(chosen.texts):
        subject = chosen.subjects[study]
        row = {"study_id": study, "subject_id": subject, "split": split_of[subject]}
        yield row | chosen.texts[study]._asdict()


def labels_of(labels: pa.Table, studies: Collection[str]) -> pa.Table:
    """Keep the first row of each of the studies, in order of study_id."""
    # Only the studies of this manifest: a table of labels may be that of a whole archive.
    wanted = labels.filter(pc.is_in(labels["study_id"], pa.array(list(studies), pa.string())))
    first: dict[str, int] = {}
    for row, study in enumerate(wanted["study_id"].to_pylist()):
        first.setdefault(study, row)
    rows = pa.array([first[study] for study in sorted(first)], pa.int64())  # perhaps none
    return wanted.take(rows)
