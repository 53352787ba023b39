"""An index of generated films, drawn in memory and embedded by a trained model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from medclip_dcl.artifacts.embeddings import KIND
from medclip_dcl.artifacts.frame import drafting, make_recipe
from medclip_dcl.artifacts.sentences import text_key
from medclip_dcl.config.evaluation import IndexConfig
from medclip_dcl.config.studies import GenerateConfig
from medclip_dcl.index.build import Selection, write_index
from medclip_dcl.studies.generated.patients import (
    NATURAL,
    FilmPlan,
    Patient,
    Study,
    draw_film,
    draw_patient,
)
from medclip_dcl.studies.grey import GreyImage
from medclip_dcl.tasks.predictor import Predictor

SEED = 20_000
"""Of patients that no recipe has drawn."""

_QUERY_SEED = 20_001
_WHITE = 65535


@dataclass
class DrawnFilms:
    """Frontal films that are drawn when they are asked for."""

    plans: list[tuple[Patient, Study, FilmPlan]]
    predictor: Predictor

    @property
    def row_of(self) -> dict[str, int]:
        """Row of each image id."""
        return {plan.dicom_id: row for row, (_, _, plan) in enumerate(self.plans)}

    def pixels(self, row: int) -> npt.NDArray[np.uint8]:
        """Draw a film and bring it into the form that the model was trained on."""
        drawn = draw_film(*self.plans[row], self.predictor.config.images.size_px).pixels
        low, high = float(drawn.min()), float(drawn.max())
        grey = np.rint((drawn - low) / (high - low) * _WHITE).astype(np.uint16)
        square: npt.NDArray[np.uint8] = self.predictor.square(GreyImage(grey, 16, "dicom"))
        return square

    def original_size(self, _row: int) -> tuple[int, int]:
        """Give a size; no picture is kept."""
        return 1, 1


def build(folder: Path, predictor: Predictor, films: int, settings: IndexConfig) -> Path:
    """Draw films, embed them and their sentences, and seal the index.

    Args:
        folder: receives the index.
        predictor: the trained model.
        films: number of films.
        settings: of the index.

    Returns:
        The index's folder.
    """
    plans: list[tuple[Patient, Study, FilmPlan]] = []
    for patient in _patients(SEED):
        plans += [(patient, study, plan) for study, plan in _frontal(patient)]
        if len(plans) >= films:
            break
    drawn = DrawnFilms(sorted(plans[:films], key=lambda item: item[2].dicom_id), predictor)
    similarity = predictor.config.model.similarity
    recipe = make_recipe(
        KIND,
        {"index": settings, "similarity": similarity},
        {"model": predictor.digest},
    )
    with drafting(folder / "drawn", KIND, recipe) as draft:
        chosen = _select(drawn.plans)
        draft.seal(write_index(draft.directory, chosen, drawn, predictor, settings, similarity))
    return folder / "drawn"


def questions(sentences: int) -> list[str]:
    """Give sentences of patients that the index does not hold.

    Args:
        sentences: how many, all different.

    Returns:
        Their texts.
    """
    found: dict[str, None] = {}
    for patient in _patients(_QUERY_SEED):
        for study in patient.studies:
            found.update(dict.fromkeys(_said(study)))
        if len(found) >= sentences:
            break
    return list(found)[:sentences]


def asking_films(predictor: Predictor, films: int) -> npt.NDArray[np.uint8]:
    """Draw films of patients that the index does not hold.

    Args:
        predictor: the model that will see them.
        films: how many.

    Returns:
        (films, size, size).
    """
    plans: list[tuple[Patient, Study, FilmPlan]] = []
    for patient in _patients(_QUERY_SEED):
        plans += [(patient, study, plan) for study, plan in _frontal(patient)]
        if len(plans) >= films:
            break
    drawn = DrawnFilms(plans[:films], predictor)
    return np.stack([drawn.pixels(row) for row in range(films)])


def _patients(seed: int) -> Iterator[Patient]:
    settings = GenerateConfig()
    number = 0
    while True:
        yield draw_patient(NATURAL, number, seed, settings)
        number += 1


def _frontal(patient: Patient) -> Iterator[tuple[Study, FilmPlan]]:
    for study in patient.studies:
        for plan in study.films:
            if plan.is_frontal:
                yield study, plan


def _said(study: Study) -> list[str]:
    report = study.report
    return [statement.text for statement in (*report.findings, *report.impression)]


def _select(plans: list[tuple[Patient, Study, FilmPlan]]) -> Selection:
    films: list[dict[str, Any]] = [
        {
            "image_id": plan.dicom_id,
            "study_id": study.study_id,
            "subject_id": patient.subject_id,
            "split": patient.split,
            "view": plan.view,
            "findings": [],
            "height_px": 1,
            "width_px": 1,
        }
        for patient, study, plan in plans
    ]
    studies = {study.study_id: study for _, study, _ in plans}
    said = {name: list(dict.fromkeys(_said(study))) for name, study in studies.items()}
    distinct = sorted({text for texts in said.values() for text in texts}, key=text_key)
    row_of = {text: row for row, text in enumerate(distinct)}
    counts = np.bincount([row_of[text] for texts in said.values() for text in texts])
    texts = [
        {"text_key": text_key(text), "text": text, "studies": int(count)}
        for text, count in zip(distinct, counts, strict=True)
    ]
    sayings = [
        {"study_id": name, "text": row_of[text]} for name, texts in said.items() for text in texts
    ]
    return Selection(films, texts, sayings, without_pixels=0)
