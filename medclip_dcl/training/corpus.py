"""Studies, images and sentences of a split, as numbers; ids and texts stay in Arrow's memory.

Studies, distinct texts, images and sentences are numbered from 0, so that a batch is an index into
flat arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from medclip_dcl.core.artifact import Artifact
from medclip_dcl.core.errors import StudyError
from medclip_dcl.core.tables import read_table
from medclip_dcl.data.manifest import BOXES, IMAGES
from medclip_dcl.data.prepared import PreparedImages
from medclip_dcl.likelihood.eta import read_eta
from medclip_dcl.text.sentences import SENTENCES
from medclip_dcl.training.sampler import RaggedIndex

_AT_ONCE = 8192  # strings that become Python objects


class Strings(Sequence[str]):
    """Strings of an Arrow column, each made when it is asked for."""

    def __init__(self, column: pa.Array | pa.ChunkedArray) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            part: list[str] = self.column[index].to_pylist()
            return part
        value: str = self.column[int(index)].as_py()
        return value

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.column.slice(start, _AT_ONCE).to_pylist()


@dataclass(frozen=True)
class Corpus:
    """Studies of one split that have a prepared image and a usable sentence.

    Studies, distinct texts and images are in order of their ids, sentences in that of their
    studies, so equal artifacts give equal numbers.
    """

    study_ids: Sequence[str]
    subject_ids: Sequence[str]  # patients, each once
    images: RaggedIndex  # images of each study
    image_ids: Sequence[str]
    image_rows: Int64[np.ndarray, " images"]  # row of each image in the prepared images
    sentences: RaggedIndex  # sentences of each study
    text_of: Int64[np.ndarray, " sentences"]  # distinct text of each sentence
    texts: Sequence[str]
    text_keys: Sequence[str]
    eta: Float32[np.ndarray, " texts"]  # class probability of each distinct text, in [0, 1)


def read_corpus(
    manifest: Artifact, prepared: PreparedImages, sentences: Artifact, eta: Artifact, split: str
) -> Corpus:
    """Read the usable studies of a split; there may be none.

    Raises:
        ScoreError: a sentence has no eta.
        StudyError: a patient whose images have boxes is in the training split.
    """
    columns = ["image_id", "study_id", "subject_id", "split"]
    images = _of_split(read_table(manifest.path, IMAGES, columns), split)
    # Null where an image was refused when it was prepared.
    rows = pc.index_in(images["image_id"], prepared.id_column)
    images = images.append_column("row", rows).filter(pc.is_valid(rows))
    columns = ["study_id", "split", "text", "text_key"]
    spoken = _of_split(read_table(sentences.path, SENTENCES, columns), split)
    # A study needs both: an image to show and a sentence to read.
    study_ids = _common(images["study_id"], spoken["study_id"])
    images = images.filter(pc.is_in(images["study_id"], study_ids)).sort_by("image_id")
    spoken = spoken.filter(pc.is_in(spoken["study_id"], study_ids))
    subjects = pc.unique(images["subject_id"])
    if split == "train":
        _refuse_boxed(manifest, subjects)
    owners = _indices(spoken["study_id"], study_ids)
    keys = _sorted(pc.unique(spoken["text_key"]))
    text_of = _indices(spoken["text_key"], keys)
    texts = _first_of_each(spoken["text"], text_of, len(keys))
    # Sorted by study, so that equal artifacts give equal numbers whatever the tables' order.
    return Corpus(
        study_ids=Strings(study_ids),
        subject_ids=Strings(_sorted(subjects)),
        images=RaggedIndex(_indices(images["study_id"], study_ids), len(study_ids)),
        image_ids=Strings(images["image_id"]),
        image_rows=images["row"].to_numpy().astype(np.int64),
        sentences=RaggedIndex(np.sort(owners), len(study_ids)),
        text_of=text_of[np.argsort(owners, kind="stable")],
        texts=Strings(texts),
        text_keys=Strings(keys),
        eta=read_eta(eta, keys).astype(np.float32),
    )


def _of_split(table: pa.Table, split: str) -> pa.Table:
    return table.filter(pc.equal(table["split"], split))


def _sorted(values: pa.Array) -> pa.Array:
    return values.take(pc.array_sort_indices(values))


def _common(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    return _sorted(pc.unique(one.filter(pc.is_in(one, pc.unique(other)))))


def _indices(values: pa.ChunkedArray, among: pa.Array) -> Int64[np.ndarray, " values"]:
    indices: np.ndarray = pc.index_in(values, among).to_numpy()
    return indices.astype(np.int64)


def _first_of_each(
    values: pa.ChunkedArray, number: Int64[np.ndarray, " values"], count: int
) -> pa.Array:
    # The first value of every number, in order of the numbers.
    first = np.empty(count, dtype=np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]  # of several, the last assignment stays
    rows, order = np.unique(first, return_inverse=True)
    return values.take(pa.array(rows)).combine_chunks().take(pa.array(order))


def _refuse_boxed(manifest: Artifact, subjects: pa.Array) -> None:
    boxed = pc.unique(read_table(manifest.path, BOXES, ["subject_id"])["subject_id"])
    if both := pc.sum(pc.is_in(boxed, subjects)).as_py():
        raise StudyError(
            f"{both} patients of the box table are in the training split, and grounding is "
            "measured on them; rerun build_manifest with source.boxes set"
        )


class TokenTable:
    """Word pieces of every distinct text, cut once; longer ones than `max_tokens` truncated.

    `starts` is where the pieces of each text begin in `pieces`, and where the last ones end.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int
    ) -> None:
        lengths, pieces = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int32)]
        # In parts: lists of lists of a million sentences would take ten times the arrays' memory.
        for start in range(0, len(texts), _AT_ONCE):
            part = list(texts[start : start + _AT_ONCE])
            rows = tokenizer(
                part, truncation=True, max_length=max_tokens, split_special_tokens=True
            )["input_ids"]
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
            flat = (piece for row in rows for piece in row)
            pieces.append(np.fromiter(flat, dtype=np.int32, count=int(lengths[-1].sum())))
        self.starts, self.pieces = np.concatenate(lengths).cumsum(), np.concatenate(pieces)
        self._padding = int(tokenizer.pad_token_id)

    @property
    def lengths(self) -> Int64[np.ndarray, " texts"]:
        """Number of pieces of each text."""
        return np.diff(self.starts)

    def padded(
        self, texts: Int[np.ndarray, " local"]
    ) -> tuple[Int[Tensor, "local tokens"], Int[Tensor, "local tokens"]]:
        """Return ids of some texts, padded to the longest; and 1 for real tokens, 0 for padding."""
        starts, ends = self.starts[texts], self.starts[texts + 1]
        width = int((ends - starts).max())
        index = starts[:, None] + np.arange(width)
        real = index < ends[:, None]
        ids = np.where(real, self.pieces[np.where(real, index, 0)], self._padding)
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(real.astype(np.int64))
