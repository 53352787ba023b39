"""Prepared studies as Parquet that `datasets` reads; for other code, on this machine alone.

    README.md                   the data card; its head names the files of each split
    data/train-00000.parquet    a row per study, in order of study_id; likewise validation, test

    from datasets import load_dataset
    studies = load_dataset("runs/demo/dataset", split="train")
    studies[0]["images"][0]     # a PIL image

Nothing is sent anywhere. Images and reports stay bound by the terms of their source.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import imagecodecs
import pyarrow as pa
import pyarrow.parquet as pq

from medclip_dcl import files
from medclip_dcl.artifact import Artifact, ArtifactType
from medclip_dcl.data import manifest
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.distributed import available_cores
from medclip_dcl.likelihood.eta import read_eta
from medclip_dcl.progress import Progress
from medclip_dcl.tables import SPLITS, Column, TableFormat, read_table
from medclip_dcl.text.labeler.lexicon import LABELS
from medclip_dcl.text.sentences import SENTENCES

ARTIFACT = ArtifactType("dataset", 1, "export_dataset")

_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_WORDS = pa.list_(pa.list_(pa.string()))


def study_format(findings: Sequence[str]) -> TableFormat:
    """Make the format of the studies of a source with these findings."""
    labels = manifest.label_format(findings).columns[1:]
    return TableFormat(
        "data/*.parquet",
        (
            Column("study_id", pa.string(), "id of the study"),
            Column("subject_id", pa.string(), "id of the patient"),
            Column("split", pa.string(), "train, validate or test; one per patient"),
            Column(
                "images", pa.list_(_PICTURE), "the prepared images, grey PNG: squares of 8 bits"
            ),
            Column("image_ids", pa.list_(pa.string()), "id of each image"),
            Column("views", pa.list_(pa.string()), "view of each image; empty where not known"),
            Column("widths", pa.list_(pa.int32()), "width of each original image, pixels"),
            Column("heights", pa.list_(pa.int32()), "height of each original image, pixels"),
            Column("findings", pa.string(), "text of the findings section"),
            Column("impression", pa.string(), "text of the impression"),
            Column("last_paragraph", pa.string(), "text that stands in where both are empty"),
            Column("sentences", pa.list_(pa.string()), "usable sentences, in the report's order"),
            Column(
                "eta",
                pa.list_(pa.float64()),
                "estimated chance that a random image shares each sentence's class, [0, 1); empty "
                "without build_eta_cache",
            ),
            *labels,
            Column(
                "boxes",
                pa.list_(pa.list_(pa.list_(pa.float64()))),
                "boxes of each image: left, top, width and height as shares of its sides",
            ),
            Column("phrases", _WORDS, "sentence of each box"),
            Column("categories", _WORDS, "finding of each box"),
        ),
    )


STUDIES = study_format(LABELS)
"""One row per study with a prepared image, whether it has a report or not; of a source with other
`source.findings` the columns of labels are those."""

HUB_SPLITS = {"train": "train", "validate": "validation", "test": "test"}
"""Our name of a split -> that of `datasets`, by which its files are named."""

_GROUP_ROWS = 100  # rows that a reader of one row has to read
_LEVEL = 3  # of compression: twice as fast as 6, and 2 % larger

_Row = dict[str, Any]


def parquet_name(split: str, number: int | str) -> str:
    """Name a shard of a split; `*` in place of the number names all of them."""
    return f"data/{HUB_SPLITS[split]}-{number if number == '*' else format(number, '05')}.parquet"


def export_dataset(
    folder: Path,
    listed: Artifact,
    images: PreparedImages,
    texts: Artifact | None,
    eta: Artifact | None,
    shard_bytes: int = 1 << 27,
) -> dict[str, Any]:
    """Write the studies shard by shard and give the artifact's summary; no shard is written twice.

    `texts`: the sentences artifact; None: without sentences. `eta`: its etas; None: without them.
    `shard_bytes`: of a shard's pixels before they are compressed, with an image per study.

    Raises:
        ScoreError: a sentence has no eta.
    """
    from datasets import Features, Image, List  # not for those who import this for its columns

    labels = manifest.read_labels(listed)
    form = study_format(manifest.label_names(labels))
    features = Features.from_arrow_schema(form.schema)
    features["images"] = List(Image())
    schema = features.arrow_schema
    studies = _studies(listed, labels, images, texts, eta)
    (folder / "data").mkdir(exist_ok=True)
    a_shard = max(1, shard_bytes // images.size_px**2)
    counts = Counter(study["split"] for study in studies)
    with (
        Progress("export studies", len(studies), "study") as progress,
        ThreadPoolExecutor(available_cores()) as threads,
    ):
        for split in counts:
            chosen = [study for study in studies if study["split"] == split]
            for number, start in enumerate(range(0, len(chosen), a_shard)):
                part = chosen[start : start + a_shard]
                path = folder / parquet_name(split, number)
                if not path.exists():
                    pictures = threads.map(lambda study: _encode(study, images), part)
                    rows = [
                        row | {"images": shown} for row, shown in zip(part, pictures, strict=True)
                    ]
                    sink = pa.BufferOutputStream()
                    table = pa.Table.from_pylist(rows, schema=schema)
                    pq.write_table(table, sink, row_group_size=_GROUP_ROWS, compression="zstd")
                    files.write_bytes(path, sink.getvalue())
                progress.advance(len(part))
    return {
        "studies": len(studies),
        "images": sum(len(study["image_ids"]) for study in studies),
        "sentences": sum(len(study["sentences"]) for study in studies),
        "size_px": images.size_px,
        "splits": {split: counts[split] for split in SPLITS if counts[split]},
    }


def _encode(study: _Row, images: PreparedImages) -> list[_Row]:
    # Without a path: a reader would look for it on disk.
    pixels = (images.pixels(images.row_of[image_id]) for image_id in study["image_ids"])
    return [
        {"bytes": bytes(imagecodecs.png_encode(each, level=_LEVEL)), "path": None}
        for each in pixels
    ]


def _studies(
    listed: Artifact,
    table: pa.Table,
    images: PreparedImages,
    texts: Artifact | None,
    eta: Artifact | None,
) -> list[_Row]:
    """Make the rows of all studies but for their pictures."""
    shown = defaultdict(list)
    for row in _rows(listed, manifest.IMAGES):
        if row["image_id"] in images.row_of:
            shown[row["study_id"]].append(row)
    said, sentences = defaultdict(list), _rows(texts, SENTENCES) if texts else []
    if eta is not None:
        keys = pa.array([row["text_key"] for row in sentences], pa.string())
        for row, value in zip(sentences, read_eta(eta, keys).tolist(), strict=True):
            row["eta"] = value
    for row in sentences:
        said[row["study_id"]].append(row)
    boxed = defaultdict(list)
    for row in _rows(listed, manifest.BOXES):
        boxed[row["image_id"]].append(row)
    reports = {row["study_id"]: row for row in _rows(listed, manifest.REPORTS)}
    labels = {row["study_id"]: row for row in table.to_pylist()}
    names = manifest.label_names(table)
    studies = []
    for study, rows in sorted(shown.items()):
        sizes = [images.original_size(images.row_of[row["image_id"]]) for row in rows]
        studies.append(
            {name: rows[0][name] for name in ("study_id", "subject_id", "split")}
            | {
                "image_ids": [row["image_id"] for row in rows],
                "views": [row["view"] for row in rows],
                "widths": [width for _, width in sizes],
                "heights": [height for height, _ in sizes],
                "sentences": [item["text"] for item in said[study]],
                "eta": [item["eta"] for item in said[study] if eta is not None],
                "boxes": [
                    [_shares(box, *size) for box in boxed[row["image_id"]]]
                    for row, size in zip(rows, sizes, strict=True)
                ],
                "phrases": [[box["phrase"] for box in boxed[row["image_id"]]] for row in rows],
                "categories": [[box["category"] for box in boxed[row["image_id"]]] for row in rows],
            }
            | {
                name: reports.get(study, {}).get(name, "")
                for name in ("findings", "impression", "last_paragraph")
            }
            | {name: labels.get(study, {}).get(name) for name in names}
        )
    return studies


def _rows(artifact: Artifact, form: TableFormat) -> list[_Row]:
    if form.file not in artifact.files:
        return []
    rows: list[_Row] = read_table(artifact.path, form).to_pylist()
    return rows


def _shares(box: _Row, height_px: int, width_px: int) -> list[float]:
    width, height = box["image_width"] or width_px, box["image_height"] or height_px
    return [box["x"] / width, box["y"] / height, box["width"] / width, box["height"] / height]
