"""What an index may be asked, and what it answers."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from medclip_dcl.errors import QueryError

Target = Literal["image", "text"]


@dataclass(frozen=True)
class Filters:
    """Which films, and sentences of whose studies, may be hits; empty: all.

    Attributes:
        splits: splits of the films.
        views: view positions of the films.
        findings: findings of which a film has one at least.
        exclude_patient: patient whose films are left out.
    """

    splits: frozenset[str] = frozenset()
    views: frozenset[str] = frozenset()
    findings: frozenset[str] = frozenset()
    exclude_patient: str = ""


@dataclass(frozen=True)
class Query:
    """A question: a vector (a sentence, or a box of a film), or all regions of a film.

    Attributes:
        target: what is wanted, films or sentences.
        k: how many hits at most.
        vector: unit vector (dim,).
        regions: unit vectors (rows, columns, dim).
        filters: which films and studies may answer.
    """

    target: Target
    k: int
    vector: Tensor | None = None
    regions: Tensor | None = None
    filters: Filters = Filters()

    def check(self, dim: int) -> None:
        """Refuse a question that no index of this width can answer.

        Args:
            dim: width of the index's vectors.

        Raises:
            QueryError: there is not exactly one of vector and regions, its width is
                another, a number is not finite, or k is below 1.
        """
        given = [item for item in (self.vector, self.regions) if item is not None]
        if len(given) != 1:
            raise QueryError("a query holds either a vector or regions; give exactly one")
        if given[0].shape[-1] != dim:
            raise QueryError(f"the query is {given[0].shape[-1]} wide, the index {dim}")
        if not bool(torch.isfinite(given[0]).all()):
            raise QueryError("the query holds a number that is not finite")
        if self.k < 1:
            raise QueryError(f"k = {self.k} asks for no hit; it must be at least 1")


@dataclass(frozen=True)
class Hit:
    """One answer.

    Attributes:
        id: image id, or text key.
        score: exact score of the query with it; higher is closer.
        texts: the sentence, or the sentences of the film's study in the report's order.
        studies: number of studies that say the sentence; 1 for a film.
        study_id: study of the film; empty for a sentence.
        subject_id: patient of the film; empty for a sentence.
        split: split of the film; empty for a sentence.
        view: view position of the film; empty for a sentence.
        findings: findings of the film; empty for a sentence.
    """

    id: str
    score: float
    texts: tuple[str, ...]
    studies: int = 1
    study_id: str = ""
    subject_id: str = ""
    split: str = ""
    view: str = ""
    findings: tuple[str, ...] = ()
