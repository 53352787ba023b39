"""Lungs before a model: what it answers to their names, and what it sees when one is covered."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from benchmarks.real_films.lungs import LEFT, RIGHT, LungFilm, mask_of, shown
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.evaluation import metrics
from medclip_dcl.evaluation.bootstrap import Figure
from medclip_dcl.evaluation.evaluated_model import Examinee
from medclip_dcl.evaluation.grounding import examine_grounding
from medclip_dcl.evaluation.inputs import BoxedSentence, Films, Sampling
from medclip_dcl.evaluation.summary import mean_figures
from medclip_dcl.inference.heatmap import Geometry, heatmap
from medclip_dcl.text.sentences import text_key

_HEATMAP_PX = 512


def encode_films(
    model: Examinee, films: Sequence[LungFilm], geometry: Geometry, settings: ImagesConfig
) -> Films:
    """Show films to a model.

    Args:
        model: the model.
        films: the films.
        geometry: what of each film it is shown.
        settings: how the model's films are prepared.

    Returns:
        The films with their region vectors.
    """
    shapes = [film.image.pixels.shape for film in films]
    return Films(
        tuple(film.image_id for film in films),
        tuple(film.subject_id for film in films),
        tuple((height, width) for height, width in shapes),
        _regions(model, [film.image for film in films], geometry, settings),
        geometry,
    )


def examine_names(
    model: Examinee,
    encoded: Films,
    films: Sequence[LungFilm],
    sampling: Sampling,
    *,
    exchanged: bool = False,
) -> tuple[dict[str, Figure], float]:
    """Ask where "left lung" and "right lung" are, as an evaluation asks.

    Args:
        model: who is asked.
        encoded: the films, from `encode_films`.
        films: the same films.
        sampling: of the intervals.
        exchanged: whether each box is asked for by the name of the other lung: a control.

    Returns:
        Figures over all boxes, and the chance of `pointing`. `side` is the share of boxes
        whose half of the film scores higher than the other half, by the mean; its chance
        is 0.5, since a model that prefers one half whatever the name is right once a film.
    """
    names = (RIGHT, LEFT) if exchanged else (LEFT, RIGHT)
    units = [
        BoxedSentence(number, name, name, text_key(name), film.boxes[side])
        for number, film in enumerate(films)
        for side, name in zip((LEFT, RIGHT), names, strict=True)
    ]
    outcome, rows = examine_grounding(model, encoded, units, _HEATMAP_PX, sampling)
    sides: list[float | None] = []
    for row, side in zip(rows, (LEFT, RIGHT) * len(films), strict=True):
        grid = np.array(row["grid"]).reshape(row["rows"], -1)
        half = grid.shape[1] // 2  # the middle of an odd number of columns is in neither
        sides.append(float((grid[:, -half:].mean() > grid[:, :half].mean()) == (side == LEFT)))
    told = mean_figures(
        {"side": sides},
        [row["subject_id"] for row in rows],
        sampling.samples,
        sampling.generator(),
    )
    return {**outcome.figures, **told}, outcome.chance["pointing"] or 0.0


def examine_covered(
    model: Examinee,
    encoded: Films,
    films: Sequence[LungFilm],
    settings: ImagesConfig,
    sampling: Sampling,
) -> dict[str, Figure]:
    """See which cells of the encoder's grid change when a lung is painted over.

    Args:
        model: the model.
        encoded: the films, from `encode_films`.
        films: the same films.
        settings: how the model's films are prepared.
        sampling: of the intervals.

    Returns:
        `pointed`: share of lungs where the change (1 - cosine) peaks in the lung's box;
        `side`: where it peaks in the lung's half of the film; `cnr_signed`: how far the
        change stands out in the box.
    """
    columns: dict[str, list[float | None]] = {"pointed": [], "side": [], "cnr_signed": []}
    for side in (LEFT, RIGHT):
        images = [cover(film, side) for film in films]
        vectors = _regions(model, images, encoded.geometry, settings)
        changes = (1 - (vectors * encoded.regions).sum(dim=-1)).cpu().numpy()
        for number, (film, change) in enumerate(zip(films, changes, strict=True)):
            mask = mask_of(film, side)
            spread = heatmap(change, encoded.geometry, encoded.window(number), *mask.shape)
            at = int(np.unravel_index(int(np.nanargmax(spread)), mask.shape)[1])
            columns["pointed"].append(float(metrics.is_pointed_at(spread, mask) or False))
            columns["side"].append(float((at >= mask.shape[1] / 2) == (side == LEFT)))
            columns["cnr_signed"].append(metrics.signed_cnr(spread, mask))
    subjects = [*encoded.subject_ids, *encoded.subject_ids]
    return mean_figures(columns, subjects, sampling.samples, sampling.generator())


def turn(films: Sequence[LungFilm]) -> list[LungFilm]:
    """Mirror films left to right; their boxes stay where they are.

    Args:
        films: the films.

    Returns:
        Films of the same sizes, the other lung in each box.
    """
    return [
        replace(film, image=replace(film.image, pixels=film.image.pixels[:, ::-1].copy()))
        for film in films
    ]


def cover(film: LungFilm, side: str) -> GreyImage:
    """Paint over one lung's box with the film's mean grey.

    Args:
        film: the film.
        side: `LEFT` or `RIGHT`.

    Returns:
        A film of the same size.
    """
    pixels = film.image.pixels.copy()
    pixels[mask_of(film, side)] = round(float(pixels.mean()))
    return replace(film.image, pixels=pixels)


def _regions(
    model: Examinee, images: Sequence[GreyImage], geometry: Geometry, settings: ImagesConfig
) -> Float[Tensor, "films rows columns dim"]:
    prepared = [
        shown(image, geometry, settings.size_px, equalize=settings.equalize) for image in images
    ]
    return model.embed_images(np.stack(prepared))
