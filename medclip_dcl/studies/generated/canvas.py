"""The plane that a film is drawn on: anatomical coordinates, soft shapes, smooth noise.

Axes
    x   -1..1 across the chest; negative is the patient's right, on the left of the film
    y   about -1.15..1.15 down the chest, in the same unit as x
Fields are float32 arrays (rows, columns) with one value per pixel.
"""

import functools
import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float32]
Reals = NDArray[np.floating[Any]]
Box = tuple[int, int, int, int]
"""x, y, width, height in pixels of the film."""


@dataclass(frozen=True)
class Pose:
    """How the chest lies on the detector."""

    shift_x: float
    shift_y: float
    angle: float
    scale: float


@dataclass(frozen=True)
class Canvas:
    """Anatomical coordinates of every pixel of one film."""

    height: int
    width: int
    pose: Pose
    x: Field
    y: Field

    @property
    def pixel(self) -> float:
        """Side of a pixel in anatomical units."""
        return 2.0 / self.width / self.pose.scale

    def pixel_at(self, x: float, y: float) -> tuple[float, float]:
        """Find the pixel of an anatomical point.

        Args:
            x: anatomical x.
            y: anatomical y.

        Returns:
            Row and column, fractional.
        """
        pose = self.pose
        cos, sin = math.cos(pose.angle), math.sin(pose.angle)
        u = pose.scale * (x * cos - y * sin) + pose.shift_x
        v = pose.scale * (x * sin + y * cos) + pose.shift_y
        half = self.width / 2
        return v * half + (self.height - 1) / 2, u * half + (self.width - 1) / 2

    def window(self, x0: float, y0: float, x1: float, y1: float) -> tuple[slice, slice]:
        """Give the slices that hold an anatomical rectangle, whatever the pose.

        Args:
            x0: least anatomical x.
            y0: least anatomical y.
            x1: greatest anatomical x.
            y1: greatest anatomical y.

        Returns:
            Row and column slices inside the film, at least one pixel each.
        """
        corners = [self.pixel_at(x, y) for x in (x0, x1) for y in (y0, y1)]
        rows, columns = zip(*corners, strict=True)
        return _clipped(rows, self.height), _clipped(columns, self.width)

    def cut(self, area: tuple[slice, slice]) -> "Canvas":
        """Narrow the coordinates to an area of the film; `pixel_at` stays that of the film.

        Args:
            area: rows and columns.

        Returns:
            A canvas whose fields are views of that area.
        """
        return replace(self, x=self.x[area], y=self.y[area])


def make_canvas(height: int, width: int, pose: Pose) -> Canvas:
    """Lay anatomical coordinates over a film.

    Args:
        height: rows of the film.
        width: columns of the film.
        pose: how the chest lies on it.

    Returns:
        The canvas.
    """
    half = width / 2
    u = (np.arange(width, dtype=np.float32) - (width - 1) / 2) / half - pose.shift_x
    v = (np.arange(height, dtype=np.float32) - (height - 1) / 2) / half - pose.shift_y
    cos, sin = math.cos(pose.angle) / pose.scale, math.sin(pose.angle) / pose.scale
    x = np.add.outer(v * sin, u * cos).astype(np.float32)
    y = np.add.outer(v * cos, -u * sin).astype(np.float32)
    return Canvas(height, width, pose, x, y)


def inside(distance: Reals, softness: float) -> Field:
    """Turn a signed distance into a mask with a soft edge.

    Args:
        distance: negative inside the shape.
        softness: half-width of the edge, same unit.

    Returns:
        1 inside, 0 outside, a smooth step between.
    """
    t: Field = np.multiply(distance, np.float32(-0.5 / softness), dtype=np.float32)
    t += np.float32(0.5)
    np.clip(t, 0, 1, out=t)
    step = t * np.float32(-2)
    step += np.float32(3)
    step *= t
    step *= t
    return step


def join(one: Reals, other: Reals, rounding: float) -> Field:
    """Unite two shapes, given as signed distances, with a rounded groove between them.

    Args:
        one: negative inside the first shape.
        other: negative inside the second.
        rounding: width of the blend.

    Returns:
        Signed distance of the union.

    Source: Quilez, polynomial smooth minimum.
    """
    overlap = np.maximum(rounding - np.abs(one - other), 0)
    return np.asarray(np.minimum(one, other) - overlap**2 / (4 * rounding), dtype=np.float32)


def smooth_noise(
    shape: tuple[int, int], cells: tuple[int, int], generator: np.random.Generator
) -> Field:
    """Draw smooth noise with standard deviation near 1.

    Args:
        shape: rows and columns.
        cells: bumps along each axis.
        generator: source of randomness.

    Returns:
        Cubic B-spline surface over random knots.
    """
    knots = generator.standard_normal((cells[0] + 3, cells[1] + 3), dtype=np.float32)
    rows, columns = _spline(shape[0], cells[0]), _spline(shape[1], cells[1])
    return np.asarray(2.0 * (rows @ knots @ columns.T), dtype=np.float32)


def distance_to_path(
    canvas: Canvas, area: tuple[slice, slice], path: list[tuple[float, float]]
) -> Field:
    """Measure the distance of each pixel of an area to a polyline.

    Args:
        canvas: the canvas.
        area: rows and columns to measure.
        path: its corners, anatomical x and y.

    Returns:
        Distance in anatomical units, one value per pixel of the area.
    """
    x, y = canvas.x[area], canvas.y[area]
    nearest = np.full(x.shape, np.inf, dtype=np.float32)
    for (ax, ay), (bx, by) in itertools.pairwise(path):
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
        np.minimum(nearest, (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2, out=nearest)
    return np.sqrt(nearest)


def box_of(mask: Field, area: tuple[slice, slice] | None = None, level: float = 0.3) -> Box | None:
    """Bound the pixels of a mask.

    Args:
        mask: a finding's share in each pixel, 0 to 1.
        area: where on the film the mask lies; None: it covers the film.
        level: share of its maximum from which a pixel counts.

    Returns:
        The exact bounding box; None for an empty mask.
    """
    peak = float(mask.max()) if mask.size else 0.0
    if peak <= 0:
        return None
    hit = mask >= level * peak
    rows, columns = np.flatnonzero(hit.any(1)), np.flatnonzero(hit.any(0))
    top, left = (area[0].start, area[1].start) if area else (0, 0)
    return (
        int(left + columns[0]),
        int(top + rows[0]),
        int(columns[-1] - columns[0] + 1),
        int(rows[-1] - rows[0] + 1),
    )


def _clipped(values: tuple[float, ...], size: int) -> slice:
    start = min(max(math.floor(min(values)) - 2, 0), size - 1)
    stop = max(min(math.ceil(max(values)) + 3, size), start + 1)
    return slice(start, stop)


@functools.lru_cache(maxsize=256)
def _spline(points: int, cells: int) -> Field:
    """Weights of uniform cubic B-splines: (points, cells + 3)."""
    position = np.linspace(0, cells, points, endpoint=False)
    cell = np.floor(position).astype(int)
    t = position - cell
    weights = np.zeros((points, cells + 3))
    parts = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    for offset, part in enumerate(parts):
        weights[np.arange(points), cell + offset] = part / 6
    return weights.astype(np.float32)
