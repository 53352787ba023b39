"""An opened retrieval index: queries to ranked films or sentences.

What is asked and wanted decides the exact score and the road to it:

    sentence or box -> films      log-sum-exp score of all regions; candidates by pooled vectors
    film -> sentences             the same score the other way; candidates by pooled vectors
    film -> films                 cosine of pooled vectors; one stage
    sentence or box -> sentences  cosine; one stage

The candidate stage is one matrix product and a mask, exact and without a server.
Where it keeps at least as many candidates as there are rows, the answer is that of
an exhaustive search. Equal scores are ordered by id.

Source: ours; no vector engine computes the score of Wang et al. 2023, Section 2.3.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from medclip_dcl.artifacts.embeddings import KIND
from medclip_dcl.artifacts.frame import Artifact, open_artifact
from medclip_dcl.config.evaluation import IndexConfig
from medclip_dcl.config.model import SimilarityConfig
from medclip_dcl.errors import ArtifactStale
from medclip_dcl.index.build import pool
from medclip_dcl.index.query import Hit, Query
from medclip_dcl.index.shards import RegionShards, open_regions, read_picture, read_vectors
from medclip_dcl.index.studies import Studies, read_studies
from medclip_dcl.model.similarity import image_sentence_scores

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RetrievalIndex:
    """A retrieval index that is bound to one model."""

    artifact: Artifact
    studies: Studies
    pooled: _Floats
    sentences: _Floats
    regions: RegionShards
    similarity: SimilarityConfig
    settings: IndexConfig
    row_of: dict[str, int]

    @classmethod
    def open(cls, path: Path, model_digest: str) -> Self:
        """Open an index and check that the given model made it.

        Args:
            path: folder of the index.
            model_digest: digest of the model whose vectors will be asked with.

        Returns:
            The index; pooled and sentence vectors are in memory.

        Raises:
            ArtifactError: it is missing or damaged.
            ArtifactStale: another model made it.
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
        ids = studies.films.column("image_id").to_pylist()
        return cls(
            artifact=artifact,
            studies=studies,
            pooled=read_vectors(artifact, "pooled", films, rows, dim),
            sentences=read_vectors(artifact, "texts", texts, rows, dim),
            regions=open_regions(artifact, films, rows),
            similarity=similarity,
            settings=settings,
            row_of={image_id: row for row, image_id in enumerate(ids)},
        )

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
        best = _best(scores, query.k)
        return [give(int(rows[place]), float(scores[place])) for place in best]

    def picture(self, image_id: str) -> bytes | None:
        """Give the thumbnail of an indexed film.

        Args:
            image_id: id of the film.

        Returns:
            An encoded JPEG; None where the film is not indexed or has no picture.
        """
        row = self.row_of.get(image_id)
        if row is None or not self.settings.pictures:
            return None
        return read_picture(self.artifact, row, self.settings.shard_rows)

    def _films(self, query: Query) -> tuple[npt.NDArray[np.int64], _Floats]:
        allowed = np.flatnonzero(self.studies.film_mask(query.filters))
        near = (self.pooled @ _direction(query))[allowed]
        if query.vector is None or not len(allowed):
            return allowed, near
        rows = allowed[np.sort(_best(near, self._kept(query)))]
        regions = self.regions.gather(rows)
        scores = image_sentence_scores(regions, query.vector[None].float().cpu(), self.similarity)
        return rows, scores[0].numpy()

    def _texts(self, query: Query) -> tuple[npt.NDArray[np.int64], _Floats]:
        allowed = np.flatnonzero(self.studies.text_mask(query.filters))
        near = (self.sentences @ _direction(query))[allowed]
        if query.regions is None or not len(allowed):
            return allowed, near
        rows = allowed[np.sort(_best(near, self._kept(query)))]
        regions = query.regions.float().cpu().flatten(0, 1)[None]
        sentences = torch.from_numpy(self.sentences[rows])
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
        )

    def _text_hit(self, row: int, score: float) -> Hit:
        text = self.studies.text(row)
        return Hit(text["text_key"], score, (text["text"],), text["studies"])


def _direction(query: Query) -> _Floats:
    if query.vector is not None:
        direction: _Floats = query.vector.float().cpu().numpy()
    else:
        assert query.regions is not None
        direction = pool(query.regions.float().cpu().numpy()[None])[0]
    return direction


def _best(scores: _Floats, k: int) -> npt.NDArray[np.int64]:
    """Places of the k highest scores, best first, equal ones in the order they stand in."""
    if k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        above = np.flatnonzero(scores > least)
        level = np.flatnonzero(scores == least)[: k - len(above)]
        places = np.sort(np.concatenate([above, level]))
    else:
        places = np.arange(len(scores))
    order: npt.NDArray[np.int64] = places[np.argsort(-scores[places], kind="stable")]
    return order
