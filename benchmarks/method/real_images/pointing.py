"""Lungs before a model: what it answers to their names, and what it sees when one is covered."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from torch import Tensor

from benchmarks.method.real_images.lungs import LEFT, RIGHT, LungImage, mask_of, shown
from medclip_dcl.data.grayscale import GreyImage
from medclip_dcl.data.images import ImagesConfig
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.evaluated_model import EncodedImages, EvaluatedModel, Geometry, heatmap
from medclip_dcl.evaluation.grounding import (
    BoxedSentence,
    evaluate_grounding,
    is_pointed_at,
    mean_figures,
    signed_cnr,
)
from medclip_dcl.text.sentences import text_key

_HEATMAP_PX = 512


def encode_images(
    model: EvaluatedModel, images: Sequence[LungImage], geometry: Geometry, settings: ImagesConfig
) -> EncodedImages:
    """Show images, or what a geometry shows of them, to a model."""
    shapes = [image.image.pixels.shape for image in images]
    return EncodedImages(
        tuple(image.image_id for image in images),
        tuple(image.subject_id for image in images),
        tuple((height, width) for height, width in shapes),
        _regions(model, [image.image for image in images], geometry, settings),
        geometry,
    )


def evaluate_names(
    model: EvaluatedModel,
    encoded: EncodedImages,
    images: Sequence[LungImage],
    bootstrap: BootstrapOptions,
    *,
    exchanged: bool = False,
) -> tuple[dict[str, Figure], float]:
    """Ask where "left lung" and "right lung" are, as an evaluation asks.

    `exchanged` asks for each box by the name of the other lung: a control. Gives figures over all
    boxes, and the chance of `pointing`. `side` is the share of boxes whose half of the image scores
    higher than the other half, by the mean; its chance is 0.5, since a model that prefers one half
    whatever the name is right once an image.
    """
    names = (RIGHT, LEFT) if exchanged else (LEFT, RIGHT)
    units = [
        BoxedSentence(number, name, name, text_key(name), image.boxes[side])
        for number, image in enumerate(images)
        for side, name in zip((LEFT, RIGHT), names, strict=True)
    ]
    outcome, rows = evaluate_grounding(model, encoded, units, _HEATMAP_PX, bootstrap)
    sides: list[float | None] = []
    for row, side in zip(rows, (LEFT, RIGHT) * len(images), strict=True):
        grid = np.array(row["grid"]).reshape(row["rows"], -1)
        half = grid.shape[1] // 2  # the middle of an odd number of columns is in neither
        sides.append(float((grid[:, -half:].mean() > grid[:, :half].mean()) == (side == LEFT)))
    reported = mean_figures(
        {"side": sides},
        [row["subject_id"] for row in rows],
        bootstrap,
    )
    return {**outcome.figures, **reported}, outcome.chance["pointing"] or 0.0


def evaluate_covered(
    model: EvaluatedModel,
    encoded: EncodedImages,
    images: Sequence[LungImage],
    settings: ImagesConfig,
    bootstrap: BootstrapOptions,
) -> dict[str, Figure]:
    """See which cells of the encoder's grid change when a lung is painted over.

    `pointed`: share of lungs where the change (1 - cosine) peaks in the lung's box; `side`: where
    it peaks in the lung's half of the image; `cnr_signed`: how far the change stands out in the
    box.
    """
    columns: dict[str, list[float | None]] = {"pointed": [], "side": [], "cnr_signed": []}
    for side in (LEFT, RIGHT):
        covered = [cover(image, side) for image in images]
        vectors = _regions(model, covered, encoded.geometry, settings)
        changes = (1 - (vectors * encoded.regions).sum(dim=-1)).cpu().numpy()
        for number, (image, change) in enumerate(zip(images, changes, strict=True)):
            mask = mask_of(image, side)
            spread = heatmap(change, encoded.geometry, encoded.window(number), *mask.shape)
            at = int(np.unravel_index(int(np.nanargmax(spread)), mask.shape)[1])
            columns["pointed"].append(float(is_pointed_at(spread, mask) or False))
            columns["side"].append(float((at >= mask.shape[1] / 2) == (side == LEFT)))
            columns["cnr_signed"].append(signed_cnr(spread, mask))
    subjects = [*encoded.subject_ids, *encoded.subject_ids]
    return mean_figures(columns, subjects, bootstrap)


def turn(images: Sequence[LungImage]) -> list[LungImage]:
    """Mirror images left to right; their boxes stay, so that each holds the other lung."""
    return [
        replace(image, image=replace(image.image, pixels=image.image.pixels[:, ::-1].copy()))
        for image in images
    ]


def cover(image: LungImage, side: str) -> GreyImage:
    """Paint over one lung's box (`LEFT` or `RIGHT`) with the image's mean grey."""
    pixels = image.image.pixels.copy()
    pixels[mask_of(image, side)] = round(float(pixels.mean()))
    return replace(image.image, pixels=pixels)


def _regions(
    model: EvaluatedModel, images: Sequence[GreyImage], geometry: Geometry, settings: ImagesConfig
) -> Float[Tensor, "images rows columns dim"]:
    prepared = [
        shown(image, geometry, settings.size_px, equalize=settings.equalize) for image in images
    ]
    return model.embed_images(np.stack(prepared))
