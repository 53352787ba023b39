"""Whose vectors an index holds: films, sentences, and the studies that join them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from medclip_dcl.artifacts.embeddings import FILMS, SAYINGS, TEXTS
from medclip_dcl.artifacts.frame import Artifact
from medclip_dcl.artifacts.manifest import LABELS
from medclip_dcl.artifacts.tables import read_table
from medclip_dcl.index.nearest import Mask
from medclip_dcl.index.query import Filters

_Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Coded:
    """A column of few distinct strings, as numbers."""

    names: pa.Array
    codes: npt.NDArray[np.int32]

    def among(self, allowed: frozenset[str]) -> Mask:
        wanted = pc.is_in(self.names, value_set=pa.array(sorted(allowed), pa.string()))
        mask: Mask = wanted.to_numpy(zero_copy_only=False)[self.codes]
        return mask


@dataclass(frozen=True)
class Studies:
    """Films and sentences with integer codes of their studies.

    Attributes:
        films: the films' table.
        texts: the sentences' table.
        study_of_film: (films,) code of each film's study.
        study_of_saying: (sayings,) code of the study that says a sentence, ascending.
        text_of_saying: (sayings,) row of that sentence.
        split: of each film.
        view: of each film.
        patient: of each film.
        has_finding: (films, findings) in the order of `LABELS`.
    """

    films: pa.Table
    texts: pa.Table
    study_of_film: _Codes
    study_of_saying: _Codes
    text_of_saying: _Codes
    split: _Coded
    view: _Coded
    patient: _Coded
    has_finding: Mask

    def film_mask(self, filters: Filters) -> Mask | None:
        """Say which films may be hits.

        Args:
            filters: what is asked; findings are names of `LABELS`.

        Returns:
            (films,) booleans; None where nothing is filtered.
        """
        masks: list[Mask] = []
        if filters.splits:
            masks.append(self.split.among(filters.splits))
        if filters.views:
            masks.append(self.view.among(filters.views))
        if filters.findings:
            columns = [LABELS.index(name) for name in sorted(filters.findings)]
            masks.append(np.asarray(self.has_finding[:, columns].any(axis=1)))
        if filters.exclude_patient:
            masks.append(~self.patient.among(frozenset({filters.exclude_patient})))
        return np.logical_and.reduce(masks) if masks else None

    def text_mask(self, filters: Filters) -> Mask | None:
        """Say which sentences may be hits: those that a study with an allowed film says.

        Args:
            filters: what is asked.

        Returns:
            (texts,) booleans; None where nothing is filtered.
        """
        films = self.film_mask(filters)
        if films is None:
            return None
        allowed: Mask = np.zeros(int(self.study_of_film.max()) + 1, dtype=bool)
        allowed[self.study_of_film[films]] = True
        mask: Mask = np.zeros(len(self.texts), dtype=bool)
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
        films=films.combine_chunks(),
        texts=read_table(artifact.path, TEXTS).combine_chunks(),
        study_of_film=_codes(films, names),
        study_of_saying=study_of_saying[order],
        text_of_saying=sayings.column("text").to_numpy().astype(np.int64)[order],
        split=_coded(films, "split"),
        view=_coded(films, "view"),
        patient=_coded(films, "subject_id"),
        has_finding=_finding_mask(films),
    )


def _codes(table: pa.Table, names: pa.Array) -> _Codes:
    found = pc.index_in(table.column("study_id"), value_set=names)
    codes: _Codes = found.to_numpy().astype(np.int64)
    return codes


def _coded(table: pa.Table, column: str) -> _Coded:
    coded = table.column(column).combine_chunks().dictionary_encode()
    return _Coded(coded.dictionary, coded.indices.to_numpy().astype(np.int32))


def _finding_mask(films: pa.Table) -> Mask:
    mask: Mask = np.zeros((len(films), len(LABELS)), dtype=bool)
    column = films.column("findings").combine_chunks()
    found = pc.index_in(column.flatten(), value_set=pa.array(LABELS))
    mask[pc.list_parent_indices(column).to_numpy(), found.to_numpy()] = True
    return mask
