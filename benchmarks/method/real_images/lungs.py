"""Boxes of lungs on real images: does what is laid over the grid come back where it was?

A box is painted white on black at the size of its image, and goes the way that images go:
onto the square, through the geometry's window, onto the model's input. The mean over each
cell is the best grid that any model could give. It is brought back to the image by the
code that shows heatmaps, and compared with the box. Nothing of it depends on a skill.

BioViL's smoothing, 1.5 cells, was made for a grid of 15. On one of 8 it can put the peak of
a box that nearly touches the window's edge into the outermost cell, whose value goes on to
the edge: a tie with pixels outside the box, which counts as a miss.

A model is asked where the lungs are by their names, and what changes when one is covered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

from medclip_dcl.data.grayscale import GreyImage, square
from medclip_dcl.data.images import Decoder
from medclip_dcl.data.limits import ImagesConfig
from medclip_dcl.data.row_images import image_source
from medclip_dcl.evaluation import grounding
from medclip_dcl.evaluation.bootstrap import BootstrapOptions, Figure
from medclip_dcl.evaluation.evaluated_model import (
    EncodedImages,
    EvaluatedModel,
    Geometry,
    Window,
    cut_window,
    heatmap,
    window_of,
)
from medclip_dcl.evaluation.grounding import (
    BoxedSentence,
    evaluate_grounding,
    is_pointed_at,
    mean_figures,
    signed_cnr,
)
from medclip_dcl.inference.grounding import locate
from medclip_dcl.models.image_encoder import MEAN, SPREAD, to_input
from medclip_dcl.text.sentences import text_key
from pipelines.build_manifest import source_of
from pipelines.config import Config

LEFT, RIGHT = "left lung", "right lung"
WHITE = 65535
_LEVELS = tuple(step / 20 for step in range(1, 20))

Grid = Float[np.ndarray, "rows columns"]
Mask = Bool[np.ndarray, "height width"]
Figures = dict[str, float]


class Shape(NamedTuple):
    """Sizes of a model: prepared image and input in pixels, cells along an edge."""

    prepared_px: int
    input_px: int
    cells: int


@dataclass(frozen=True)
class LungImage:
    """An image and the box of each of its lungs."""

    image_id: str
    subject_id: str
    image: GreyImage
    boxes: Mapping[str, Float[np.ndarray, "1 4"]]
    """`LEFT` or `RIGHT` -> x, y, width, height, pixels of the image."""


def read_lung_images(config: Config) -> list[LungImage]:
    """Read the images with boxes that a config's source names, in the source's order.

    The category of a box is `Left Lung` or `Right Lung`; images without both are left out.
    ImageError where an image is refused; StudyError where the source cannot be read.
    """
    source = source_of(config)
    root = source.raw.root
    boxes: dict[str, dict[str, np.ndarray]] = {}
    for row in source.boxes.rows:
        box = np.array([[row["x"], row["y"], row["width"], row["height"]]])
        boxes.setdefault(row["image_id"], {})[row["category"].lower()] = box
    with Decoder(config.images, 1) as decoder:
        return [
            LungImage(
                image.image_id,
                image.subject_id,
                decoder.open(image_source(root, image.path)),
                boxes[image.image_id],
            )
            for image in source.raw.images
            if {LEFT, RIGHT} <= boxes.get(image.image_id, {}).keys()
        ]


def mask_of(image: LungImage, side: str) -> Mask:
    """Mark the pixels of an image that are in the box of a lung."""
    return grounding.box_mask(image.boxes[side], *image.image.pixels.shape)


def perfect_grid(mask: Mask, geometry: Geometry, shape: Shape) -> Grid:
    """Bring a box to the grid, the way that images go: the share of each cell that it covers."""
    painted = GreyImage((mask * WHITE).astype(np.uint16), 16, "png")
    image = shown(painted, geometry, shape.prepared_px, equalize=False)
    pixels = to_input(image[None], shape.input_px)
    cells = functional.adaptive_avg_pool2d(pixels, shape.cells)[0, 0]
    grid: np.ndarray = (cells * SPREAD + MEAN).clamp(0, 1).numpy()  # back to grey levels
    return grid


def compare(grid: Grid, mask: Mask, geometry: Geometry) -> Figures:
    """Bring a grid of `perfect_grid` back to the image and compare it with the box.

    `pointed`: whether the peak is in the box; `mirrored`: the same of the map turned left to right,
    which is to fail; `iou`: of the map above its best level; `cells_iou`: of the best choice of
    whole cells; `off`: how far the map's middle is from the box's, cells; `peak`: the peak's place
    from left to right, share of the width.
    """
    height, width = mask.shape
    window = window_of(geometry, height, width)
    back = heatmap(grid, geometry, window, height, width)
    whole = _whole_cells(grid, window, height, width)
    levels = [level * float(grid.max()) for level in _LEVELS]
    apart = _middle(back >= np.nanmax(back) / 2) - _middle(mask & ~np.isnan(back))
    cell = np.array([window.height / grid.shape[0], window.width / grid.shape[1]])
    at = np.unravel_index(int(np.nanargmax(back)), back.shape)[1]
    return {
        "pointed": float(grounding.is_pointed_at(back, mask) or False),
        "mirrored": float(grounding.is_pointed_at(back[:, ::-1], mask) or False),
        "iou": _best_iou(back, mask, levels),
        "cells_iou": _best_iou(whole, mask, levels),
        "off": float(np.abs(apart / cell).max()),
        "peak": (int(at) + 0.5) / width,
    }


def located(grid: Grid, mask: Mask) -> Figures:
    """Let the service's code answer where the grid peaks; it sees the whole image.

    `pointed`: whether its peak is in the box; `iou`: of the box that it traces.
    """
    height, width = mask.shape
    answer = locate(grid, height, width, None)
    found = np.zeros_like(mask)
    if answer.box is not None:
        sides = [answer.box.x, answer.box.y, answer.box.width, answer.box.height]
        found = grounding.box_mask(np.array([sides]), height, width)
    union = int((found | mask).sum())
    return {
        "pointed": float(mask[int(answer.peak.y), int(answer.peak.x)]),
        "iou": int((found & mask).sum()) / union,
    }


def perfect_figures(images: Sequence[LungImage], geometry: Geometry, shape: Shape) -> Figures:
    """Compare the perfect map of every box with it: means of what `compare` gives.

    `off_most`: the largest `off`; `left_is_right`: share of images where the left lung's peak is to
    the right.
    """
    rows: list[Figures] = []
    ordered = 0
    for image in images:
        found = {}
        for side in (LEFT, RIGHT):
            mask = mask_of(image, side)
            found[side] = compare(perfect_grid(mask, geometry, shape), mask, geometry)
        ordered += found[LEFT].pop("peak") > found[RIGHT].pop("peak")
        rows += found.values()
    off = max(row["off"] for row in rows)
    return _means(rows) | {"off_most": off, "left_is_right": ordered / len(images)}


def located_figures(images: Sequence[LungImage], shape: Shape) -> Figures:
    """Average what `located` gives over the boxes."""
    masks = [mask_of(image, side) for image in images for side in (LEFT, RIGHT)]
    return _means([located(perfect_grid(mask, "whole", shape), mask) for mask in masks])


def shown(
    image: GreyImage, geometry: Geometry, size_px: int, *, equalize: bool
) -> UInt8[np.ndarray, "size size"]:
    """Prepare an image and cut out of it what a geometry shows to a model.

    `size_px` is the edge of a prepared image; `equalize`: its histogram is equalised.
    """
    height, width = image.pixels.shape
    prepared = square(image, size_px, equalize)
    return cut_window(prepared, window_of(geometry, height, width), height, width)


def _whole_cells(grid: Grid, window: Window, height: int, width: int) -> np.ndarray:
    """Spread a grid over the image without blending: every pixel has the value of its cell."""
    rows, columns = grid.shape
    down = ((np.arange(window.height) + 0.5) * rows / window.height).astype(int)
    across = ((np.arange(window.width) + 0.5) * columns / window.width).astype(int)
    spread = np.full((height, width), np.nan)
    inside = slice(window.y, window.y + window.height), slice(window.x, window.x + window.width)
    spread[inside] = grid[np.ix_(down, across)]
    return spread


def _best_iou(values: np.ndarray, mask: Mask, levels: Sequence[float]) -> float:
    overlap = partial(grounding.mean_iou, values, mask)
    return max(overlap((level,)) or 0.0 for level in levels)


def _middle(mask: Mask) -> np.ndarray:
    middle: np.ndarray = np.argwhere(mask).mean(axis=0)
    return middle


def _means(rows: Sequence[Figures]) -> Figures:
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


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
    reported = mean_figures({"side": sides}, [row["subject_id"] for row in rows], bootstrap)
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
