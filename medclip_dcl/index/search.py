"""An opened retrieval index: queries to ranked films or sentences.

What is asked and wanted decides the exact score and the road to it:

    sentence or box -> films      score of all regions; candidates by sketches
    film -> sentences             the same score the other way; candidates by sketches
    film -> films                 cosine of the mean regions
    sentence or box -> sentences  cosine

Candidates come from one matrix product in memory, exact and without a server, or from an
engine that holds the same vectors; scores are computed here in either case, so both give
the same hits. Where there are at least as many candidates as rows, the answer is that of an
exhaustive search. Equal scores are ordered by id.

Source: ours; no vector engine computes the score of Wang et al. 2023, Section 2.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from medclip_dcl.artifacts.embeddings import KIND
from medclip_dcl.artifacts.frame import Artifact, open_artifact
from medclip_dcl.config.evaluation import IndexConfig, RetrievalConfig
from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.index.build import pool
from medclip_dcl.index.milvus import Milvus, collection_of
from medclip_dcl.index.nearest import Floats, Nearest, Resident, Rows
from medclip_dcl.index.query import Hit, Query
from medclip_dcl.index.shards import Pictures, Shards, open_pictures, open_shards
from medclip_dcl.index.sketch import FILE as SKETCH
from medclip_dcl.index.sketch import Sketch
from medclip_dcl.index.sketching import open_vectors
from medclip_dcl.index.studies import Studies, read_studies
from medclip_dcl.model.similarity import image_sentence_scores

_RERANKED_AT_ONCE = 32  # films; fewer lose time by calls, more leave the cache


@dataclass(frozen=True)
class RetrievalIndex:
    """A retrieval index that is bound to one model."""

    artifact: Artifact
    studies: Studies
    pooled: Shards
    sentences: Shards
    regions: Shards
    sketch: Sketch
    near: Mapping[str, Nearest]
    pictures: Pictures | None
    similarity: SimilarityConfig
    settings: IndexConfig
    row_of: dict[str, int]

    @classmethod
    def open(cls, path: Path, model_digest: str, retrieval: RetrievalConfig | None = None) -> Self:
        """Open an index and check that the given model made it.

        Args:
            path: folder of the index.
            model_digest: digest of the model whose vectors will be asked with.
            retrieval: where candidates are searched; None: in memory.

        Returns:
            The index. Its files stay open: one that is put in its place does not disturb it.

        Raises:
            ArtifactError: it is missing or damaged.
            ArtifactStale: another model made it.
            EngineError: the engine does not answer, or lacks this index.
        """
        artifact = open_artifact(path, KIND)
        made_by = artifact.recipe["inputs"]["model"]
        if made_by != model_digest:
            raise ArtifactStale(
                f"index was built with model {made_by}, the model here is {model_digest}; "
                f"rerun {KIND.job}"
            )
        similarity = SimilarityConfig.model_validate(artifact.recipe["settings"]["similarity"])
        settings = IndexConfig.model_validate(artifact.recipe["settings"]["index"])
        studies = read_studies(artifact)
        films, texts = len(studies.films), len(studies.texts)
        rows, dim = settings.shard_rows, similarity.dim
        vectors = open_vectors(artifact.file, artifact.recipe, (films, texts))
        ids = studies.films.column("image_id").to_pylist()
        return cls(
            artifact=artifact,
            studies=studies,
            pooled=vectors["pooled"],
            sentences=vectors["texts"],
            regions=open_shards(artifact.file, "regions", films, rows, dim),
            sketch=Sketch.read(artifact.file(SKETCH), dim),
            near=_finders(artifact, vectors, retrieval),
            pictures=open_pictures(artifact, films, rows) if settings.pictures else None,
            similarity=similarity,
            settings=settings,
            row_of={image_id: row for row, image_id in enumerate(ids)},
        )

    @torch.inference_mode()
    def search(self, query: Query) -> list[Hit]:
        """Answer a question.

        Args:
            query: what is asked.

        Returns:
            At most `query.k` hits, best first; fewer where filters leave fewer.

        Raises:
            QueryError: the question is malformed.
        """
        query.check(self.similarity.dim)
        rows, scores = self._films(query) if query.target == "image" else self._texts(query)
        give = self._film_hit if query.target == "image" else self._text_hit
        best = np.argsort(-scores, kind="stable")[: query.k]
        return [give(int(rows[place]), float(scores[place])) for place in best]

    def picture(self, image_id: str) -> bytes | None:
        """Give the thumbnail of an indexed film.

        Args:
            image_id: id of the film.

        Returns:
            An encoded JPEG; None where the film is not indexed or has no picture.
        """
        row = self.row_of.get(image_id)
        return None if row is None or self.pictures is None else self.pictures.picture(row)

    def _films(self, query: Query) -> tuple[Rows, Floats]:
        allowed, kept = self.studies.film_mask(query.filters), self._kept(query)
        if query.vector is None:
            direction = _mean_region(query)
            rows = self.near["pooled"].rows(direction, allowed, kept)
            return rows, _cosines(self.pooled.gather(rows), direction)
        sentence = query.vector[None].float().cpu()
        (asked,) = self.sketch.of_vectors(sentence.numpy())
        rows = self.near["film_sketches"].rows(asked, allowed, kept)
        films = torch.empty(_RERANKED_AT_ONCE, *self.regions.arrays[0].shape[1:])
        scores = [
            image_sentence_scores(
                self.regions.widen(part, films).flatten(1, 2), sentence, self.similarity
            )
            for part in np.split(rows, range(_RERANKED_AT_ONCE, len(rows), _RERANKED_AT_ONCE))
        ]
        return rows, torch.cat(scores, dim=1)[0].numpy()

    def _texts(self, query: Query) -> tuple[Rows, Floats]:
        allowed, kept = self.studies.text_mask(query.filters), self._kept(query)
        if query.regions is None:
            assert query.vector is not None
            direction = query.vector.float().cpu().numpy()
            rows = self.near["texts"].rows(direction, allowed, kept)
            return rows, _cosines(self.sentences.gather(rows), direction)
        regions = query.regions.float().cpu().flatten(0, 1)[None]
        (asked,) = self.sketch.of_films(regions, self.similarity)
        rows = self.near["text_sketches"].rows(asked, allowed, kept)
        sentences = torch.from_numpy(self.sentences.gather(rows))
        return rows, image_sentence_scores(regions, sentences, self.similarity)[:, 0].numpy()

    def _kept(self, query: Query) -> int:
        return max(self.settings.candidates, query.k)

    def _film_hit(self, row: int, score: float) -> Hit:
        film = self.studies.film(row)
        return Hit(
            id=film["image_id"],
            score=score,
            texts=self.studies.texts_of_film(row),
            study_id=film["study_id"],
            subject_id=film["subject_id"],
            split=film["split"],
            view=film["view"],
            findings=tuple(film["findings"]),
        )

    def _text_hit(self, row: int, score: float) -> Hit:
        text = self.studies.text(row)
        return Hit(text["text_key"], score, (text["text"],), text["studies"])


def _finders(
    artifact: Artifact, vectors: Mapping[str, Shards], retrieval: RetrievalConfig | None
) -> dict[str, Nearest]:
    if retrieval is None or not retrieval.uri:
        return {name: Resident(shards) for name, shards in vectors.items()}
    engine = Milvus(retrieval)
    return {
        name: engine.nearest(collection_of(artifact.recipe, name), len(shards))
        for name, shards in vectors.items()
    }


def _cosines(vectors: Floats, direction: Floats) -> Floats:
    # not by BLAS: equal vectors get equal scores wherever they stand
    products: Floats = np.einsum("rd,d->r", vectors, direction, dtype=np.float64).astype(np.float32)
    return products


def _mean_region(query: Query) -> Floats:
    assert query.regions is not None
    direction: Floats = pool(query.regions.float().cpu().numpy()[None])[0]
    return direction
