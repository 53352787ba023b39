"""Images, sentences, eta and supervision of a split -> the batch of any step.

Axes
    batch  slots of the global batch, over all processes
    local  slots of this process: a slice of the batch

Only images and word pieces are cut to this process's share. Everything small is kept for
the whole batch: it is a function of the step, so nothing of it needs to be gathered.
"""

import hashlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Bool, Float, Float32, Int, Int8, Int64, UInt8
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medclip_dcl.artifact import Artifact
from medclip_dcl.data.ground_truth import Truth
from medclip_dcl.data.manifest import BOXES, IMAGES, label_names, read_labels
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.errors import ConfigError, StudyError
from medclip_dcl.likelihood.eta import EtaCache
from medclip_dcl.losses.place import encode_zones
from medclip_dcl.losses.relations import encode_claims, encode_labels, encode_truth
from medclip_dcl.retrieval.embeddings import map_array
from medclip_dcl.rng import RngStream, generator_for
from medclip_dcl.tables import TableFormat, read_table
from medclip_dcl.text.labeler.labels import (
    REPORT_CLAIMS,
    SENTENCE_CLAIMS,
    SILENT,
    ReportLabels,
    claimed_findings,
    read_claims,
)
from medclip_dcl.text.sentences import SENTENCES
from medclip_dcl.training.augment import centre_crops, cut, draw_crops, slack_px
from medclip_dcl.training.sampler import ImageTextSampler, RaggedIndex
from medclip_dcl.training.settings import ObjectiveConfig


@dataclass(frozen=True)
class Corpus:
    """Studies of one split that have a prepared image and a usable sentence.

    Studies, distinct texts, images and sentences are numbered from 0, each in order of
    its id, so equal artifacts give equal numbers.
    """

    study_ids: tuple[str, ...]
    subject_ids: frozenset[str]
    images: RaggedIndex
    """Images of each study."""
    image_ids: tuple[str, ...]
    study_of_image: Int64[np.ndarray, " images"]
    image_rows: Int64[np.ndarray, " images"]
    """Row of each image in the prepared images."""
    sentences: RaggedIndex
    """Sentences of each study."""
    text_of: Int64[np.ndarray, " sentences"]
    """Distinct text of each sentence."""
    texts: tuple[str, ...]
    text_keys: tuple[str, ...]
    eta: Float32[np.ndarray, " texts"]
    """Class probability of each distinct text, in [0, 1)."""


def read_corpus(
    manifest: Artifact,
    prepared: PreparedImages,
    sentences: Artifact,
    eta: EtaCache,
    split: str,
) -> Corpus:
    """Read the usable studies of a split; there may be none.

    Raises:
        ScoreError: a sentence has no eta.
        StudyError: a patient whose images have boxes is in the training split.
    """
    images = _of_split(
        read_table(manifest.path, IMAGES, ["image_id", "study_id", "subject_id", "split"]), split
    )
    images = images.filter(pc.is_in(images["image_id"], pa.array(list(prepared.row_of))))
    said = _of_split(
        read_table(sentences.path, SENTENCES, ["study_id", "split", "text", "text_key"]), split
    )
    study_ids = _common(images["study_id"], said["study_id"])
    images = images.filter(pc.is_in(images["study_id"], study_ids)).sort_by("image_id")
    said = said.filter(pc.is_in(said["study_id"], study_ids))
    keys, first = np.unique(said["text_key"].to_numpy(), return_index=True)
    texts = said["text"].take(pa.array(first)).to_pylist()
    subjects = frozenset(images["subject_id"].to_pylist())
    if split == "train":
        _refuse_boxed(manifest, subjects)
    image_ids = images["image_id"].to_pylist()
    study_of_image = _indices(images["study_id"], study_ids)
    return Corpus(
        study_ids=tuple(study_ids.to_pylist()),
        subject_ids=subjects,
        images=RaggedIndex(study_of_image, len(study_ids)),
        image_ids=tuple(image_ids),
        study_of_image=study_of_image,
        image_rows=np.array([prepared.row_of[name] for name in image_ids], dtype=np.int64),
        sentences=RaggedIndex(_indices(said["study_id"], study_ids), len(study_ids)),
        text_of=_indices(said["text_key"], pa.array(keys, pa.string())),
        texts=tuple(texts),
        text_keys=tuple(keys.tolist()),
        eta=np.asarray(eta.eta_of(keys.tolist()), dtype=np.float32),
    )


def _of_split(table: pa.Table, split: str) -> pa.Table:
    return table.filter(pc.equal(table["split"], split))


def _common(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    ids = pc.unique(one.filter(pc.is_in(one, pc.unique(other))))
    return ids.take(pc.array_sort_indices(ids))


def _indices(values: pa.ChunkedArray, among: pa.Array) -> Int64[np.ndarray, " values"]:
    indices: np.ndarray = pc.index_in(values, among).to_numpy()
    return indices.astype(np.int64)


def _refuse_boxed(manifest: Artifact, subjects: frozenset[str]) -> None:
    boxed = set(read_table(manifest.path, BOXES, ["subject_id"])["subject_id"].to_pylist())
    if both := boxed & subjects:
        raise StudyError(
            f"{len(both)} patients of the box table are in the training split, and grounding is "
            "measured on them; rerun build_manifest with source.boxes set"
        )


# Labels that `remove_labels` compares; the paper's five findings.
_CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")


@dataclass(frozen=True)
class Supervision:
    """Codes of texts and studies; None where the objective asks for none."""

    sentence_codes: Int8[Tensor, "texts codes"] | None = None
    """Claims of each distinct text."""
    report_codes: Int8[Tensor, "studies codes"] | None = None
    """Claims of each study's report, or its labels."""
    labels: Bool[Tensor, "studies findings"] | None = None
    """Which of the five findings are labelled present."""
    zones: Int8[Tensor, " texts"] | None = None
    """Third of the lung that each distinct text names."""
    text_vectors: Float[Tensor, "texts dim"] | None = None
    """Unit vector of each distinct text, by which texts are compared."""


def needs_claims(settings: ObjectiveConfig) -> bool:
    """Return whether an objective reads the claims artifact."""
    return settings.relation != "none" or settings.place_weight > 0


def read_supervision(
    settings: ObjectiveConfig,
    corpus: Corpus,
    manifest: Artifact,
    claims: Artifact | None,
    truth: Truth | None,
) -> Supervision:
    """Read what the objective asks for; ConfigError where the source has no labels or truth."""
    sentence_codes = report_codes = labels = zones = None
    if claims is not None and needs_claims(settings):
        said = read_report_labels(claims, SENTENCE_CLAIMS, "text_key", corpus.text_keys)
        findings = claimed_findings(claims)
        sentence_codes, zones = encode_claims(said, findings), encode_zones(said)
        if settings.relation in {"claims", "none"}:
            reports = read_report_labels(claims, REPORT_CLAIMS, "study_id", corpus.study_ids)
            report_codes = encode_claims(reports, findings)
        if settings.relation == "labels":
            rows = _label_rows(manifest, corpus.study_ids, findings)
            report_codes = encode_labels(rows, findings)
        elif settings.relation == "truth":
            report_codes = encode_truth(_present(truth, corpus), findings)
    if settings.negatives == "remove_labels":
        rows = _label_rows(manifest, corpus.study_ids, _CHEX5)
        labels = torch.tensor([[row.get(name) == 1 for name in _CHEX5] for row in rows])
    return Supervision(sentence_codes, report_codes, labels, zones)


def read_report_labels(
    claims: Artifact, form: TableFormat, key: str, ids: Sequence[str]
) -> list[ReportLabels]:
    """Read the claims of sentences or reports, in order of `ids`; unknown ones are silent."""
    wanted = set(ids)
    rows = {
        row[key]: ReportLabels.from_row(row)
        for row in read_table(claims.path, form).to_pylist()
        if row[key] in wanted
    }
    return [rows.get(name, SILENT) for name in ids]


def _present(truth: Truth | None, corpus: Corpus) -> list[dict[str, frozenset[str]]]:
    # Findings of each study with their sides, as the plainest sentences put them.
    if truth is None:
        raise ConfigError("objective.relation is truth, which generated studies alone have")
    sides_of = {name: read_claims(text).asserted for name, text in truth.gallery.items()}
    present: list[dict[str, frozenset[str]]] = [{} for _ in corpus.study_ids]
    for image_id, study in zip(corpus.image_ids, corpus.study_of_image.tolist(), strict=True):
        for fine in truth.findings_of.get(image_id, frozenset()):
            for name, sides in sides_of[fine].items():
                present[study][name] = present[study].get(name, frozenset()) | sides
    return present


def _label_rows(
    manifest: Artifact, study_ids: Sequence[str], findings: Sequence[str]
) -> list[dict[str, int | None]]:
    labels = read_labels(manifest)
    rows = {row.pop("study_id"): row for row in labels.to_pylist()}
    if not (rows.keys() & set(study_ids) and set(label_names(labels)) & set(findings)):
        raise ConfigError(
            "the objective reads labels and no training study has one of its findings; set "
            "source.columns.labels or source.labels, or objective.relation and "
            "objective.negatives to other kinds"
        )
    return [rows.get(study, {}) for study in study_ids]


@dataclass(frozen=True)
class ImageTextBatch:
    """Images, texts and supervision of one step of a process."""

    step: int
    mine: slice
    """This process's slots in the global batch."""
    study_ids: tuple[str, ...]
    """Study of each slot, for messages."""
    crops: UInt8[Tensor, "local 1 input_px input_px"]
    """Crops of the images, 0 black to 255 white."""
    brightness: Float[Tensor, " local"]
    contrast: Float[Tensor, " local"]
    input_ids: Int[Tensor, "local tokens"]
    """Word pieces, padded to the longest sentence of these."""
    attention_mask: Int[Tensor, "local tokens"]
    eta: Float[Tensor, " batch"]
    """Class probability of each sentence."""
    sentence_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each sentence."""
    report_codes: Int8[Tensor, "batch codes"] | None
    """Claims of each report."""
    labels: Bool[Tensor, "batch findings"] | None
    """Findings that each report's labels call present."""
    zones: Int8[Tensor, " batch"] | None = None
    """Third of the lung that each sentence names."""
    text_vectors: Float[Tensor, "batch dim"] | None = None
    """Unit vector of each sentence, by which texts are compared."""
    image_features: Float[Tensor, "local channels rows columns"] | None = None
    """What a frozen encoder gives for each image, in place of a crop."""
    text_features: Float[Tensor, "local width"] | None = None
    """What a frozen encoder gives for each sentence."""

    def to(self, device: torch.device) -> "ImageTextBatch":
        """Copy the batch to a device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


class TokenTable:
    """Word pieces of every distinct text, cut once; longer ones than `max_tokens` truncated.

    `lengths` has the number of pieces of each.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int
    ) -> None:
        rows = []
        if texts:  # a tokenizer refuses an empty list
            rows = tokenizer(
                list(texts), truncation=True, max_length=max_tokens, split_special_tokens=True
            )["input_ids"]
        # One flat array: a list of lists of a million sentences would take ten times the memory.
        self.lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self._starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self._flat = np.fromiter(
            (piece for row in rows for piece in row), dtype=np.int32, count=int(self.lengths.sum())
        )
        self._padding = int(tokenizer.pad_token_id)

    @property
    def digest(self) -> str:
        """SHA-256 of all word pieces."""
        return hashlib.sha256(self._starts.tobytes() + self._flat.tobytes()).hexdigest()

    def padded(
        self, texts: Int[np.ndarray, " local"]
    ) -> tuple[Int[Tensor, "local tokens"], Int[Tensor, "local tokens"]]:
        """Give ids of some texts, padded to the longest; and 1 for real tokens, 0 for padding."""
        starts, ends = self._starts[texts], self._starts[texts + 1]
        width = int((ends - starts).max())
        index = starts[:, None] + np.arange(width)
        real = index < ends[:, None]
        ids = np.where(real, self._flat[np.where(real, index, 0)], self._padding)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(real.astype(np.int64))


class SplitFeatures:
    """Features of one split, mapped into memory."""

    def __init__(self, folder: Path, split: str) -> None:
        self._images = _Rows(folder, f"{split}-images")
        self._texts = _Rows(folder, f"{split}-texts")

    def images(
        self, images: Int[np.ndarray, " local"]
    ) -> Float[Tensor, "local channels rows columns"]:
        """Give the maps of images of the corpus, float32."""
        return self._images.of(images)

    def texts(self, texts: Int[np.ndarray, " local"]) -> Float[Tensor, "local width"]:
        """Give the states of distinct texts of the corpus, float32."""
        return self._texts.of(texts)


class _Rows:
    # Rows of arrays that lie in several files, all but the last of one length.

    def __init__(self, folder: Path, name: str) -> None:
        self._shards = [map_array(file, np.float16) for file in sorted(folder.glob(f"{name}-*"))]

    def of(self, rows: Int[np.ndarray, " local"]) -> Tensor:
        size = len(self._shards[0])
        found = [self._shards[row // size][row % size] for row in rows.tolist()]
        return torch.from_numpy(np.stack(found)).float()


class ImageTextDataset:
    """Makes the batch of any step, by whichever thread asks.

    `seed` is that of the augmentation, None: every image is seen in the middle, as it is. `mine`
    are this process's slots in the global batch, `input_px` the side of the crops. Where the
    encoders are frozen, their `features` stand for crops and word pieces.
    """

    def __init__(
        self,
        corpus: Corpus,
        supervision: Supervision,
        prepared: PreparedImages,
        tokens: TokenTable,
        sampler: ImageTextSampler,
        input_px: int,
        seed: int | None,
        mine: slice,
        features: SplitFeatures | None = None,
    ) -> None:
        self._features = features
        self._corpus, self.supervision, self._prepared = corpus, supervision, prepared
        self.tokens, self._sampler = tokens, sampler
        self._input_px, self._seed, self._mine = input_px, seed, mine
        self._slack = slack_px(prepared.size_px, input_px)
        self._eta = torch.from_numpy(corpus.eta)

    def batch(self, step: int) -> ImageTextBatch:
        """Make the batch of a step, from 0; a function of the step alone."""
        rows = self._sampler.draw(step)
        texts = self._corpus.text_of[rows.sentences]
        mine, slots = self._mine, len(rows.studies)
        # For all slots, so that a view does not depend on the number of processes.
        if self._seed is None:
            views = centre_crops(slots, self._slack)
        else:
            generator = generator_for(self._seed, RngStream.VIEW, step)
            views = draw_crops(generator, slots, self._slack)
        images = self._corpus.image_rows[rows.images[mine]].tolist()
        features, side = self._features, 0 if self._features else self._input_px
        crops = np.empty((len(images), 1, side, side), dtype=np.uint8)
        if features is None:
            for out, image, top, left in zip(
                crops, images, views.top[mine], views.left[mine], strict=True
            ):
                cut(self._prepared.pixels(image), int(top), int(left), out[0])
        ids, mask = self.tokens.padded(texts[mine])
        return ImageTextBatch(
            step=step,
            mine=mine,
            study_ids=tuple(self._corpus.study_ids[study] for study in rows.studies),
            crops=torch.from_numpy(crops),
            brightness=torch.from_numpy(views.brightness[mine]),
            contrast=torch.from_numpy(views.contrast[mine]),
            input_ids=ids,
            attention_mask=mask,
            eta=self._eta[texts],
            sentence_codes=_rows(self.supervision.sentence_codes, texts),
            report_codes=_rows(self.supervision.report_codes, rows.reports),
            labels=_rows(self.supervision.labels, rows.reports),
            zones=_rows(self.supervision.zones, texts),
            text_vectors=_rows(self.supervision.text_vectors, texts),
            image_features=None if features is None else features.images(rows.images[mine]),
            text_features=None if features is None else features.texts(texts[mine]),
        )


def _rows(table: Tensor | None, rows: Int[np.ndarray, " batch"]) -> Tensor | None:
    return None if table is None else table[torch.from_numpy(rows)]


def prefetch(
    make: Callable[[int], ImageTextBatch], start: int, stop: int
) -> Generator[ImageTextBatch, None, None]:
    """Make the batches of steps [start, stop) in order, each while the one before is in use."""
    # One thread suffices: reading and cropping a batch takes a small part of a step.
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as pool:
        pending: Future[ImageTextBatch] | None = None
        for step in range(start, stop):
            batch = (pending or pool.submit(make, step)).result()
            pending = pool.submit(make, step + 1) if step + 1 < stop else None
            yield batch
