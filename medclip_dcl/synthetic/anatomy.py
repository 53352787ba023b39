"""A healthy chest as numbers, and the fields that its projection adds up.

Axes, in units of half the image's width
    x   -1..1 across the chest; negative is the patient's right, on the left of the image
    y   about -1.15..1.15 down the chest
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from medclip_dcl.synthetic.reports import FineFinding

Field = NDArray[np.floating[Any]]  # float32, (rows, columns): one value per pixel

LUNG_TOP, LUNG_BASE = -0.84, 0.66


class ChestShape(NamedTuple):
    """Shape of one patient's chest."""

    wall: float
    dome: float
    heart: float
    tilt: float
    mediastinum: float
    aorta: float
    rib_spacing: float
    tissue: float
    curve: float


_LEAST = ChestShape(0.76, 0.36, 0.93, 0.55, 0.115, 0.075, 0.150, 0.50, -0.015)
_MOST = ChestShape(0.84, 0.44, 1.06, 0.90, 0.145, 0.092, 0.170, 0.54, 0.015)


def draw_body(generator: np.random.Generator) -> ChestShape:
    """Draw a healthy chest."""
    return ChestShape(*map(float, generator.uniform(_LEAST, _MOST)))


def with_findings(body: ChestShape, findings: Mapping[FineFinding, float]) -> ChestShape:
    """Reshape a body by the findings, with severities in [0, 1], that change its outlines."""
    for finding, severity in findings.items():
        if finding.type == "cardiomegaly":
            body = body._replace(heart=body.heart * (1.36 + 0.3 * severity))
        elif finding.type == "enlarged aorta":
            body = body._replace(aorta=body.aorta * (1.6 + 0.4 * severity))
        elif finding.type == "scoliosis":
            body = body._replace(curve=math.copysign(0.1 + 0.06 * severity, body.curve))
    return body


def draw_coordinates(size_px: int, generator: np.random.Generator) -> tuple[Field, Field]:
    """Lay x and y over an image `size_px` high, of a chest that stands as chance has it."""
    width = round(size_px * generator.uniform(0.84, 1.0))
    u, v = ((np.arange(length) - (length - 1) / 2) / (width / 2) for length in (width, size_px))
    u, v = u - generator.normal(0, 0.025), v - generator.normal(0.06, 0.03)
    angle, scale = generator.normal(0, 0.025), generator.uniform(0.95, 1.06)
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    x, y = np.add.outer(v * sin, u * cos), np.add.outer(v * cos, -u * sin)
    return x.astype(np.float32), y.astype(np.float32)


def inside(distance: Field, softness: float) -> Field:
    """Turn a signed distance, negative inside, into a mask from 0 to 1.

    `softness` is the half-width of its edge, in the unit of the distance.
    """
    t: Field = np.clip(0.5 - distance * np.float32(0.5 / softness), 0, 1)
    return t * t * (3 - 2 * t)


def join(one: Field, other: Field, rounding: float) -> Field:
    """Unite two shapes, given as signed distances, with a rounded groove between them.

    Source: Quilez, polynomial smooth minimum.
    """
    overlap = np.maximum(rounding - np.abs(one - other), 0)
    return np.minimum(one, other) - overlap**2 / (4 * rounding)


def smooth_noise(shape: tuple[int, ...], cells: int, generator: np.random.Generator) -> Field:
    """Draw noise with a standard deviation near 1 and `cells` bumps along each axis."""
    knots = Image.fromarray(generator.standard_normal((cells, cells), dtype=np.float32))
    bumps = knots.resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    return np.float32(1.3) * np.asarray(bumps)


@dataclass(frozen=True)
class Chest:
    """The fields of one projected chest."""

    body: ChestShape
    x: Field
    y: Field
    m: Field  # signed distance from the midline, bent with the spine
    across: Field  # distance from the midline
    outer: Field  # where a lung ends, as a distance from the midline
    inner: Field
    heart: Field  # 0 to 1, as all that follow but `domes`
    aorta: Field
    core: Field  # heart and great vessels
    domes: Field  # signed distance from the diaphragm, negative above
    lungs: Field  # air that shows
    lung_outline: Field  # all of the lungs, also what is behind the heart

    def distance_to(self, path: Sequence[tuple[float, float]]) -> Field:
        """Distance of each pixel to a polyline."""
        nearest = np.full(self.x.shape, np.inf, dtype=np.float32)
        for (ax, ay), (bx, by) in itertools.pairwise(path):
            dx, dy, u, v = bx - ax, by - ay, self.x - ax, self.y - ay
            along = np.clip((u * dx + v * dy) / (dx * dx + dy * dy), 0, 1)
            np.minimum(nearest, (u - along * dx) ** 2 + (v - along * dy) ** 2, out=nearest)
        return np.sqrt(nearest)


def project(x: Field, y: Field, body: ChestShape) -> Chest:
    """Lay a body over an image: boundaries of lung, heart and diaphragm."""
    bend = body.curve * np.cos(2.6 * (y + 0.1))
    m, across = x - bend, np.abs(x - 0.35 * bend)
    height = np.clip((y - LUNG_TOP) / (LUNG_BASE - LUNG_TOP), 0, 1)
    open_top = (1 - height) ** 2
    outer = body.wall * np.sqrt(np.clip(1 - open_top * np.sqrt(1 - height), 0, None))
    inner = body.mediastinum + 0.12 * open_top * open_top * (1 - height)
    arch = np.clip((across - 0.36) / 0.44, -1, 1.3)
    domes = y - body.dome - np.float32(0.06) * (x > 0) - 0.2 * arch * arch
    heart = _heart(m, y, body)
    aorta = np.hypot(m - 0.085, (y + 0.36) * 0.8) - body.aorta
    trunk = join(np.abs(m + 0.01) - 0.8 * body.mediastinum, aorta, 0.06)
    core = inside(join(trunk, heart, 0.16), 0.02)
    walls = -join(outer - across, across - inner, 0.16)
    outline = inside(walls, 0.016) * inside(domes, 0.012) * (y > LUNG_TOP)
    organs = inside(heart, 0.02), inside(aorta, 0.02), core
    return Chest(body, x, y, m, across, outer, inner, *organs, domes, outline * (1 - core), outline)


def _heart(m: Field, y: Field, body: ChestShape) -> Field:
    """Signed distance: the left ventricle as a tilted ellipse, joined to the right atrium."""
    size, high = body.heart, 1 + 0.3 * (body.heart - 1)  # an enlarged heart grows to the sides
    x, v = (m - 0.115 * size) / size, (y - 0.26) / high
    cos, sin = math.cos(body.tilt), math.sin(body.tilt)
    along, thick = (x * cos + v * sin) / 0.36, (v * cos - x * sin) / 0.25
    left = (np.hypot(along, thick) - 1) * 0.27
    right = np.hypot((m + 0.03) / size, (y - 0.25) / (1.25 * high)) - 0.18
    return join(left, right, 0.10)


def attenuation(chest: Chest, generator: np.random.Generator) -> Field:
    """Add up what the tissues of a chest take away, 0 to about 1."""
    across, y = chest.across, chest.y
    tissue = _torso(chest)
    belly = inside(-chest.domes - 0.02, 0.03) * inside(across - chest.outer - 0.04, 0.05)
    middle = inside(across - 0.23, 0.12)
    depth = 0.5 + 0.5 * inside(across - chest.outer + 0.16, 0.16)
    bubble = np.hypot(chest.m - 0.34, (y - chest.body.dome - 0.2) * 1.5) - 0.13
    trachea = inside(np.abs(chest.m + 0.012) - 0.036, 0.012) * inside(y + 0.16, 0.02)
    image = tissue * (chest.body.tissue + 0.17 * belly + 0.05 * middle) - 0.40 * chest.lungs * depth
    image += (0.11 * chest.core + 0.05 * chest.heart + 0.04 * chest.aorta) * (1 - belly) * tissue
    image -= 0.07 * trachea + 0.1 * inside(bubble, 0.03) * belly
    image += 0.085 * _spine(chest) * tissue * (1 - 0.4 * belly)
    image += 0.095 * _ribs(chest) * (0.4 + 0.6 * chest.lung_outline)
    image += 0.11 * _clavicles(chest) * tissue
    image += 0.16 * _vessels(chest, generator) * chest.lungs
    return image


def _torso(chest: Chest) -> Field:
    """Soft tissue of neck, shoulders and trunk, 1 in the middle, 0 outside the body."""
    edge = 0.27 + 0.95 * inside(-0.91 - chest.y, 0.21) - 0.24 * inside(-0.445 - chest.y, 0.275)
    within = np.clip(1 - np.abs(chest.x) / edge, 0, 1)
    return np.sqrt(np.minimum(within * 3.2, 1))


def _ribs(chest: Chest) -> Field:
    """Posterior ribs as curved bands with bright edges."""
    fall = 0.5 * (chest.across / chest.body.wall - 0.30) ** 2
    phase = (chest.y - fall + 0.03) / chest.body.rib_spacing
    off = np.abs(phase - np.rint(phase))
    band = inside(off - 0.26, 0.06) * (0.5 + 0.4 * inside(0.17 - off, 0.05))
    cage = inside(chest.across - chest.outer - 0.03, 0.02) * inside(0.05 - chest.across, 0.03)
    return band * cage * (1 - 0.6 * inside(-chest.domes, 0.05))


def _spine(chest: Chest) -> Field:
    """The vertebral column with its discs and spinous processes."""
    disc = np.cos(2 * np.pi * chest.y / (0.85 * chest.body.rib_spacing))
    m = np.abs(chest.m)
    column = inside(m - 0.08, 0.012) * (0.72 + 0.28 * inside(-disc - 0.7, 0.25))
    return column + 0.35 * inside(m - 0.014, 0.01) * inside(0.35 - disc, 0.2)


def _clavicles(chest: Chest) -> Field:
    x = chest.across - 0.1
    off = np.abs(chest.y + 0.56 + 0.20 * x - 0.05 * np.sin(5.5 * x))
    bone = inside(off - 0.034, 0.012) * (0.75 + 0.4 * inside(0.022 - off, 0.01))
    return bone * inside(-0.03 - x, 0.015) * inside(x - 0.76, 0.03)


def _vessels(chest: Chest, generator: np.random.Generator) -> Field:
    """Markings that fan out from each hilum: ridges in polar coordinates."""
    dx = chest.across - 0.15
    radius, angle = np.hypot(dx, chest.y), np.arctan2(chest.y, dx) / np.pi
    noise = smooth_noise((512, 64), 44, generator)
    # The two lungs read different rows, and a column is a distance.
    row = ((angle + 1) * 127).astype(np.int32) + (chest.x > 0) * 256
    column = np.minimum(radius * 58, 63).astype(np.int32)
    marking = np.exp(-((noise / 0.17) ** 2))[row, column] * np.clip(1.05 - radius / 0.72, 0, 1)
    hilum = np.exp(-((dx / 0.085) ** 2) - (chest.y / 0.13) ** 2)
    return np.asarray(marking + 0.75 * hilum)
