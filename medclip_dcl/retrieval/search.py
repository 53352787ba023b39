"""An opened retrieval index: queries to ranked images or sentences.

What is asked and wanted decides the exact score and how candidates are found:

    sentence or box -> images      score of all regions; candidates by sketches
    image -> sentences             the same score the other way; candidates by sketches
    image -> images                 cosine of the mean regions
    sentence or box -> sentences  cosine

Candidates come from one matrix product in memory, exact and without a server, or from an
engine that holds the same vectors; scores are computed here in either case, so both give
the same hits. Where there are at least as many candidates as rows, the answer is that of an
exhaustive search. Equal scores are ordered by id.

Source: ours; no vector engine computes the score of Wang et al. 2023, Section 3.2.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from medclip_dcl.core.artifact import Artifact, open_artifact
from medclip_dcl.core.errors import ArtifactCorrupt, ArtifactStale, QueryError
from medclip_dcl.core.tables import read_table
from medclip_dcl.models.settings import SimilarityConfig
from medclip_dcl.models.similarity import image_sentence_scores
from medclip_dcl.retrieval import IndexConfig, RetrievalConfig, embeddings
from medclip_dcl.schemas import HitAnswer
from medclip_dcl.text.labeler.lexicon import LABELS


@dataclass(frozen=True)
class Filters:
    """Which images, and sentences of whose studies, may be hits; empty: all."""

    splits: frozenset[str] = frozenset()
    views: frozenset[str] = frozenset()
    findings: frozenset[str] = frozenset()
    """Findings of which an image has one at least, names of `Studies.findings`."""
    exclude_patient: str = ""
    """Patient whose images are left out."""


@dataclass(frozen=True)
class Query:
    """A question: a vector (a sentence, or a box of an image), or all regions of an image."""

    target: Literal["image", "text"]
    """What is wanted, images or sentences."""
    k: int
    """How many hits at most."""
    vector: Tensor | None = None
    """Unit vector (dim,)."""
    regions: Tensor | None = None
    """Unit vectors (rows, columns, dim)."""
    filters: Filters = Filters()
    """Which images and studies may answer."""

    def check(self, dim: int) -> None:
        """Raise a QueryError where no index of vectors `dim` wide can answer."""
        given = [item for item in (self.vector, self.regions) if item is not None]
        if len(given) != 1:
            raise QueryError("a query holds either a vector or regions; give exactly one")
        if given[0].shape[-1] != dim:
            raise QueryError(f"the query is {given[0].shape[-1]} wide, the index {dim}")
        if not bool(torch.isfinite(given[0]).all()):
            raise QueryError("the query holds a number that is not finite")
        if self.k < 1:
            raise QueryError(f"k = {self.k} asks for no hit; it must be at least 1")


class Studies:
    """Images and sentences of an index, and the studies that join them."""

    findings: tuple[str, ...]
    """Names that images can be filtered by: CheXpert's, then others of the source's labels."""

    def __init__(self, artifact: Artifact) -> None:
        images = read_table(artifact.path, embeddings.IMAGES)
        occurrences = read_table(artifact.path, embeddings.OCCURRENCES)
        self.images = images.combine_chunks()
        ids = self.images.column("image_id").to_pylist()
        self.row_of = {image_id: row for row, image_id in enumerate(ids)}
        self.texts = read_table(artifact.path, embeddings.TEXTS).combine_chunks()
        names = images.column("study_id").unique()
        self._study_of_image = _codes(images, names)
        study_of_occurrence = _codes(occurrences, names)
        # stable: the report's order stays within a study
        order = np.argsort(study_of_occurrence, kind="stable")
        self._study_of_occurrence = study_of_occurrence[order]
        self._text_of_occurrence = occurrences.column("text").to_numpy().astype(np.int64)[order]
        column = images.column("findings").combine_chunks()
        named = column.flatten().unique().to_pylist()
        self.findings = (*LABELS, *sorted(set(named) - set(LABELS)))
        self._has_finding = _finding_mask(column, self.findings)
        self.views = tuple(sorted(filter(None, images.column("view").unique().to_pylist())))

    def mask(self, filters: Filters, *, of_images: bool) -> embeddings.Mask | None:
        """Return whether each image, or sentence, may be a hit; None where nothing is filtered.

        A sentence may be one where a study with an image that may has it.
        """
        masks: list[embeddings.Mask] = []
        if filters.splits:
            masks.append(self._among("split", filters.splits))
        if filters.views:
            masks.append(self._among("view", filters.views))
        if filters.findings:
            columns = [self.findings.index(name) for name in sorted(filters.findings)]
            masks.append(np.asarray(self._has_finding[:, columns].any(axis=1)))
        if filters.exclude_patient:
            masks.append(~self._among("subject_id", {filters.exclude_patient}))
        images = np.logical_and.reduce(masks) if masks else None
        if of_images or images is None:
            return images
        studies: embeddings.Mask = np.zeros(int(self._study_of_image.max()) + 1, dtype=bool)
        studies[self._study_of_image[images]] = True
        texts: embeddings.Mask = np.zeros(len(self.texts), dtype=bool)
        texts[self._text_of_occurrence[studies[self._study_of_occurrence]]] = True
        return texts

    def _among(self, column: str, allowed: Set[str]) -> embeddings.Mask:
        wanted = pa.array(sorted(allowed), pa.string())
        mask: embeddings.Mask = pc.is_in(self.images.column(column), value_set=wanted).to_numpy()
        return mask

    def texts_of_image(self, row: int) -> list[str]:
        """Return the sentences of an image's study, in the report's order."""
        study = self._study_of_image[row]
        first, last = np.searchsorted(self._study_of_occurrence, [study, study + 1])
        rows = self._text_of_occurrence[first:last]
        texts: list[str] = self.texts.column("text").take(pa.array(rows)).to_pylist()
        return texts


def _codes(table: pa.Table, names: pa.Array) -> embeddings.Rows:
    codes: embeddings.Rows = (
        pc.index_in(table.column("study_id"), names).to_numpy().astype(np.int64)
    )
    return codes


def _finding_mask(column: pa.ListArray, names: Sequence[str]) -> embeddings.Mask:
    mask: embeddings.Mask = np.zeros((len(column), len(names)), dtype=bool)
    columns = pc.index_in(column.flatten(), value_set=pa.array(names))
    mask[pc.list_parent_indices(column).to_numpy(), columns.to_numpy()] = True
    return mask


_RERANKED_AT_ONCE = 32  # images; fewer lose time by calls, more leave the cache


@dataclass(frozen=True)
class RetrievalIndex:
    """A retrieval index that is bound to one model."""

    artifact: Artifact
    studies: Studies
    layout: embeddings.Layout
    vectors: Mapping[str, embeddings.Shards]
    near: Mapping[str, embeddings.Nearest]
    pictures: list[pa.ChunkedArray] | None
    similarity: SimilarityConfig
    settings: IndexConfig

    @classmethod
    def open(cls, path: Path, model_digest: str, retrieval: RetrievalConfig | None = None) -> Self:
        """Open an index and check that the model with this digest made it.

        Its files stay open: an index that replaces it does not disturb it. `retrieval`: where
        candidates are searched; None: in memory.

        Raises:
            ArtifactError: it is missing or damaged.
            ArtifactStale: another model made it.
            EngineError: the engine does not answer, or lacks this index.
        """
        artifact = open_artifact(path, embeddings.ARTIFACT)
        made_by = artifact.fingerprint["inputs"]["model"]
        if made_by != model_digest:
            raise ArtifactStale(
                f"index was built with model {made_by}, the model here is {model_digest}; "
                f"rerun {embeddings.ARTIFACT.job}"
            )
        similarity = SimilarityConfig.model_validate(artifact.fingerprint["settings"]["similarity"])
        chosen = artifact.fingerprint["settings"]["index"]  # an earlier version has further ones
        settings = IndexConfig(**{name: chosen[name] for name in IndexConfig.model_fields})
        studies = Studies(artifact)
        images, texts = len(studies.images), len(studies.texts)
        rows, dim = settings.shard_rows, similarity.dim
        layout = embeddings.Layout(artifact.file, images, texts, rows, dim)
        vectors = layout.searched()
        near = _finders(artifact, vectors, retrieval)
        vectors["regions"] = layout.open("regions")
        pictures = _map_pictures(artifact, images, rows) if settings.pictures else None
        return cls(artifact, studies, layout, vectors, near, pictures, similarity, settings)

    @torch.inference_mode()
    def search(self, query: Query) -> list[HitAnswer]:
        """Return at most `query.k` hits, best first; fewer where filters leave fewer.

        Raises:
            QueryError: the question is malformed.
        """
        query.check(self.similarity.dim)
        of_images, vector = query.target == "image", query.vector
        allowed = self.studies.mask(query.filters, of_images=of_images)
        count = max(self.settings.candidates, query.k)
        if of_images == (vector is None):  # what is asked is of the kind that is wanted
            name, direction = "texts", vector
            if query.regions is not None:
                regions = query.regions.float().cpu().numpy()[None]
                name, direction = "pooled", torch.from_numpy(embeddings.pool(regions)[0])
            assert direction is not None
            wanted = direction.float().cpu().numpy()
            rows = self.near[name].rows(wanted, allowed, count)
            scores = _cosines(self.vectors[name].gather(rows), wanted)
        elif vector is not None:
            rows, scores = self._images_of(vector[None].float().cpu(), allowed, count)
        else:
            assert query.regions is not None
            cells = query.regions.float().cpu().flatten(0, 1)[None]
            (sketch,) = self.layout.sketch.of_images(cells, self.similarity)
            rows = self.near["text_sketches"].rows(sketch, allowed, count)
            sentences = torch.from_numpy(self.vectors["texts"].gather(rows))
            scores = image_sentence_scores(cells, sentences, self.similarity)[:, 0].numpy()
        hit = self._image_hit if of_images else self._text_hit
        best = np.argsort(-scores, kind="stable")[: query.k]
        return [hit(int(rows[index]), float(scores[index])) for index in best]

    def _images_of(
        self, sentence: Tensor, allowed: embeddings.Mask | None, count: int
    ) -> tuple[embeddings.Rows, embeddings.Floats]:
        (sketch,) = self.layout.sketch.of_vectors(sentence.numpy())
        rows = self.near["image_sketches"].rows(sketch, allowed, count)
        scores = [
            image_sentence_scores(
                torch.from_numpy(self.vectors["regions"].gather(part)).float().flatten(1, 2),
                sentence,
                self.similarity,
            )
            for part in np.split(rows, range(_RERANKED_AT_ONCE, len(rows), _RERANKED_AT_ONCE))
        ]
        return rows, torch.cat(scores, dim=1)[0].numpy()

    def picture(self, image_id: str) -> bytes | None:
        """Return an image's thumbnail, a JPEG; None where it is not indexed or has none."""
        row = self.studies.row_of.get(image_id)
        if row is None or self.pictures is None:
            return None
        shard, offset = divmod(row, self.settings.shard_rows)
        data: bytes = self.pictures[shard][offset].as_py()
        return data

    def _image_hit(self, row: int, score: float) -> HitAnswer:
        image = self.studies.images.slice(row, 1).to_pylist()[0]
        id_, facts = image["image_id"], ("study_id", "subject_id", "split", "view", "findings")
        return HitAnswer(
            id=id_,
            score=score,
            texts=self.studies.texts_of_image(row),
            thumbnail=None if self.pictures is None else f"/images/{quote(id_)}",
            **{name: image[name] for name in facts},
        )

    def _text_hit(self, row: int, score: float) -> HitAnswer:
        text = self.studies.texts.slice(row, 1).to_pylist()[0]
        return HitAnswer(
            id=text["text_key"], score=score, texts=[text["text"]], studies=text["studies"]
        )


def _map_pictures(artifact: Artifact, images: int, shard_rows: int) -> list[pa.ChunkedArray]:
    names = [
        embeddings.shard_name("pictures", shard, "arrow")
        for shard in range(-(-images // shard_rows))
    ]
    shards = [embeddings.map_pictures(artifact.file(name)) for name in names]
    if sum(map(len, shards)) != images:
        raise ArtifactCorrupt(f"index {artifact.path} holds other pictures than images; rebuild it")
    return shards


def _finders(
    artifact: Artifact, vectors: Mapping[str, embeddings.Shards], retrieval: RetrievalConfig | None
) -> dict[str, embeddings.Nearest]:
    if retrieval is None or not retrieval.uri:
        return {name: embeddings.InMemoryIndex(shards) for name, shards in vectors.items()}
    from medclip_dcl.retrieval.milvus import Milvus, collection_of  # most services have no cluster

    engine = Milvus(retrieval)
    return {
        name: engine.nearest(collection_of(artifact.fingerprint, name), len(shards))
        for name, shards in vectors.items()
    }


def _cosines(vectors: embeddings.Floats, direction: embeddings.Floats) -> embeddings.Floats:
    # not by BLAS: equal vectors get equal scores wherever they stand
    products: embeddings.Floats = np.einsum("rd,d->r", vectors, direction, dtype=np.float64).astype(
        np.float32
    )
    return products
