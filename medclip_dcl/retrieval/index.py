"""Build a retrieval index: images and sentences through an encoder, with their sketches."""

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image
from torch import Tensor

from medclip_dcl.core.errors import CheckpointError, ConfigError
from medclip_dcl.core.progress import Progress
from medclip_dcl.core.tables import spread_rows, write_array, write_table
from medclip_dcl.data.manifest import label_names
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.retrieval import IndexConfig, embeddings
from medclip_dcl.text.labeler.labels import split_sides
from medclip_dcl.text.labeler.lexicon import LABELS

if TYPE_CHECKING:
    from medclip_dcl.inference.predictor import Predictor

_BATCH = 32  # images, or sentences, in one forward pass: fits the smallest GPU without gradients
_THUMBNAIL_PX = 256  # longer side; what the viewer and the report show
_JPEG_QUALITY = 85
_Item = TypeVar("_Item")

LANDMARKS = 1536  # sentences, and boxes for a third, at which the score of every image is sketched

_SAMPLED = 4096  # images that the basis of sketches is fitted on
_WITH_BOXES = 1024
_IMAGES_AT_ONCE = 16  # their widened regions and scores stay in a core's cache
_HITS, _QUESTIONS = 10, 64  # of the measured recall


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
) -> IndexContent:
    """List all images and the distinct sentences of their studies.

    `findings` come from `findings_of`; a study may be absent. An image of the manifest that was not
    prepared is left out and counted; ConfigError where none is left.
    """
    wanted = manifest.to_pylist()
    rows = []
    for row in sorted(wanted, key=lambda item: item["image_id"]):
        index = images.row_of.get(row["image_id"])
        if index is not None:
            height, width = images.original_size(index)
            facts = {"height_px": height, "width_px": width}
            row |= facts | {"findings": list(findings.get(row["study_id"], ()))}
            rows.append({column.name: row[column.name] for column in embeddings.IMAGES.columns})
    if not rows:
        raise ConfigError("no image of the manifest is prepared; rerun prepare_images")
    texts, occurrences = _distinct(sentences, {row["study_id"] for row in rows})
    return IndexContent(rows, texts, occurrences, without_pixels=len(wanted) - len(rows))


def _distinct(
    sentences: pa.Table, studies: set[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    columns = sentences.select(["study_id", "text_key", "text"])
    rows = [row for row in columns.to_pylist() if row["study_id"] in studies]
    pairs = list(dict.fromkeys((row["study_id"], row["text_key"]) for row in rows))
    text_of = {row["text_key"]: row["text"] for row in rows}
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
    listed: dict[str, list[str]] = {}
    names = () if labels is None else label_names(labels)
    for row in [] if labels is None else labels.to_pylist():
        listed[row["study_id"]] = [name for name in names if row[name] == 1]
    for row in claims.to_pylist():
        asserted = ["No Finding"] if row["normal"] else sorted(split_sides(row["asserted"]))
        unread = [name for name in listed.get(row["study_id"], ()) if name not in LABELS]
        listed[row["study_id"]] = [*asserted, *unread]
    return listed


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
    images_and_texts = len(chosen.images), len(chosen.texts)
    layout = embeddings.Layout(
        directory.joinpath, *images_and_texts, settings.shard_rows, similarity.dim
    )
    write_table(directory, embeddings.IMAGES, chosen.images)
    write_table(directory, embeddings.TEXTS, chosen.texts)
    write_table(directory, embeddings.OCCURRENCES, chosen.occurrences)
    with Progress("embed images", layout.images, "image") as progress:
        for shard, rows in enumerate(_batches(chosen.images, settings.shard_rows)):
            if not (directory / embeddings.shard_name("pooled", shard)).is_file():
                _write_images(directory, shard, rows, images, encoder, settings.pictures, batch)
            progress.advance(len(rows))
    with Progress("embed sentences", layout.texts, "sentence") as progress:
        for shard, rows in enumerate(_batches(chosen.texts, settings.shard_rows)):
            texts = [row["text"] for row in rows]
            path = directory / embeddings.shard_name("texts", shard)
            _write_once(path, partial(_embed_texts, texts, encoder, batch))
            progress.advance(len(rows))
    _write_sketches(layout, similarity, landmarks)
    recall = measure_recall(layout, settings.candidates, similarity, landmarks)
    return {
        "images": layout.images,
        "texts": layout.texts,
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
        embeddings.write_pictures(
            directory / embeddings.shard_name("pictures", shard, "arrow"), pictures
        )
    parts = []
    for part in _batches(indices, batch):
        pixels = np.stack([images.pixels(index) for index in part])
        parts.append(encoder.embed_images(pixels).float().cpu().numpy())
    regions = np.concatenate(parts)
    write_array(directory / embeddings.shard_name("regions", shard), regions.astype(np.float16))
    # Written last: a shard whose pooled vectors are there is complete.
    write_array(directory / embeddings.shard_name("pooled", shard), embeddings.pool(regions))


def _embed_texts(texts: Sequence[str], encoder: "Predictor", batch: int) -> embeddings.Floats:
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


def _write_once(path: Path, make: Callable[[], embeddings.Floats]) -> None:
    if not path.is_file():  # else a run that was killed has written it
        write_array(path, make())


def _write_sketches(layout: embeddings.Layout, similarity: SimilarityConfig, most: int) -> None:
    """Fit the sketch of a draft and write those of all images and sentences that have none."""
    regions, texts = layout.open("regions"), layout.open("texts")
    if not layout.locate(embeddings.SKETCH).is_file():
        sentences = texts.gather(_landmark_sentences(layout.texts, most))
        drawn_on = regions.gather(spread_rows(layout.images, _WITH_BOXES)).astype(np.float32)
        landmarks = np.concatenate([sentences, _boxes(drawn_on, most // 3)])
        sample = regions.gather(spread_rows(layout.images, _SAMPLED))
        scores = _over_blocks(
            sample, lambda images: embeddings.score_at(landmarks, images, similarity)
        )
        embeddings.fit_sketch(landmarks, scores).write(layout.locate(embeddings.SKETCH))
    sketch_images = partial(layout.sketch.of_images, similarity=similarity)
    with Progress("sketch images", layout.images, "image") as progress:
        for number, shard in enumerate(regions.arrays):
            path = layout.locate(embeddings.shard_name("image_sketches", number))
            _write_once(path, partial(_over_blocks, shard, sketch_images))
            progress.advance(len(shard))
    for number, shard in enumerate(texts.arrays if layout.texts else ()):
        path = layout.locate(embeddings.shard_name("text_sketches", number))
        _write_once(path, partial(layout.sketch.of_vectors, shard))


def measure_recall(
    layout: embeddings.Layout, candidates: int, similarity: SimilarityConfig, landmarks: int
) -> float | None:
    """Ask a draft for images, by sentences that its sketch was not fitted on: recall@10.

    That is the mean share of the ten images with the best exact scores that are among so many
    `candidates`; None where every sentence is a landmark.
    """
    unused = np.setdiff1d(np.arange(layout.texts), _landmark_sentences(layout.texts, landmarks))
    if not len(unused):
        return None
    questions = layout.open("texts").gather(unused[spread_rows(len(unused), _QUESTIONS)])
    near = layout.open("image_sketches").whole() @ layout.sketch.of_vectors(questions).T
    parts = []
    with Progress("measure recall", layout.images, "image") as progress:
        for shard in layout.open("regions").arrays:
            parts.append(
                _over_blocks(shard, lambda block: embeddings.score_at(questions, block, similarity))
            )
            progress.advance(len(shard))
    exact = np.concatenate(parts)
    shares = [
        np.isin(
            embeddings.highest(exact[:, column], _HITS),
            embeddings.highest(near[:, column], candidates),
        ).mean()
        for column in range(len(questions))
    ]
    return float(np.mean(shares))


def _over_blocks(
    images: npt.NDArray[np.float16], give: Callable[[Tensor], embeddings.Floats]
) -> embeddings.Floats:
    """Apply `give` to float32 blocks (images, regions, dim) and join what it gives."""
    parts = []
    for first in range(0, len(images), _IMAGES_AT_ONCE):
        block = torch.from_numpy(np.array(images[first : first + _IMAGES_AT_ONCE]))
        parts.append(give(block.float().flatten(1, 2)))
    return np.concatenate(parts)


def _landmark_sentences(texts: int, landmarks: int) -> embeddings.Rows:
    """Rows, ascending, of the sentences that a sketch is fitted on."""
    return spread_rows(texts, landmarks - landmarks // 3)


def _boxes(regions: embeddings.Floats, count: int) -> embeddings.Floats:
    """Unit vectors of boxes drawn on images: what a box of an image asks with."""
    rng = np.random.default_rng(0)
    images, height, width, dim = regions.shape
    means = np.empty((count, dim), dtype=np.float32)
    for number in range(count):
        tall, wide = rng.integers(1, height // 2 + 2), rng.integers(1, width // 2 + 2)
        top = rng.integers(0, max(1, height - tall + 1))
        left = rng.integers(0, max(1, width - wide + 1))
        inside = regions[number % images, top : top + tall, left : left + wide]
        means[number] = inside.mean(axis=(0, 1))
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    boxes: embeddings.Floats = means[lengths[:, 0] > 0] / lengths[lengths > 0][:, None]
    return boxes
