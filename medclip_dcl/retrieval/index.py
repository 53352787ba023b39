"""Build a retrieval index: images and sentences through an encoder, with their sketches."""

import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from PIL import Image

from medclip_dcl.data.manifest import label_names
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import CheckpointError, ConfigError
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.progress import Progress
from medclip_dcl.retrieval.embeddings import (
    IMAGES,
    OCCURRENCES,
    TEXTS,
    Floats,
    pool,
    shard_name,
    write_array,
    write_pictures,
)
from medclip_dcl.retrieval.settings import IndexConfig
from medclip_dcl.retrieval.sketch import LANDMARKS, measure_recall, write_sketches
from medclip_dcl.tables import write_table
from medclip_dcl.text.labeler.labels import split_sides
from medclip_dcl.text.labeler.lexicon import LABELS

if TYPE_CHECKING:
    from medclip_dcl.inference.predictor import Predictor

_BATCH = 32  # images, or sentences, in one forward pass: fits the smallest GPU without gradients
_THUMBNAIL_PX = 256  # longer side; what the viewer and the report show
_JPEG_QUALITY = 85
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class IndexContent:
    """Content of an index: images, distinct sentences, and who says which."""

    images: list[dict[str, Any]]
    texts: list[dict[str, Any]]
    occurrences: list[dict[str, Any]]
    without_pixels: int


def select_content(
    manifest: pa.Table,
    sentences: pa.Table,
    findings: Mapping[str, Sequence[str]],
    images: PreparedImages,
    splits: Sequence[str],
) -> IndexContent:
    """Choose the images of the given splits and the distinct sentences of their studies.

    `findings` come from `findings_of`; a study may be absent. An image of the manifest that was not
    prepared is left out and counted; ConfigError where none is left.
    """
    wanted = [row for row in manifest.to_pylist() if row["split"] in set(splits)]
    rows = []
    for row in sorted(wanted, key=lambda item: item["image_id"]):
        index = images.row_of.get(row["image_id"])
        if index is not None:
            height, width = images.original_size(index)
            facts = {"height_px": height, "width_px": width}
            row |= facts | {"findings": list(findings.get(row["study_id"], ()))}
            rows.append({column.name: row[column.name] for column in IMAGES.columns})
    if not rows:
        raise ConfigError(f"index.splits = {list(splits)} holds no prepared image; choose others")
    texts, occurrences = _distinct(sentences, {row["study_id"] for row in rows})
    return IndexContent(rows, texts, occurrences, without_pixels=len(wanted) - len(rows))


def _distinct(
    sentences: pa.Table, studies: set[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    columns = sentences.select(["study_id", "text_key", "text"])
    said = [row for row in columns.to_pylist() if row["study_id"] in studies]
    pairs = list(dict.fromkeys((row["study_id"], row["text_key"]) for row in said))
    text_of = {row["text_key"]: row["text"] for row in said}
    index_of = {key: number for number, key in enumerate(sorted(text_of))}
    counts = Counter(key for _, key in pairs)
    texts = [{"text_key": key, "text": text_of[key], "studies": counts[key]} for key in index_of]
    return texts, [{"study_id": study, "text": index_of[key]} for study, key in pairs]


def findings_of(claims: pa.Table, labels: pa.Table | None) -> dict[str, list[str]]:
    """List the findings that an image can be filtered by, of each study.

    What its report asserts (`REPORT_CLAIMS`), `No Finding` where it calls the image normal, and
    the labels that are 1 of findings that reports are not read for; of a study without a report,
    all labels that are 1 (`manifest.read_labels`; None: the source has none).
    """
    found: dict[str, list[str]] = {}
    names = () if labels is None else label_names(labels)
    for row in [] if labels is None else labels.to_pylist():
        found[row["study_id"]] = [name for name in names if row[name] == 1]
    for row in claims.to_pylist():
        asserted = ["No Finding"] if row["normal"] else sorted(split_sides(row["asserted"]))
        unread = [name for name in found.get(row["study_id"], ()) if name not in LABELS]
        found[row["study_id"]] = [*asserted, *unread]
    return found


def write_index(
    directory: Path,
    chosen: IndexContent,
    images: PreparedImages,
    encoder: "Predictor",
    settings: IndexConfig,
    similarity: SimilarityConfig,
    batch: int = _BATCH,
    landmarks: int = LANDMARKS,
) -> dict[str, Any]:
    """Embed a selection and write every file of the index, and give its summary.

    Shards that are in the draft's `directory` are kept. `similarity` is the model's; `batch` counts
    images, or sentences, of one forward pass; `landmarks` are explained at `LANDMARKS`.

    Raises:
        CheckpointError: a vector is not finite, or has no direction.
    """
    write_table(directory, IMAGES, chosen.images)
    write_table(directory, TEXTS, chosen.texts)
    write_table(directory, OCCURRENCES, chosen.occurrences)
    with Progress("embed images", len(chosen.images), "image") as progress:
        for shard, rows in enumerate(_batches(chosen.images, settings.shard_rows)):
            if not (directory / shard_name("pooled", shard)).is_file():
                _write_images(directory, shard, rows, images, encoder, settings.pictures, batch)
            progress.advance(len(rows))
    with Progress("embed sentences", len(chosen.texts), "sentence") as progress:
        for shard, rows in enumerate(_batches(chosen.texts, settings.shard_rows)):
            path = directory / shard_name("texts", shard)
            if not path.is_file():
                texts = [row["text"] for row in rows]
                write_array(path, _embed_texts(texts, encoder, batch))
            progress.advance(len(rows))
    counts = len(chosen.images), len(chosen.texts)
    write_sketches(directory, counts, settings, similarity, landmarks)
    recall = measure_recall(directory, counts, settings, similarity, landmarks)
    return {
        "images": len(chosen.images),
        "texts": len(chosen.texts),
        "occurrences": len(chosen.occurrences),
        "images_without_pixels": chosen.without_pixels,
        "candidate_recall_at_10": None if recall is None else round(recall, 4),
    }


def _write_images(
    directory: Path,
    shard: int,
    rows: Sequence[dict[str, Any]],
    images: PreparedImages,
    encoder: "Predictor",
    with_pictures: bool,
    batch: int,
) -> None:
    indices = [images.row_of[row["image_id"]] for row in rows]
    if with_pictures:
        pictures = [_thumbnail(images, index) for index in indices]
        write_pictures(directory / shard_name("pictures", shard, "arrow"), pictures)
    parts = []
    for part in _batches(indices, batch):
        pixels = np.stack([images.pixels(index) for index in part])
        parts.append(encoder.embed_images(pixels).float().cpu().numpy())
    regions = np.concatenate(parts)
    write_array(directory / shard_name("regions", shard), regions.astype(np.float16))
    # Written last: a shard whose pooled vectors are there is complete.
    write_array(directory / shard_name("pooled", shard), pool(regions))


def _embed_texts(texts: Sequence[str], encoder: "Predictor", batch: int) -> Floats:
    parts = [encoder.embed_sentences(part).float().cpu().numpy() for part in _batches(texts, batch)]
    vectors = np.concatenate(parts).astype(np.float32, copy=False)
    if not np.isfinite(vectors).all() or not (np.linalg.norm(vectors, axis=1) > 0).all():
        raise CheckpointError("the model gave a vector without direction; train it again")
    return vectors


def _thumbnail(images: PreparedImages, index: int) -> bytes:
    height, width = images.original_size(index)
    scale = _THUMBNAIL_PX / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    picture = Image.fromarray(images.pixels(index)).resize(size, Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=_JPEG_QUALITY)
    return stream.getvalue()


def _batches(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
