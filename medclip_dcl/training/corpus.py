"""The usable studies of a split: their films, sentences, and what is known about both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float32, Int64

from medclip_dcl.artifacts.eta_cache import EtaCache
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.manifest import BOXES, IMAGES
from medclip_dcl.artifacts.prepared import PreparedImages
from medclip_dcl.artifacts.sentences import SENTENCES
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.errors import StudyError
from medclip_dcl.training.sampler import Groups


@dataclass(frozen=True)
class Corpus:
    """Studies of one split that have a prepared film and a usable sentence.

    Studies, distinct texts, films and sentences are numbered from 0, each in order of
    its id, so equal artifacts give equal numbers.
    """

    study_ids: tuple[str, ...]
    subject_ids: frozenset[str]
    films: Groups
    """Films of each study."""
    image_ids: tuple[str, ...]
    """Id of each film."""
    study_of_film: Int64[np.ndarray, " films"]
    """Study of each film."""
    film_rows: Int64[np.ndarray, " films"]
    """Row of each film in the prepared images."""
    sentences: Groups
    """Sentences of each study."""
    text_of: Int64[np.ndarray, " sentences"]
    """Distinct text of each sentence."""
    texts: tuple[str, ...]
    """Distinct texts."""
    text_keys: tuple[str, ...]
    """Key of each distinct text."""
    eta: Float32[np.ndarray, " texts"]
    """Class probability of each distinct text, in [0, 1)."""


def read_corpus(
    manifest: Artifact,
    prepared: PreparedImages,
    sentences: Artifact,
    eta: EtaCache,
    split: str,
) -> Corpus:
    """Read the usable studies of a split.

    Args:
        manifest: the manifest.
        prepared: the prepared images; films that are not there are left out.
        sentences: the sentences.
        eta: the class probabilities.
        split: train, validate or test.

    Returns:
        The corpus; it may be empty.

    Raises:
        ScoreError: a sentence has no eta.
        StudyError: a patient whose films have boxes is in the training split.
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
    study_of_film = _places(images["study_id"], study_ids)
    return Corpus(
        study_ids=tuple(study_ids.to_pylist()),
        subject_ids=subjects,
        films=Groups(study_of_film, len(study_ids)),
        image_ids=tuple(image_ids),
        study_of_film=study_of_film,
        film_rows=np.array([prepared.row_of[name] for name in image_ids], dtype=np.int64),
        sentences=Groups(_places(said["study_id"], study_ids), len(study_ids)),
        text_of=_places(said["text_key"], pa.array(keys, pa.string())),
        texts=tuple(texts),
        text_keys=tuple(keys.tolist()),
        eta=_eta_of(eta, keys.tolist()),
    )


def _of_split(table: pa.Table, split: str) -> pa.Table:
    return table.filter(pc.equal(table["split"], split))


def _common(one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.Array:
    ids = pc.unique(one.filter(pc.is_in(one, pc.unique(other))))
    return ids.take(pc.array_sort_indices(ids))


def _places(values: pa.ChunkedArray, among: pa.Array) -> Int64[np.ndarray, " values"]:
    places: np.ndarray = pc.index_in(values, among).to_numpy()
    return places.astype(np.int64)


def _eta_of(eta: EtaCache, keys: Sequence[str]) -> Float32[np.ndarray, " texts"]:
    return np.asarray(eta.eta_of(keys), dtype=np.float32)


def _refuse_boxed(manifest: Artifact, subjects: frozenset[str]) -> None:
    boxed = set(read_table(manifest.path, BOXES, ["subject_id"])["subject_id"].to_pylist())
    if both := boxed & subjects:
        raise StudyError(
            f"{len(both)} patients of the box table are in the training split, and grounding is "
            "measured on them; rerun build_manifest with source.boxes set"
        )
