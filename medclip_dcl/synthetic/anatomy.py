"""A chest as numbers, the plane that it is projected on, and the fields that a projection adds up.

Axes, in units of half the image's width
    x   -1..1 across the chest; negative is the patient's right, on the left of the image
    y   about -1.15..1.15 down the chest
Fields are float32 arrays (rows, columns) with one value per pixel.
"""

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_dcl.synthetic.reports import FineFinding

Field = NDArray[np.float32]
Reals = NDArray[np.floating[Any]]
Box = tuple[int, int, int, int]  # x, y, width, height in pixels of the image


@dataclass(frozen=True)
class Pose:
    """Position of the chest on the detector."""

    shift_x: float
    shift_y: float
    angle: float
    scale: float


@dataclass(frozen=True)
class Canvas:
    """Anatomical coordinates of every pixel of one image."""

    height: int
    width: int
    pose: Pose
    x: Field
    y: Field

    def pixel_at(self, x: float, y: float) -> tuple[float, float]:
        """Row and column, fractional, of an anatomical point."""
        pose = self.pose
        cos, sin = math.cos(pose.angle), math.sin(pose.angle)
        u = pose.scale * (x * cos - y * sin) + pose.shift_x
        v = pose.scale * (x * sin + y * cos) + pose.shift_y
        half = self.width / 2
        return v * half + (self.height - 1) / 2, u * half + (self.width - 1) / 2

    def window(self, x0: float, y0: float, x1: float, y1: float) -> tuple[slice, slice]:
        """Slices of one pixel at least that hold an anatomical rectangle in any pose."""
        corners = [self.pixel_at(x, y) for x in (x0, x1) for y in (y0, y1)]
        rows, columns = zip(*corners, strict=True)
        return _clipped(rows, self.height), _clipped(columns, self.width)


def make_canvas(height: int, width: int, pose: Pose) -> Canvas:
    """Lay anatomical coordinates over an image."""
    half = width / 2
    u = (np.arange(width, dtype=np.float32) - (width - 1) / 2) / half - pose.shift_x
    v = (np.arange(height, dtype=np.float32) - (height - 1) / 2) / half - pose.shift_y
    cos, sin = math.cos(pose.angle) / pose.scale, math.sin(pose.angle) / pose.scale
    x = np.add.outer(v * sin, u * cos).astype(np.float32)
    y = np.add.outer(v * cos, -u * sin).astype(np.float32)
    return Canvas(height, width, pose, x, y)


def inside(distance: Reals, softness: float) -> Field:
    """Turn a signed distance, negative inside, into a mask from 0 to 1.

    `softness` is the half-width of its edge, in the unit of the distance.
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

    Source: Quilez, polynomial smooth minimum.
    """
    overlap = np.maximum(rounding - np.abs(one - other), 0)
    return np.asarray(np.minimum(one, other) - overlap**2 / (4 * rounding), dtype=np.float32)


def smooth_noise(
    shape: tuple[int, int], cells: tuple[int, int], generator: np.random.Generator
) -> Field:
    """Draw noise with standard deviation near 1 and `cells` bumps along each axis."""
    knots = generator.standard_normal((cells[0] + 3, cells[1] + 3), dtype=np.float32)
    rows, columns = _spline(shape[0], cells[0]), _spline(shape[1], cells[1])
    return np.asarray(2.0 * (rows @ knots @ columns.T), dtype=np.float32)


def distance_to_path(
    canvas: Canvas, area: tuple[slice, slice], path: list[tuple[float, float]]
) -> Field:
    """Distance of each pixel of an area to a polyline, anatomical units."""
    x, y = canvas.x[area], canvas.y[area]
    nearest = np.full(x.shape, np.inf, dtype=np.float32)
    for (ax, ay), (bx, by) in itertools.pairwise(path):
        dx, dy = bx - ax, by - ay
        along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
        np.minimum(nearest, (x - ax - along * dx) ** 2 + (y - ay - along * dy) ** 2, out=nearest)
    return np.sqrt(nearest)


def box_of(mask: Field, area: tuple[slice, slice] | None = None, level: float = 0.3) -> Box | None:
    """Bound the pixels of a mask from `level` times its maximum on; None for an empty mask.

    `area` is where on the image the mask is; None: it covers the image.
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


LUNG_TOP, LUNG_BASE = -0.84, 0.66


def _between(low: float, high: float) -> Any:
    return field(metadata={"range": (low, high)})


@dataclass(frozen=True)
class ChestShape:
    """Shape of one patient's chest; ranges are those of a healthy one."""

    wall: float = _between(0.76, 0.84)
    dome_right: float = _between(0.36, 0.44)
    dome_left: float = _between(0.42, 0.50)
    dome_height: float = _between(0.17, 0.24)
    heart_width: float = _between(0.93, 1.06)
    heart_height: float = _between(0.94, 1.06)
    heart_tilt: float = _between(-0.1, 0.25)
    mediastinum: float = _between(0.115, 0.145)
    aorta: float = _between(0.075, 0.092)
    rib_spacing: float = _between(0.150, 0.170)
    rib_slope: float = _between(0.5, 0.8)
    clavicle: float = _between(-0.60, -0.53)
    softness: float = _between(0.8, 1.3)
    breast: float = _between(-0.08, 0.08)  # 0 and below: none to be seen
    stomach: float = _between(-0.1, 0.12)  # likewise
    curve: float = _between(-0.015, 0.015)


def draw_body(generator: np.random.Generator) -> ChestShape:
    """Draw a healthy chest."""
    return ChestShape(*(generator.uniform(*item.metadata["range"]) for item in fields(ChestShape)))


def with_findings(body: ChestShape, findings: Mapping[FineFinding, float]) -> ChestShape:
    """Reshape a body by the findings, with severities in [0, 1], that change its outlines."""
    for finding, severity in findings.items():
        if finding.type == "cardiomegaly":
            body = replace(
                body,
                heart_width=body.heart_width * (1.36 + 0.3 * severity),
                heart_height=body.heart_height * (1.1 + 0.1 * severity),
            )
        elif finding.type == "elevated hemidiaphragm":
            lift = 0.2 + 0.1 * severity
            if finding.side == "right":
                body = replace(body, dome_right=body.dome_right - lift)
            else:
                body = replace(body, dome_left=body.dome_left - lift)
        elif finding.type == "scoliosis":
            sign = -1 if finding.side == "right" else 1
            body = replace(body, curve=sign * (0.1 + 0.06 * severity))
        elif finding.type == "enlarged aorta":
            body = replace(body, aorta=body.aorta * (1.6 + 0.4 * severity))
    return body


@dataclass(frozen=True)
class Chest:
    """The fields of one projected chest, all of the image's shape."""

    body: ChestShape
    m: Field  # signed distance from the midline, bent with the spine
    across: Field  # distance from the midline
    outer: Field  # where a lung ends, as a distance from the midline
    inner: Field
    depth: Field  # thickness of a lung, 0.5 to 1
    core: Field  # heart and great vessels, 0 to 1
    heart: Field
    aorta: Field
    domes: Field  # signed distance from the diaphragm, negative above
    lungs: Field  # air that shows, 0 to 1
    lung_outline: Field  # all of the lungs, also what is behind the heart


def project(canvas: Canvas, body: ChestShape) -> Chest:
    """Lay a body over the canvas: boundaries of lung, heart and diaphragm."""
    x, y = canvas.x, canvas.y
    bend = body.curve * np.cos(2.6 * (y + 0.1))
    m = x - bend
    across = np.abs(x - 0.35 * bend)
    height = np.clip((y - LUNG_TOP) / (LUNG_BASE - LUNG_TOP), 0, 1)
    open_top = (1 - height) ** 2
    outer = body.wall * np.sqrt(np.clip(1 - open_top * np.sqrt(1 - height), 0, None))
    outer -= 0.02 * np.clip(y - 0.3, 0, None)
    inner = body.mediastinum + 0.12 * open_top * open_top * (1 - height)
    top = np.where(x < 0, body.dome_right, body.dome_left).astype(np.float32)
    arch = np.clip((across - 0.36) / 0.44, -1, 1.3)
    domes = y - top - body.dome_height * arch * arch
    heart = _heart(m, y, body)
    aorta = np.hypot(m - 0.085, (y + 0.36) * 0.8) - body.aorta
    vessels = join(np.abs(m + 0.01) - 0.8 * body.mediastinum, aorta, 0.06)
    core = inside(join(vessels, heart, 0.16), 0.02)
    walls = -join(outer - across, across - inner, 0.16)
    outline = inside(walls, 0.016) * inside(domes, 0.012) * (y > LUNG_TOP)
    depth = 0.5 + 0.5 * inside(across - outer + 0.16, 0.16)
    lungs = outline * (1 - core)
    organs = inside(heart, 0.02), inside(aorta, 0.02)
    return Chest(body, m, across, outer, inner, depth, core, *organs, domes, lungs, outline)


def _heart(m: Field, y: Field, body: ChestShape) -> Field:
    """Signed distance: the left ventricle as a tilted ellipse, joined to the right atrium."""
    wide, high = body.heart_width, body.heart_height
    tilt = 0.65 + body.heart_tilt
    cos, sin = np.float32(np.cos(tilt)), np.float32(np.sin(tilt))
    x, v = (m - 0.115 * wide) / wide, (y - 0.26) / high
    along, thick = (x * cos + v * sin) / 0.36, (v * cos - x * sin) / 0.25
    left = (np.sqrt(along * along + thick * thick) - 1) * 0.27
    right = np.hypot((m + 0.03) / wide, (y - 0.25) / (1.25 * high)) - 0.18
    return join(left, right, 0.10)


def ribs(canvas: Canvas, chest: Chest) -> Field:
    """Posterior and anterior ribs as curved bands with bright edges, 0 to about 1."""
    body, y, across = chest.body, canvas.y, chest.across
    cage = inside(across - chest.outer - 0.03, 0.02) * inside(0.05 - across, 0.03)
    reach = across / body.wall
    fall = body.rib_slope * (reach - 0.30) ** 2
    back = _bands((y - 0.75 * fall + 0.03) / body.rib_spacing, 0.26)
    back *= 1 - 0.35 * inside(0.6 - reach, 0.3)
    front = _bands((y + 0.42 * reach**2 - 0.62 * reach) / (1.12 * body.rib_spacing), 0.24)
    front *= inside(0.5 - reach, 0.12) * inside(y - 0.25, 0.15)
    below = 1 - 0.6 * inside(-chest.domes, 0.05)
    return np.asarray((0.75 * back + 0.4 * front) * cage * below, dtype=np.float32)


def spine(canvas: Canvas, chest: Chest) -> Field:
    """The vertebral column with its discs and spinous processes, 0 to about 1."""
    step = canvas.y / (0.85 * chest.body.rib_spacing)
    disc = np.cos(2 * np.pi * step)
    m = np.abs(chest.m)
    column = inside(m - 0.080 - 0.003 * disc, 0.012) * (0.72 + 0.28 * inside(-disc - 0.7, 0.25))
    process = inside(m - 0.014, 0.01) * inside(0.35 - disc, 0.2)
    pedicle = inside(np.abs(m - 0.05) - 0.012, 0.008) * inside(0.6 - disc, 0.2)
    return np.asarray(column + 0.35 * process + 0.25 * pedicle, dtype=np.float32)


def clavicles(canvas: Canvas, chest: Chest) -> Field:
    """Both clavicles and a hint of the scapulae, 0 to about 1."""
    x, y = chest.across, canvas.y
    middle = chest.body.clavicle - 0.20 * (x - 0.1) + 0.05 * np.sin(5.5 * (x - 0.1))
    off = np.abs(y - middle)
    bone = inside(off - 0.034, 0.012) * (0.75 + 0.4 * inside(-off + 0.022, 0.01))
    bone *= inside(0.07 - x, 0.015) * inside(x - 0.86, 0.03)
    blade = inside(np.abs(x - 0.74 - 0.16 * (y + 0.4)) - 0.05, 0.03)
    blade *= inside(np.abs(y + 0.42) - 0.28, 0.06)
    return np.asarray(bone + 0.25 * blade, dtype=np.float32)


def airways(canvas: Canvas, chest: Chest) -> Field:
    """Air of trachea and main bronchi, 0 to 1."""
    y, m = canvas.y, chest.m
    trachea = inside(np.abs(m + 0.012) - 0.036, 0.012) * inside(y + 0.16, 0.02)
    spread = (y + 0.18) * np.where(m < 0, np.float32(0.9), np.float32(1.3))
    bronchi = inside(np.abs(np.abs(m + 0.01) - spread) - 0.024, 0.014)
    bronchi *= inside(np.abs(y + 0.09) - 0.09, 0.02)
    return np.asarray(np.maximum(trachea, 0.8 * bronchi), dtype=np.float32)


def vessels(canvas: Canvas, chest: Chest, generator: np.random.Generator) -> Field:
    """Markings that fan out from each hilum, 0 to about 1: ridges in polar coordinates."""
    dx, dy = chest.across - 0.15, canvas.y - 0.0
    radius = np.hypot(dx, dy)
    angle = np.arctan2(dy, dx) / np.pi  # -1..1; the two lungs read different rows
    rows, columns = 512, 64
    table = smooth_noise((rows, columns), (44, 7), generator)
    table += 0.6 * smooth_noise((rows, columns), (100, 14), generator)
    ridge = np.exp(-((table / 0.17) ** 2)).astype(np.float32)
    row = ((angle + 1) * (rows / 4 - 1)).astype(np.int32) + (canvas.x > 0) * (rows // 2)
    column = np.minimum(radius * (columns / 1.1), columns - 1).astype(np.int32)
    marking = ridge[row, column] * np.clip(1.05 - radius / 0.72, 0, 1)
    hilum = np.exp(-((dx / 0.085) ** 2) - (dy / 0.13) ** 2).astype(np.float32)
    return np.asarray(marking + 0.75 * hilum, dtype=np.float32)


def torso(canvas: Canvas) -> Field:
    """Soft tissue of neck, shoulders and trunk, 1 in the middle, 0 outside the body."""
    y, across = canvas.y, np.abs(canvas.x)
    rise = np.clip((y + 1.12) / 0.42, 0, 1)
    edge = 0.27 + 0.95 * rise * rise * (3 - 2 * rise)
    waist = np.clip((y + 0.72) / 0.55, 0, 1)
    edge -= 0.24 * waist * waist * (3 - 2 * waist)
    edge += 0.03 * y
    within = np.clip(1 - across / np.maximum(edge, 0.1), 0, 1)
    return np.asarray(np.sqrt(np.minimum(within * 3.2, 1)), dtype=np.float32)


def _bands(phase: Reals, width: float) -> Field:
    """Periodic bands, brighter at both edges; `width` is half a band's share of the period."""
    off = np.abs(phase - np.rint(phase))
    band = inside(off - width, 0.06)
    return np.asarray(band * (0.62 + 0.5 * inside(width - 0.09 - off, 0.05)), dtype=np.float32)
