"""Tables of held-out studies -> what the questions need: truth, boxed sentences, reports."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int8

from medclip_dcl.metrics.summary import UNKNOWN
from medclip_dcl.tasks.outcome import BoxedSentence, Films
from medclip_dcl.tasks.prompts import Finding

Row = Mapping[str, Any]


def exact_truth(
    findings: Sequence[Finding],
    image_ids: Sequence[str],
    types_of: Mapping[str, Collection[str]],
    types: Collection[str],
) -> Int8[np.ndarray, "findings films"]:
    """Read off which findings films show, where a generator knows it.

    Args:
        findings: the prompt pairs; a finding whose name is no type stays unknown.
        image_ids: the films.
        types_of: film -> types of finding that it shows.
        types: every type there is.

    Returns:
        1 shown, 0 not shown, `UNKNOWN` where the generator knows nothing.
    """
    truth = np.full((len(findings), len(image_ids)), UNKNOWN, dtype=np.int8)
    for place, finding in enumerate(findings):
        for film, image_id in enumerate(image_ids):
            if finding.name in types and image_id in types_of:
                truth[place, film] = finding.name in types_of[image_id]
    return truth


def labelled_truth(
    findings: Sequence[Finding], study_ids: Sequence[str], labels: Sequence[Row]
) -> Int8[np.ndarray, "findings films"]:
    """Read off which findings films show from the labels of their studies.

    Args:
        findings: the prompt pairs; one without a label column stays unknown.
        study_ids: study of each film.
        labels: rows of the manifest's label table.

    Returns:
        1 where the label is 1, 0 where it is 0; uncertain and blank are `UNKNOWN`.

    Source: Wang et al. 2023 leave open what becomes of uncertain and blank; ours: dropped.
    """
    of_study = {row["study_id"]: row for row in labels}
    truth = np.full((len(findings), len(study_ids)), UNKNOWN, dtype=np.int8)
    for place, finding in enumerate(findings):
        for film, study_id in enumerate(study_ids):
            row = of_study.get(study_id)
            if row is not None and finding.label in row and row[finding.label] in {0, 1}:
                truth[place, film] = row[finding.label]
    return truth


def balance(
    truth: Int8[np.ndarray, "findings films"], most: int, generator: np.random.Generator
) -> Int8[np.ndarray, "findings films"]:
    """Draw as many films with each finding as without it.

    Args:
        truth: 1 present, 0 absent, `UNKNOWN` not known.
        most: most films of a finding, half of them with it; 0: all films stay.
        generator: draws them.

    Returns:
        The truth of the drawn films; that of the others is `UNKNOWN`.

    Source: Wang et al. 2023 evaluate on about 1000 images per finding; ours: half and half.
    """
    if not most:
        return truth
    kept = np.full_like(truth, UNKNOWN)
    for state, drawn in zip(truth, kept, strict=True):
        sides = [np.flatnonzero(state == value) for value in (0, 1)]
        count = min(most // 2, *(len(side) for side in sides))
        for side in sides:
            films = generator.choice(side, count, replace=False)
            drawn[films] = state[films]
    return kept


def boxed_sentences(boxes: Sequence[Row], films: Films, keys: Sequence[str]) -> list[BoxedSentence]:
    """Gather the boxes of each sentence on each film.

    Args:
        boxes: rows of the manifest's box table; those of other films are left out.
        films: the films.
        keys: `text_key` of each row's phrase.

    Returns:
        One entry per film and sentence, in order of first appearance; boxes are scaled
        from the size that the table states to the film's own.
    """
    number = {image_id: place for place, image_id in enumerate(films.image_ids)}
    found: dict[tuple[int, str], list[Row]] = defaultdict(list)
    for row, key in zip(boxes, keys, strict=True):
        if row["image_id"] in number and row["phrase"].strip():
            found[number[row["image_id"]], key].append(row)
    return [
        BoxedSentence(
            film=film,
            category=rows[0]["category"],
            text=rows[0]["phrase"],
            key=key,
            boxes=np.array([_scaled(row, films.sizes_px[film]) for row in rows]),
        )
        for (film, key), rows in found.items()
    ]


def reports_of_films(
    study_ids: Sequence[str], sentences: Sequence[Row], pool: int, generator: np.random.Generator
) -> tuple[list[int], list[list[str]]]:
    """Draw the films of the film-report pool, one per study, with their reports.

    Args:
        study_ids: study of each film.
        sentences: rows of the sentences table, in the report's order.
        pool: most films.
        generator: draws them where there are more.

    Returns:
        Numbers of the films, ascending, and the sentences of each one's report.
    """
    said: dict[str, list[str]] = defaultdict(list)
    for row in sentences:
        said[row["study_id"]].append(row["text"])
    first = {study_id: film for film, study_id in reversed(list(enumerate(study_ids)))}
    films = sorted(film for study_id, film in first.items() if study_id in said)
    if len(films) > pool:
        films = sorted(generator.choice(films, pool, replace=False).tolist())
    return films, [said[study_ids[film]] for film in films]


def _scaled(row: Row, size_px: tuple[int, int]) -> list[float]:
    height, width = size_px
    across, down = width / row["image_width"], height / row["image_height"]
    return [row["x"] * across, row["y"] * down, row["width"] * across, row["height"] * down]
