"""Whose vectors an index holds: films, sentences, and the studies that join them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifacts.embeddings import FILMS, SAYINGS, TEXTS
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.index.query import Filters

_Codes = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Studies:
    """Films and sentences with integer codes of their studies.

    Attributes:
        films: the films' table.
        texts: the sentences' table.
        study_of_film: (films,) code of each film's study.
        study_of_saying: (sayings,) code of the study that says a sentence, ascending.
        text_of_saying: (sayings,) row of that sentence.
    """

    films: pa.Table
    texts: pa.Table
    study_of_film: _Codes
    study_of_saying: _Codes
    text_of_saying: _Codes

    def film_mask(self, filters: Filters) -> _Mask:
        """Say which films may be hits.

        Args:
            filters: what is asked.

        Returns:
            (films,) booleans.
        """
        mask: _Mask = np.ones(len(self.films), dtype=bool)
        for name, allowed in (("split", filters.splits), ("view", filters.views)):
            if allowed:
                values = pa.array(sorted(allowed), pa.string())
                mask &= pc.is_in(self.films.column(name), value_set=values).to_numpy()
        if filters.exclude_patient:
            patients = self.films.column("subject_id")
            mask &= pc.not_equal(patients, filters.exclude_patient).to_numpy()
        return mask

    def text_mask(self, filters: Filters) -> _Mask:
        """Say which sentences may be hits: those that a study with an allowed film says.

        Args:
            filters: what is asked.

        Returns:
            (texts,) booleans.
        """
        allowed: _Mask = np.zeros(int(self.study_of_film.max()) + 1, dtype=bool)
        allowed[self.study_of_film[self.film_mask(filters)]] = True
        mask: _Mask = np.zeros(len(self.texts), dtype=bool)
        mask[self.text_of_saying[allowed[self.study_of_saying]]] = True
        return mask

    def film(self, row: int) -> dict[str, Any]:
        """Give the facts of a film.

        Args:
            row: row number of the film.

        Returns:
            Its columns.
        """
        facts: dict[str, Any] = self.films.slice(row, 1).to_pylist()[0]
        return facts

    def text(self, row: int) -> dict[str, Any]:
        """Give the facts of a sentence.

        Args:
            row: row number of the sentence.

        Returns:
            Its columns.
        """
        facts: dict[str, Any] = self.texts.slice(row, 1).to_pylist()[0]
        return facts

    def texts_of_film(self, row: int) -> tuple[str, ...]:
        """Give the sentences of a film's study.

        Args:
            row: row number of the film.

        Returns:
            The sentences, in the report's order.
        """
        study = self.study_of_film[row]
        first, last = np.searchsorted(self.study_of_saying, [study, study + 1])
        said = self.text_of_saying[first:last]
        return tuple(self.texts.column("text").take(pa.array(said)).to_pylist())


def read_studies(artifact: Artifact) -> Studies:
    """Read the tables of an index.

    Args:
        artifact: the index.

    Returns:
        Films, sentences and the studies that join them.

    Raises:
        ArtifactCorrupt: a table is damaged.
    """
    films, sayings = read_table(artifact.path, FILMS), read_table(artifact.path, SAYINGS)
    names = films.column("study_id").unique()
    study_of_saying = _codes(sayings, names)
    order = np.argsort(study_of_saying, kind="stable")  # the report's order stays within a study
    return Studies(
        films=films,
        texts=read_table(artifact.path, TEXTS),
        study_of_film=_codes(films, names),
        study_of_saying=study_of_saying[order],
        text_of_saying=sayings.column("text").to_numpy().astype(np.int64)[order],
    )


def _codes(table: pa.Table, names: pa.Array) -> _Codes:
    found = pc.index_in(table.column("study_id"), value_set=names)
    codes: _Codes = found.to_numpy().astype(np.int64)
    return codes
